"""The body of `POST /v1/completions`. Knows no HTTP and no engine."""

from collections.abc import Iterator
from typing import Annotated, Any

from attrs import frozen

from ...types import Segment
from ..convert import (
    ID_LIST,
    BadValue,
    Fault,
    Range,
    Reader,
    length_faults,
    read_ids,
    read_object,
    refuse,
    strict_converter,
    structure,
    valid_text,
)
from .call import Call, RequestLimits
from .generation import GenerationFields, asked_length, generation, generation_faults
from .unbuilt import COMPLETION_FIELDS, unbuilt_faults

DEFAULT_MAX_TOKENS = 16  # OpenAI's reference
MAX_LOGPROBS = 20  # vLLM's bound, and OpenAI's for chat; OpenAI's own for completions is 5

TextOrIds = str | tuple[int, ...]


def _prompts(value: Any) -> tuple[TextOrIds, ...]:
    """A text, a list of texts, a list of token ids, or a list of such lists."""
    if isinstance(value, str):
        return (valid_text(value),)
    if not isinstance(value, list) or not value:
        raise BadValue(
            "must be a string, or a list that is not empty: of strings, of token ids or of lists of token ids"
        )
    if isinstance(value[0], int | float):
        return (_ids(value, ""),)
    if isinstance(value[0], list):
        return tuple(_ids(ids, f"[{place}]") for place, ids in enumerate(value))
    return tuple(_text(text, f"[{place}]") for place, text in enumerate(value))


def _text(value: Any, at: str) -> str:
    try:
        return valid_text(value)
    except BadValue as error:
        raise BadValue(f"{error}, like the first one" if at != "[0]" else str(error), at) from None


def _ids(value: Any, at: str) -> tuple[int, ...]:
    if not isinstance(value, list) or not value:
        raise BadValue("must be a list of token ids that is not empty", at)
    return read_ids(value, at)


_IDS = {**ID_LIST, "minItems": 1}
PROMPTS = Reader(
    _prompts,
    {
        "anyOf": [
            {"type": "string"},
            {"type": "array", "items": {"type": "string"}, "minItems": 1},
            _IDS,
            {"type": "array", "items": _IDS, "minItems": 1},
        ]
    },
)


def prompt_path(field: str, place: int, count: int) -> str:
    """The name of one of so many prompts of a field, for errors."""
    return field if count == 1 else f"{field}[{place}]"


def prompt_faults(path: str, prompt: TextOrIds, limit: int) -> Iterator[Fault]:
    """A fault where the prompt is longer than the server's settings allow."""
    return length_faults(path, len(prompt), limit, "characters" if isinstance(prompt, str) else "token ids")


@frozen(kw_only=True, slots=False)
class CompletionBody(GenerationFields):
    """The fields that are honoured. Defaults are OpenAI's; without `max_tokens` it is 16."""

    prompt: Annotated[
        tuple[TextOrIds, ...], PROMPTS, "Text, in which control tokens are parsed, or token ids, used as they are."
    ]
    echo: Annotated[bool, "The answer begins with the prompt."] = False
    logprobs: Annotated[int | None, Range(0, MAX_LOGPROBS), "Score each token, and so many of the likeliest."] = None


_CONVERTER = strict_converter()


def parse_completion(body: bytes, limits: RequestLimits) -> Call:
    """Read a request body. Of duplicate keys the last one counts; `model` is ignored.

    Raises InvalidRequest that names every field which is wrong by itself or, when there is none, every one that is
    wrong beside the others or for this server; and nothing else, whatever the bytes are.
    """
    fields = read_object(body)
    asked = structure(_CONVERTER, fields, CompletionBody, unbuilt_faults(fields, COMPLETION_FIELDS))
    wanted = asked_length(asked)[1]
    max_tokens = min(DEFAULT_MAX_TOKENS, limits.max_tokens) if wanted is None else wanted
    refuse(_faults(asked, limits, max_tokens))
    return Call(
        generations=tuple(
            generation(
                asked,
                (Segment(prompt, parse_special=True),) if isinstance(prompt, str) else prompt,
                prompt_path("prompt", place, len(asked.prompt)),
                max_tokens,
                asked.logprobs,
                asked.echo,
            )
            for place, prompt in enumerate(asked.prompt)
        ),
        stream=asked.stream,
        include_usage=asked.stream_options.include_usage,
        scored=asked.logprobs is not None,
    )


def _faults(asked: CompletionBody, limits: RequestLimits, max_tokens: int) -> Iterator[Fault]:
    for place, prompt in enumerate(asked.prompt):
        path = prompt_path("prompt", place, len(asked.prompt))
        yield from prompt_faults(path, prompt, limits.max_prompt_chars)
    name, _ = asked_length(asked)
    if max_tokens > limits.max_tokens:
        yield Fault(name, f"{max_tokens} is more than this server's limit of {limits.max_tokens}")
    if max_tokens == 0 and not asked.echo:
        yield Fault(name, "0 is only allowed together with echo: true; omit the field for the default")
    yield from generation_faults(asked, limits, max_tokens, len(asked.prompt))
