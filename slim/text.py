"""From a token's bytes to the text a client may read: UTF-8 joining and stop strings. Pure: no engine, no HTTP.

Every generation has one assembler, so streamed and whole answers are the same text. A token's score comes out with the
text that the token begins, so that scores and text never disagree: what a stop string swallowed has none.
"""

import math
from codecs import utf_8_decode
from collections import deque
from collections.abc import Iterable

from attrs import define, field

from .types import TokenScore


@define(eq=False)
class Utf8Joiner:
    """Joins byte pieces into text. Holds an incomplete last character back, never more than 3 bytes.

    Bytes that can't become valid UTF-8 turn into U+FFFD; the next byte at the latest shows it.
    """

    _held: bytes = field(default=b"", init=False)

    def feed(self, data: bytes) -> str:
        if data.isascii() and not self._held:
            return data.decode("ascii")
        data = self._held + data
        text, used = utf_8_decode(data, "replace", False)
        self._held = data[used:]
        return text

    def flush(self) -> str:
        """What is still held, as U+FFFD."""
        text = self._held.decode("utf-8", "replace")
        self._held = b""
        return text


@define(eq=False)
class StopMatcher:
    """Lets text through up to the first stop string.

    The stop that is complete first wins; of several that end together, the longest. So the result does not depend
    on how the text was cut. What might become a stop is held back, and nothing else: the longest end of the text that
    is a proper prefix of some stop. No stop may be the empty string.
    """

    stops: tuple[str, ...]
    stopped: bool = field(default=False, init=False)
    """A stop was found. Nothing comes out any more."""
    _held: str = field(default="", init=False)
    _firsts: frozenset[str] = field(init=False)

    @_firsts.default
    def _first_characters(self) -> frozenset[str]:
        return frozenset(stop[0] for stop in self.stops)

    def feed(self, text: str) -> str:
        if self.stopped:
            return ""
        if not self._held and self._firsts.isdisjoint(text):  # most tokens, and all when there are no stops
            return text
        text = self._held + text
        start = self._match(text)
        if start is None:
            start = self._prefix(text)
            self._held = text[start:]
        else:
            self.stopped = True
            self._held = ""
        return text[:start]

    def flush(self) -> str:
        """What is still held: the text ended, so it is no stop."""
        text, self._held = self._held, ""
        return text

    def _match(self, text: str) -> int | None:
        """Where the winning stop begins, or None."""
        starts = ((text.find(stop), stop) for stop in self.stops)
        found = [(start + len(stop), start) for start, stop in starts if start >= 0]
        return min(found)[1] if found else None

    def _prefix(self, text: str) -> int:
        """Where the part begins that may yet become a stop. A start that was given up is never tried again."""
        for start in range(len(text)):
            tail = text[start:]
            for stop in self.stops:
                if stop.startswith(tail):
                    return start
        return len(text)


@define(eq=False, init=False)
class TextAssembler:
    """Token bytes in, text for the client out."""

    _joiner: Utf8Joiner
    _matcher: StopMatcher
    _decoded: int
    """Characters that the tokens have made."""
    _out: float
    """Characters that have been let out."""
    _scores: deque[tuple[int, TokenScore]]
    """With the place of each token's first character."""

    def __init__(self, stops: Iterable[str]) -> None:
        self._joiner = Utf8Joiner()
        self._matcher = StopMatcher(tuple(stops))
        self._decoded = 0
        self._out = 0
        self._scores = deque()

    @property
    def stopped(self) -> bool:
        """A stop string was reached: the generation is over."""
        return self._matcher.stopped

    def feed(self, data: bytes, score: TokenScore | None = None) -> str:
        if score is not None:
            self._scores.append((self._decoded, score))
        joined = self._joiner.feed(data)
        text = self._matcher.feed(joined)
        self._decoded += len(joined)
        self._out += len(text)
        return text

    def finish(self) -> str:
        """The last text, once the generation has ended. It may still complete a stop."""
        text = self._matcher.feed(self._joiner.flush()) + self._matcher.flush()
        self._out = self._out + len(text) if self.stopped else math.inf
        return text

    def take_scores(self) -> tuple[TokenScore, ...]:
        """The scores of the tokens whose text has begun to come out since the last call."""
        scores = []
        while self._scores and self._scores[0][0] < self._out:
            scores.append(self._scores.popleft()[1])
        return tuple(scores)
