"""Keeps control tokens that are written in a conversation from becoming control tokens. Knows no template.

Each one in a string, and the beginning of one at a string's end, is replaced by a placeholder before the template runs.
Afterwards the text is cut there: what stood in the conversation becomes a segment that is not parsed for control
tokens. The placeholders are digits, so they pass unchanged through JSON, trimming and changes of case. A template
that cuts a string at a fixed length may cut one: the text is then garbled, and still harmless.

One gap is left: a template that writes the beginning of a control token and then a string of the conversation. No
known template does that but with roles, which come from a fixed set.
"""

import re
import secrets
from collections.abc import Iterable, Iterator
from typing import Any

from attrs import define, field

from ..types import Segment

NONCE_DIGITS = 24
NUMBER_DIGITS = 6


class ControlTexts:
    """The control tokens of one model, made ready for finding them."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._texts = frozenset(text for text in texts if text)
        self._beginnings = frozenset(text[:end] for text in self._texts for end in range(1, len(text) + 1))
        firsts = {text[0] for text in self._texts}
        self._first = re.compile("|".join(map(re.escape, firsts)) or r"(?!)")

    def find(self, text: str) -> Iterator[tuple[int, int]]:
        """Start and end of each control token's text, then of the beginning of one at the end of `text`."""
        done = 0
        for candidate in self._first.finditer(text):
            start = candidate.start()
            if start < done:
                continue
            end = start + 1
            while end <= len(text) and text[start:end] in self._beginnings:
                if text[start:end] in self._texts:
                    done = end
                end += 1
            if start < done:
                yield start, done
            elif end > len(text):
                yield start, len(text)
                return


def _fresh_nonce() -> str:
    return str(secrets.randbelow(10**NONCE_DIGITS)).zfill(NONCE_DIGITS)


@define(eq=False)
class Marking:
    """The placeholders of one rendering. Nobody who wrote a message can know them."""

    controls: ControlTexts
    end: str = field(factory=_fresh_nonce, init=False)
    """A placeholder of its own, for the end of a message."""
    _nonce: str = field(factory=_fresh_nonce, init=False)
    _numbers: dict[str, int] = field(factory=dict, init=False)

    def guard(self, value: Any) -> Any:
        """A JSON value with placeholders in its strings and keys. Raises RecursionError when nested too deeply."""
        match value:
            case str():
                return self._guard(value)
            case dict():
                return {self.guard(key): self.guard(item) for key, item in value.items()}
            case list() | tuple():
                return [self.guard(item) for item in value]
        return value

    def segments(self, rendered: str) -> tuple[Segment, ...]:
        """The rendered text, cut at the placeholders. Never empty; one segment where there are none."""
        texts = list(self._numbers)
        pieces = re.split(f"{self._nonce}([0-9]{{{NUMBER_DIGITS}}})", rendered)
        found = [
            Segment(texts[int(piece)], False) if place % 2 else Segment(piece, True)
            for place, piece in enumerate(pieces)
            if piece
        ]
        return tuple(found) or (Segment("", True),)

    def _guard(self, text: str) -> str:
        pieces = []
        done = 0
        for start, end in self.controls.find(text):
            number = self._numbers.setdefault(text[start:end], len(self._numbers))
            pieces += [text[done:start], self._nonce, str(number).zfill(NUMBER_DIGITS)]
            done = end
        return "".join([*pieces, text[done:]]) if pieces else text
