"""Readers of tool calls: generators that are sent the model's text, one character at a time.

A reader sees each character in `Reading.char` before it decides whether it is its own; the one that made it stop is not
eaten. It returns the text that it has eaten of a closing mark which then was none. It raises Malformed as long as the
call has not been told of; afterwards everything up to the call's end is passed on as it is.
"""

import json
from collections.abc import Callable, Generator

from attrs import define, field

from ..answer import CallArguments, CallStart, Delta
from .scanning import SPACE

NAME = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")

ARGUMENTS = ("arguments", "parameters")

Step = Generator[None, str, None]
Reader = Generator[None, str, str]


class Malformed(Exception):
    """The text is no call."""


@define(eq=False)
class Reading:
    """What readers share: the current character, and where calls are told of."""

    names: frozenset[str]
    """The functions that may be called."""
    new_id: Callable[[], str]
    char: str = field(default="", init=False)
    open: bool = field(default=False, init=False)
    """A call was told of and its end wasn't."""
    count: int = field(default=0, init=False)
    """Calls told of."""
    raw: list[str] = field(factory=list, init=False)
    """What was eaten and may yet turn out to be no call."""
    settled: bool = field(default=False, init=False)
    """The current character belongs to what was told of, whatever follows."""
    _deltas: list[Delta] = field(factory=list, init=False)
    _arguments: list[str] = field(factory=list, init=False)

    def next(self) -> Step:
        """Wait for the next character."""
        self.char = yield

    def space(self) -> Step:
        """Go on to the first character that is no white space."""
        while self.char in SPACE:
            yield from self.next()

    def eat(self, text: str) -> Reader:
        """Go past the text; return what was eaten of it when something else comes."""
        for place, char in enumerate(text):
            if self.char != char:
                return text[:place]
            yield from self.settle()
        return ""

    def settle(self) -> Step:
        """Go past a character that is surely the call's."""
        self.settled = True
        self.raw.clear()
        yield from self.next()

    def need(self, text: str) -> Step:
        """Go past the text. Raises Malformed when something else comes."""
        for char in text:
            if self.char != char:
                raise Malformed
            yield from self.next()

    def name(self) -> Generator[None, str, str]:
        """Read a function's name that stands without quotes."""
        chars = []
        while self.char in NAME:
            chars.append(self.char)
            yield from self.next()
        return self.known("".join(chars))

    def known(self, name: str) -> str:
        """The name of a function that may be called. Raises Malformed for any other."""
        if name not in self.names:
            raise Malformed
        return name

    def begin(self, name: str) -> None:
        """Tell of a call."""
        self._deltas.append(CallStart(self.count, f"call_{self.new_id()}", name))
        self.count += 1
        self.open = True
        self.raw.clear()

    def argue(self, text: str) -> None:
        """Pass on more of its arguments."""
        self._arguments.append(text)

    def end(self) -> None:
        """Its arguments are complete."""
        self._flush()
        self.open = False

    def take(self) -> list[Delta]:
        """What was told since the last time."""
        self._flush()
        deltas, self._deltas = self._deltas, []
        return deltas

    def _flush(self) -> None:
        if self._arguments:
            self._deltas.append(CallArguments(self.count - 1, "".join(self._arguments)))
            self._arguments = []


def read_call(reading: Reading, *, strict: bool = False) -> Step:
    """One object with `name` and `arguments` (or `parameters`); what else is in it is skipped.

    When `strict` the name comes first and the arguments second.
    """
    name = held = None
    done = False
    yield from reading.need("{")
    yield from reading.space()
    while reading.char != "}":
        key = yield from read_text(reading)
        yield from reading.space()
        yield from reading.need(":")
        yield from reading.space()
        if strict and not done and key not in (("name",) if name is None else ARGUMENTS):
            raise Malformed
        if key == "name" and name is None:
            name = reading.known((yield from read_text(reading)))
            if held is not None:
                done = _tell(reading, name, held)
        elif key in ARGUMENTS and not done and held is None:
            held = yield from read_arguments(reading, name)
            done = name is not None
        else:
            yield from read_value(reading, _ignore)
        yield from reading.space()
        if reading.char == ",":
            yield from reading.next()
            yield from reading.space()
        elif reading.char != "}":
            break
    if not done:
        if name is None or strict or reading.char != "}":
            raise Malformed
        _tell(reading, name, "{}")
    if reading.char == "}":
        yield from reading.settle()


def _tell(reading: Reading, name: str, arguments: str) -> bool:
    reading.begin(name)
    reading.argue(arguments)
    reading.end()
    return True


def read_arguments(reading: Reading, name: str | None) -> Generator[None, str, str]:
    """An object, or a string that holds one. It is passed on as it comes when the name is known, else returned."""
    held: list[str] = []
    if reading.char == '"':
        text = yield from read_text(reading)
        if not _is_object(text):
            raise Malformed
        if name is not None:
            _tell(reading, name, text)
        return text
    if reading.char != "{":
        raise Malformed
    if name is None:
        yield from read_value(reading, held.append)
    else:
        reading.begin(name)
        yield from read_value(reading, reading.argue)
        reading.end()
    return "".join(held)


def read_value(reading: Reading, put: Callable[[str], None]) -> Step:
    """One JSON value, character by character to `put`. Only its strings and brackets are looked at."""
    depth = 0
    while True:
        char = reading.char
        if char == '"':
            yield from _read_string(reading, put)
        else:
            if char in "{[":
                depth += 1
            elif char in "}]":
                if depth == 0:
                    return
                depth -= 1
            elif depth == 0 and char == ",":
                return
            put(char)
            yield from reading.next()
        if depth == 0 and char in '}]"':
            return


def _read_string(reading: Reading, put: Callable[[str], None]) -> Step:
    """A JSON string, with its quotes."""
    escaped = False
    put(reading.char)
    yield from reading.next()
    while escaped or reading.char != '"':
        escaped = not escaped and reading.char == "\\"
        put(reading.char)
        yield from reading.next()
    put(reading.char)
    yield from reading.next()


def read_text(reading: Reading) -> Generator[None, str, str]:
    """The text that a JSON string stands for. Raises Malformed when it is none."""
    chars: list[str] = []
    if reading.char != '"':
        raise Malformed
    yield from _read_string(reading, chars.append)
    try:
        text = json.loads("".join(chars), strict=False)
    except ValueError:
        raise Malformed from None
    return str(text)


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def _ignore(_: str) -> None:
    pass
