"""`POST /v1/completions`: request bodies in, answer bodies and stream events out. Knows no HTTP and no engine."""

from collections.abc import Iterator, Sequence
from functools import cache
from json.encoder import encode_basestring_ascii
from typing import Annotated, Any, NewType

from attrs import define, field, frozen
from cattrs import Converter

from ..types import FinishReason, Generation, Sampling, Segment, Usage
from . import sse
from .convert import BadValue, Fault, Hook, Range, read_object, strict_converter, structure, valid_text
from .render import compact
from .unbuilt import unbuilt_faults

DEFAULT_MAX_TOKENS = 16  # OpenAI's reference
MAX_STOPS = 16

_Prompt = NewType("_Prompt", str)
_MaxTokens = NewType("_MaxTokens", int)
_Stop = NewType("_Stop", str)
_Stops = NewType("_Stops", tuple[str, ...])


@frozen
class RequestLimits:
    """What the server's settings allow one request."""

    max_tokens: int
    """New tokens."""
    max_prompt_chars: int


@frozen
class CompletionCall:
    """A valid request and how its answer is to be sent."""

    generation: Generation
    stream: bool
    include_usage: bool
    """The stream ends with a usage chunk."""


@frozen
class _StreamOptions:
    include_usage: bool = False


@frozen
class _Body:
    """The fields that are honoured. Defaults are OpenAI's."""

    prompt: _Prompt
    model: str | None = None
    max_tokens: _MaxTokens = _MaxTokens(DEFAULT_MAX_TOKENS)
    temperature: Annotated[float, Range(0, 2)] = 1.0
    top_p: Annotated[float, Range(0, 1)] = 1.0
    seed: int | None = None
    stop: _Stops = _Stops(())
    stream: bool = False
    stream_options: _StreamOptions = _StreamOptions()


def parse_completion(body: bytes, limits: RequestLimits) -> CompletionCall:
    """Read a request body. Of duplicate keys the last one counts; `model` is ignored; without `max_tokens` it is 16.

    Raises InvalidRequest that names every bad field, and nothing else, whatever the bytes are.
    """
    fields = read_object(body)
    also = [*_stream_faults(fields), *unbuilt_faults(fields)]
    asked = structure(_converter(limits), fields, _Body, also)
    generation = Generation(
        prompt=(Segment(asked.prompt, parse_special=True),),
        max_tokens=min(asked.max_tokens, limits.max_tokens),
        sampling=Sampling(temperature=asked.temperature, top_p=asked.top_p, seed=asked.seed),
        stop=asked.stop,
    )
    return CompletionCall(generation, asked.stream, asked.stream_options.include_usage)


def _stream_faults(fields: dict[str, Any]) -> Iterator[Fault]:
    if fields.get("stream_options") is not None and not fields.get("stream"):
        yield Fault("stream_options", "is only allowed together with stream: true")


@cache
def _converter(limits: RequestLimits) -> Converter:
    converter = strict_converter()
    converter.register_structure_hook(_Prompt, _prompt_hook(limits.max_prompt_chars))
    converter.register_structure_hook(_MaxTokens, _max_tokens_hook(limits.max_tokens))
    converter.register_structure_hook(_Stop, _stop)
    converter.register_structure_hook(_Stops, lambda value, _: _stops(value, converter))
    return converter


def _prompt_hook(limit: int) -> Hook:
    def hook(value: Any, _: Any) -> str:
        if isinstance(value, list):
            raise BadValue("must be one string: lists of prompts and token ids are not supported here yet")
        prompt = valid_text(value)
        if len(prompt) > limit:
            raise BadValue(f"has {len(prompt)} characters, more than this server's limit of {limit}")
        return prompt

    return hook


def _max_tokens_hook(limit: int) -> Hook:
    def hook(value: Any, _: Any) -> int:
        if type(value) is int and limit < value <= Range().high:
            raise BadValue(f"{value} is more than this server's limit of {limit}")
        if type(value) is not int or not 1 <= value <= limit:
            raise BadValue(f"must be a whole number from 1 to {limit}, or omit the field for the default")
        return value

    return hook


def _stop(value: Any, _: Any) -> str:
    if value == "":
        raise BadValue("must not be empty")
    return valid_text(value)


def _stops(value: Any, converter: Converter) -> tuple[str, ...]:
    """One string or a list of them. An empty string alone stands for none: a form field left blank."""
    if isinstance(value, str):
        return (valid_text(value),) if value else ()
    if not isinstance(value, list) or len(value) > MAX_STOPS:
        raise BadValue(f"must be a string or a list of at most {MAX_STOPS} strings")
    return converter.structure(value, tuple[_Stop, ...])


@frozen
class CompletionHead:
    """What every chunk of an answer repeats."""

    id: str
    created: int
    """Unix time in seconds."""
    model: str


def completion_body(head: CompletionHead, text: str, reason: FinishReason, usage: Usage) -> bytes:
    """The whole answer to a request that isn't streamed."""
    return compact({**_object(head, [_choice(text, reason)]), "usage": _usage(usage)}).encode("ascii")


@define(eq=False)
class CompletionStream:
    """Renders the events of one streamed answer.

    Only the text is escaped for each event; what is around it is rendered once.
    """

    _head: CompletionHead
    _include_usage: bool
    _before: str = field(init=False)
    _after: str = field(init=False)

    def __attrs_post_init__(self) -> None:
        # After the text there are only nulls and numbers, so its empty string is the last one.
        self._before, _, self._after = self._event("", None).decode("ascii").rpartition('""')

    def events(self, pieces: Sequence[str]) -> bytes:
        """One event for each piece, joined for one write."""
        if not pieces:
            return b""
        texts = map(encode_basestring_ascii, pieces)
        return (self._before + (self._after + self._before).join(texts) + self._after).encode("ascii")

    def end(self, reason: FinishReason, usage: Usage) -> bytes:
        """An event that says why the text ended and has none, one with the usage if it was asked for, and `DONE`."""
        asked = {**_object(self._head, []), "usage": _usage(usage)}
        return self._event("", reason) + (sse.event(compact(asked)) if self._include_usage else b"") + sse.DONE

    def _event(self, text: str, reason: FinishReason | None) -> bytes:
        chunk = _object(self._head, [_choice(text, reason)])
        return sse.event(compact({**chunk, "usage": None} if self._include_usage else chunk))


def _object(head: CompletionHead, choices: list[dict[str, object]]) -> dict[str, object]:
    return {
        "id": head.id,
        "object": "text_completion",
        "created": head.created,
        "model": head.model,
        "choices": choices,
    }


def _choice(text: str, reason: FinishReason | None) -> dict[str, object]:
    return {"index": 0, "text": text, "logprobs": None, "finish_reason": reason}


def _usage(usage: Usage) -> dict[str, object]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }
