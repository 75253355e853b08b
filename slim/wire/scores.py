"""Log-probabilities in OpenAI's two shapes. Knows no endpoint's other fields.

A token's bytes need not be text: a character may be split over several tokens. The older shape shows such bytes as
`bytes:\\xf0\\x9f`, as OpenAI does; the chat shape has replacement characters and, beside them, the exact bytes.
"""

from codecs import getincrementaldecoder
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

from attrs import define, field

from ..types import TokenScore

LEAST = -9999.0
"""OpenAI's number for a token that can't come. JSON has no infinity."""

_Decoder = getincrementaldecoder("utf-8")


def chat_logprobs(scores: Iterable[TokenScore]) -> dict[str, Any]:
    """The `logprobs` of a chat choice."""
    return {"content": [_chat_token(score) for score in scores], "refusal": None}


def _chat_token(score: TokenScore) -> dict[str, Any]:
    likeliest = [_chat_entry(data, logprob) for data, logprob in score.top]
    return {**_chat_entry(score.data, score.logprob), "top_logprobs": likeliest}


def _chat_entry(data: bytes, logprob: float | None) -> dict[str, Any]:
    return {"token": data.decode("utf-8", "replace"), "logprob": _number(logprob), "bytes": list(data)}


@define(eq=False)
class TextLogprobs:
    """Makes the `logprobs` of one completion choice, part by part, and knows where in its text each token begins."""

    _length: int = field(default=0, init=False)
    """Characters of the text so far."""
    _ahead: str = field(default="", init=False)
    """Text of scored tokens that has not come yet: a stop string may hold it back."""
    _decoder: Any = field(factory=lambda: _Decoder("replace"), init=False)

    def part(self, text: str, scores: Sequence[TokenScore]) -> dict[str, Any]:
        """The next piece of the text with the tokens that belong to it."""
        return {
            "tokens": [_token(score.data) for score in scores],
            "token_logprobs": [None if score.logprob is None else _number(score.logprob) for score in scores],
            "top_logprobs": [_likeliest(score) for score in scores],
            "text_offset": self._offsets(text, scores),
        }

    def whole(self, pieces: Sequence[str], scores: Sequence[Sequence[TokenScore]]) -> dict[str, Any]:
        """All parts as one: the same numbers as in a stream."""
        parts = list(map(self.part, pieces, scores)) or [self.part("", ())]
        return {name: list(chain.from_iterable(part[name] for part in parts)) for name in parts[0]}

    def _offsets(self, text: str, scores: Sequence[TokenScore]) -> list[int]:
        """In characters. A token that is no text takes no room, nor does one of the prompt that its text hasn't."""
        ahead = self._ahead if text.startswith(self._ahead) or self._ahead.startswith(text) else ""
        place = len(ahead)
        beyond = [ahead]
        offsets = []
        for score in scores:
            offsets.append(self._length + place)
            token = self._decoder.decode(score.data) if score.is_text else ""
            if text.startswith(token, place) or token.startswith(text[place:]):
                place += len(token)
                beyond.append(token)
        self._length += len(text)
        self._ahead = "".join(beyond)[len(text) :]
        return offsets


def _token(data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def _likeliest(score: TokenScore) -> dict[str, float] | None:
    """The chosen token is among them. Of several tokens with one text the likeliest counts."""
    if score.logprob is None:
        return None
    entries: dict[str, float] = {}
    for data, logprob in (*score.top, (score.data, score.logprob)):
        token = _token(data)
        entries[token] = max(entries.get(token, LEAST), _number(logprob))
    return entries


def _number(logprob: float | None) -> float:
    """Above `LEAST` as it is; infinities, NaN and nothing at all become `LEAST`."""
    return logprob if logprob is not None and logprob > LEAST else LEAST
