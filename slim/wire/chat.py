"""The answers of `POST /v1/chat/completions`: messages, reasoning and tool calls. Knows no HTTP, template or engine."""

from collections.abc import Sequence
from itertools import count
from json.encoder import encode_basestring_ascii
from typing import Any

from attrs import define, evolve, field, frozen

from ..answer import CallArguments, CallStart, Content, Delta, PromptProgress, Reasoning, Timings
from ..types import TokenScore, Usage
from .answers import Frame, Head, progress_object, timings_object
from .scores import chat_logprobs

Text = Content | Reasoning | CallArguments
"""Deltas of which only the text is new."""

_WHOLE, _CHUNK = "chat.completion", "chat.completion.chunk"


@frozen
class ChatChoice:
    """One whole answer."""

    deltas: Sequence[Delta]
    scores: Sequence[TokenScore] | None
    """Of all its tokens, in order; None when they weren't asked for."""
    reason: str


def chat_body(head: Head, choices: Sequence[ChatChoice], usage: Usage, timings: Timings) -> bytes:
    """The answer to a request that isn't streamed. A choice's place is its index."""
    return Frame(head, _WHOLE).whole(map(_whole_choice, count(), choices), usage, timings)


def _whole_choice(index: int, choice: ChatChoice) -> dict[str, Any]:
    logprobs = None if choice.scores is None else chat_logprobs(choice.scores)
    message = _message(choice.deltas)
    return {"index": index, "message": message, "logprobs": logprobs, "finish_reason": choice.reason}


def _message(deltas: Sequence[Delta]) -> dict[str, Any]:
    """The deltas joined. Keys that strict clients don't expect empty are left out; `content` and `refusal` are not."""
    content = "".join(delta.text for delta in deltas if isinstance(delta, Content))
    reasoning = "".join(delta.text for delta in deltas if isinstance(delta, Reasoning))
    calls = [_call(start, deltas) for start in deltas if isinstance(start, CallStart)]
    message: dict[str, Any] = {"role": "assistant", "content": None if calls and not content else content}
    message["refusal"] = None
    if reasoning:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = calls
    return message


def _call(start: CallStart, deltas: Sequence[Delta]) -> dict[str, Any]:
    parts = (delta.text for delta in deltas if isinstance(delta, CallArguments) and delta.index == start.index)
    return {"id": start.id, "type": "function", "function": {"name": start.name, "arguments": "".join(parts)}}


@define(eq=False, init=False)
class ChatStream:
    """Renders the events of one streamed answer. Each choice has one `open` and one `end`, the stream one `close`.

    Without scores only the text is escaped for each event; what is around it is rendered once for each choice and kind.
    """

    _frame: Frame
    _scored: bool
    _around: dict[tuple[int, type[Text], int], tuple[str, str]] = field(factory=dict)

    def __init__(self, head: Head, include_usage: bool, scored: bool) -> None:
        self.__attrs_init__(Frame(head, _CHUNK, include_usage), scored)

    def open(self, index: int) -> bytes:
        """The first event of a choice: who speaks."""
        return self._frame.chunk(_choice(index, {"role": "assistant", "content": ""}))

    def events(self, index: int, deltas: Sequence[Delta], scores: Sequence[TokenScore]) -> bytes:
        """One event for each delta, joined for one write. All `scores` go with the first; alone, with an empty one."""
        if self._scored and scores:
            first = self._frame.chunk(_choice(index, _delta(deltas[0]) if deltas else {}, chat_logprobs(scores)))
            return first + b"".join(self._event(index, delta) for delta in deltas[1:])
        return b"".join([self._event(index, delta) for delta in deltas])

    def progress(self, index: int, progress: PromptProgress) -> bytes:
        """An event with an empty delta: how far the queue and the prompt are."""
        return self._frame.chunk(_choice(index, {}), prompt_progress=progress_object(progress))

    def end(self, index: int, reason: str, timings: Timings) -> bytes:
        """An event with an empty delta: why the choice ended."""
        return self._frame.chunk(_choice(index, {}, None, reason), timings=timings_object(timings))

    def close(self, usage: Usage) -> bytes:
        """After the last choice's end: the usage if it was asked for, and `DONE`."""
        return self._frame.close(usage)

    def _event(self, index: int, delta: Delta) -> bytes:
        if isinstance(delta, CallStart):
            return self._frame.chunk(_choice(index, _delta(delta)))
        key = index, type(delta), delta.index if isinstance(delta, CallArguments) else 0
        before, after = self._around.get(key) or self._render_around(index, delta, key)
        return (before + encode_basestring_ascii(delta.text) + after).encode("ascii")

    def _render_around(self, index: int, delta: Text, key: tuple[int, type[Text], int]) -> tuple[str, str]:
        # After the text there are only nulls and numbers, so its empty string is the last one.
        before, _, after = (
            self._frame.chunk(_choice(index, _delta(evolve(delta, text="")))).decode("ascii").rpartition('""')
        )
        self._around[key] = before, after
        return before, after


def _choice(
    index: int, delta: dict[str, Any], logprobs: dict[str, Any] | None = None, reason: str | None = None
) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}


def _delta(delta: Delta) -> dict[str, Any]:
    match delta:
        case Content(text):
            return {"content": text}
        case Reasoning(text):
            return {"reasoning_content": text}
        case CallStart(index, id, name):
            function = {"name": name, "arguments": ""}
            return {"tool_calls": [{"index": index, "id": id, "type": "function", "function": function}]}
        case CallArguments(index, text):
            return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}
