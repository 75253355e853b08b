"""From one choice's text to its deltas: content, reasoning and tool calls. The last stage of the text pipeline.

Every cut of the text gives the same deltas joined, so streamed and whole answers are the same. White space before,
between and after calls is dropped. A text that begins like a call and is none comes out as content, as it is.
"""

from collections.abc import Callable, Iterable

from attrs import define, field, frozen

from ..answer import Content, Delta, Reasoning
from .calls import CallFormat
from .reading import Malformed, Reader, Reading
from .reasoning import Marks, ReasoningSplitter
from .scanning import SPACE, MarkFinder, Trimmer


@frozen
class OutputFormat:
    """How the text of an answer is to be read."""

    reasoning: Marks | None = None
    """None: there is none, or the prompt has closed it."""
    inside: bool = False
    """The prompt ends inside the reasoning."""
    split: bool = True
    """Reasoning is told apart; else it stays in the content."""
    calls: CallFormat | None = None
    names: frozenset[str] = frozenset()
    """The functions that may be called."""


class ChatOutput:
    """The deltas of one choice. `new_id` gives the 24 characters that make a call's id unique."""

    def __init__(self, output: OutputFormat, new_id: Callable[[], str]) -> None:
        self._splitter = (
            ReasoningSplitter(output.reasoning, inside=output.inside, keep=not output.split)
            if output.reasoning
            else None
        )
        self._split = output.split
        self._calls = _Calls(output.calls, Reading(output.names, new_id)) if output.calls else None

    @property
    def called(self) -> bool:
        """A tool call is in the answer, complete or begun."""
        return self._calls is not None and self._calls.reading.count > 0

    @property
    def in_call(self) -> bool:
        """A call has begun that is not complete."""
        return self._calls is not None and self._calls.reading.open

    def feed(self, text: str) -> list[Delta]:
        """What the text adds to the answer; what may yet become a mark is held back."""
        if self._splitter is None:
            return self._content(text)
        deltas: list[Delta] = []
        for piece in self._splitter.feed(text):
            deltas += self._reasoning(piece.text) if piece.reasoning else self._content(piece.text)
        return deltas

    def finish(self) -> list[Delta]:
        """What is still held, once the text has ended."""
        deltas: list[Delta] = []
        for piece in self._splitter.finish() if self._splitter else ():
            deltas += self._reasoning(piece.text) if piece.reasoning else self._content(piece.text)
        if self._calls:
            deltas += self._calls.finish()
        return deltas

    def _content(self, text: str) -> list[Delta]:
        if self._calls:
            return self._calls.feed(text)
        return [Content(text)] if text else []

    def _reasoning(self, text: str) -> list[Delta]:
        return [Reasoning(text) if self._split else Content(text)]


@define(eq=False)
class _Calls:
    """Tells calls from content."""

    form: CallFormat
    reading: Reading
    _reader: Reader | None = field(default=None, init=False)
    _beginning: bool = field(init=False)
    """A call may begin without a mark: only white space has come."""
    _finder: MarkFinder | None = field(init=False)
    _trimmer: Trimmer = field(factory=lambda: Trimmer(trimming=False), init=False)
    _told: int = field(default=0, init=False)
    """Calls that were told of before the reader of now began."""

    @_beginning.default
    def _may_be_bare(self) -> bool:
        return self.form.bare

    @_finder.default
    def _find_mark(self) -> MarkFinder | None:
        return MarkFinder(self.form.mark) if self.form.mark else None

    def feed(self, text: str) -> list[Delta]:
        deltas: list[Delta] = []
        while text:
            text = self._outside(text, deltas) if self._reader is None else self._inside(self._reader, text, deltas)
        return deltas

    def finish(self) -> list[Delta]:
        deltas: list[Delta] = []
        if self._reader is not None:
            self._leave(deltas)
        rest = self._finder.flush() if self._finder else ""
        deltas += _content(self._trimmer.feed(rest) + self._trimmer.flush())
        return deltas

    def _outside(self, text: str, deltas: list[Delta]) -> str:
        """Pass content on up to a call; return the text from there."""
        if self._beginning and (body := text.lstrip(SPACE)):
            self._beginning = False
            if body[0] == "{":
                self._trimmer.feed(text[: len(text) - len(body)])
                self._begin("")
                return body
        before, after = self._finder.feed(text) if self._finder else (text, None)
        deltas += _content(self._trimmer.feed(before))
        if after is None:
            return ""
        self._begin(self.form.mark)
        return after

    def _inside(self, reader: Reader, text: str, deltas: list[Delta]) -> str:
        """Give the text to the reader; return what it doesn't want."""
        reading = self.reading
        for place, char in enumerate(text):
            try:
                reader.send(char)
            except StopIteration as stop:
                self._leave(deltas)
                return str(stop.value) + text[place:]
            except Malformed:
                self._leave(deltas)
                return text[place:]
            if not reading.open and not reading.settled:
                reading.raw.append(char)
            reading.settled = False
        deltas += reading.take()
        return ""

    def _begin(self, mark: str) -> None:
        self.reading.raw = [mark]
        self._reader = self.form.read(self.reading)
        next(self._reader)

    def _leave(self, deltas: list[Delta]) -> None:
        """The reader is done. What it has eaten though it was no call is content."""
        self._reader = None
        deltas += self.reading.take()
        if self.reading.count > self._told:
            self._told = self.reading.count
            self._trimmer.cut()
        deltas += _content(self._trimmer.feed("".join(self.reading.raw)))


def _content(text: str) -> Iterable[Delta]:
    return [Content(text)] if text else []
