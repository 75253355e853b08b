"""Tells reasoning from the answer in a stream of text. Knows no tool calls.

Reasoning is at the beginning of the output or nowhere, so an answer may speak of the marks. White space around it is
dropped. A closing mark that closes nothing is dropped too, once; the text before it was passed on already.
"""

from collections.abc import Generator, Iterator
from enum import Enum, auto

from attrs import define, field, frozen

from .scanning import SPACE, MarkFinder, Trimmer


@frozen
class Marks:
    """What stands before and after reasoning."""

    open: str
    close: str


_KNOWN = (
    Marks("<think>", "</think>"),
    Marks("[THINK]", "[/THINK]"),
    Marks("<thought>", "</thought>"),
    Marks("<reasoning>", "</reasoning>"),
)


def marks_of(source: str) -> Marks | None:
    """The marks that a chat template knows; None when it knows none."""
    return next((marks for marks in _KNOWN if marks.open in source or marks.close in source), None)


@frozen
class Piece:
    """Some text, and whether it is reasoning."""

    text: str
    reasoning: bool


class _State(Enum):
    START = auto()
    """Nothing but white space and perhaps a part of the opening mark has come."""
    INSIDE = auto()
    UNOPENED = auto()
    """The answer began without reasoning."""
    ANSWER = auto()


@define(eq=False)
class ReasoningSplitter:
    """Cuts the output of one choice."""

    marks: Marks
    inside: bool
    """The prompt has opened the reasoning."""
    keep: bool
    """Leave marks and white space where they are: the pieces joined are the whole text."""
    _state: _State = field(init=False)
    _close: MarkFinder = field(init=False)
    _trimmer: Trimmer = field(factory=lambda: Trimmer(trimming=True), init=False)
    _space: list[str] = field(factory=list, init=False)
    _partial: str = field(default="", init=False)
    _lead: bool = field(default=False, init=False)
    """White space at the beginning of the answer is dropped."""

    @_state.default
    def _first(self) -> _State:
        return _State.INSIDE if self.inside else _State.START

    @_close.default
    def _finder(self) -> MarkFinder:
        return MarkFinder(self.marks.close)

    def feed(self, text: str) -> Iterator[Piece]:
        """What can be told of the text so far. No piece is empty."""
        if self._state is _State.START:
            text = yield from self._start(text)
        if self._state is _State.INSIDE:
            text = yield from self._inside(text)
        elif self._state is _State.UNOPENED:
            text = yield from self._unopened(text)
        if self._state is _State.ANSWER:
            yield from self._answer(text)

    def finish(self) -> Iterator[Piece]:
        """What is still held, once the output has ended."""
        rest = self._close.flush()
        match self._state:
            case _State.START:
                yield from _piece("".join((*self._space, self._partial)), False)
            case _State.INSIDE if not self.keep:
                yield from _piece(self._trimmer.feed(rest) + self._trimmer.flush(), True)
            case _:
                yield from _piece(rest, self._state is _State.INSIDE)

    def _start(self, text: str) -> Generator[Piece, None, str]:
        """Each of these passes on what is its own, sets the state, and returns the text that is left."""
        begin = self._partial + text
        if not self._partial:
            begin = text.lstrip(SPACE)
            self._space.append(text[: len(text) - len(begin)])
        self._partial = ""
        if begin.startswith(self.marks.open):
            self._state = _State.INSIDE
            if self.keep:
                yield Piece("".join((*self._space, self.marks.open)), True)
            return begin[len(self.marks.open) :]
        if self.marks.open.startswith(begin):
            self._partial = begin
            return ""
        self._state = _State.UNOPENED
        return "".join((*self._space, begin))

    def _inside(self, text: str) -> Generator[Piece, None, str]:
        before, after = self._close.feed(text)
        if self.keep:
            mark = self.marks.close if after is not None else ""
            yield from _piece(before + mark, True)
        else:
            yield from _piece(self._trimmer.feed(before), True)
        if after is None:
            return ""
        self._answer_follows()
        return after

    def _unopened(self, text: str) -> Generator[Piece, None, str]:
        if self.keep:
            self._state = _State.ANSWER
            return text
        before, after = self._close.feed(text)
        yield from _piece(before, False)
        if after is None:
            return ""
        self._answer_follows()
        return after

    def _answer_follows(self) -> None:
        self._state = _State.ANSWER
        self._lead = not self.keep

    def _answer(self, text: str) -> Iterator[Piece]:
        if self._lead:
            text = text.lstrip(SPACE)
            self._lead = not text
        yield from _piece(text, False)


def _piece(text: str, reasoning: bool) -> Iterator[Piece]:
    if text:
        yield Piece(text, reasoning)
