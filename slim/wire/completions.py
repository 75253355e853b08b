"""The answers of `POST /v1/completions`: text in OpenAI's older shape. Knows no HTTP and no engine."""

from collections.abc import Sequence
from itertools import count
from json.encoder import encode_basestring_ascii
from typing import Any

from attrs import define, field, frozen

from ..answer import PromptProgress, Timings
from ..types import TokenScore, Usage
from .answers import Frame, Head, progress_object, timings_object
from .scores import TextLogprobs

_OBJECT = "text_completion"


@frozen
class TextChoice:
    """One whole answer."""

    pieces: Sequence[str]
    scores: Sequence[Sequence[TokenScore]] | None
    """Of each piece, as they came together; None when they weren't asked for."""
    reason: str


def completion_body(head: Head, choices: Sequence[TextChoice], usage: Usage, timings: Timings) -> bytes:
    """The answer to a request that isn't streamed. A choice's place is its index."""
    return Frame(head, _OBJECT).whole(map(_whole_choice, count(), choices), usage, timings)


def _whole_choice(index: int, choice: TextChoice) -> dict[str, Any]:
    logprobs = None if choice.scores is None else TextLogprobs().whole(choice.pieces, choice.scores)
    return _choice(index, "".join(choice.pieces), choice.reason, logprobs)


@define(eq=False, init=False)
class CompletionStream:
    """Renders the events of one streamed answer. Each choice has exactly one `end`, the stream one `close`.

    Without scores only the text is escaped for each event; what is around it is rendered once for each choice.
    """

    _frame: Frame
    _scored: bool
    _around: dict[int, tuple[str, str]] = field(factory=dict)
    _logprobs: dict[int, TextLogprobs] = field(factory=dict)

    def __init__(self, head: Head, include_usage: bool, scored: bool) -> None:
        self.__attrs_init__(Frame(head, _OBJECT, include_usage), scored)

    def events(self, index: int, pieces: Sequence[str], scores: Sequence[Sequence[TokenScore]]) -> bytes:
        """One event for each piece, joined for one write. `scores` are those of each piece, or empty when unasked."""
        if self._scored and scores:
            return b"".join(map(self._scored_event, [index] * len(pieces), pieces, scores))
        if not pieces:
            return b""
        before, after = self._around.get(index) or self._render_around(index)
        texts = map(encode_basestring_ascii, pieces)
        return (before + (after + before).join(texts) + after).encode("ascii")

    def progress(self, index: int, progress: PromptProgress) -> bytes:
        """An event without text: how far the queue and the prompt are."""
        return self._frame.chunk(_choice(index, ""), prompt_progress=progress_object(progress))

    def end(self, index: int, reason: str, timings: Timings) -> bytes:
        """An event that says why the choice ended and has no text."""
        return self._frame.chunk(_choice(index, "", reason), timings=timings_object(timings))

    def close(self, usage: Usage) -> bytes:
        """After the last choice's end: the usage if it was asked for, and `DONE`."""
        return self._frame.close(usage)

    def _render_around(self, index: int) -> tuple[str, str]:
        # After the text there are only nulls and numbers, so its empty string is the last one.
        before, _, after = self._frame.chunk(_choice(index, "")).decode("ascii").rpartition('""')
        self._around[index] = before, after
        return before, after

    def _scored_event(self, index: int, text: str, scores: Sequence[TokenScore]) -> bytes:
        logprobs = self._logprobs.setdefault(index, TextLogprobs())
        return self._frame.chunk(_choice(index, text, None, logprobs.part(text, scores)))


def _choice(index: int, text: str, reason: str | None = None, logprobs: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}
