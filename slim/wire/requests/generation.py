"""The fields of a request for text that every endpoint shares, and the rules between them. Knows no endpoint."""

from collections.abc import Iterator
from typing import Annotated, Any

from attrs import frozen

from ...types import Generation, Prompt
from ..convert import (
    ID_LIST,
    INT32,
    TEXT_LIST,
    BadValue,
    Fault,
    Range,
    Reader,
    read_ids,
    read_texts,
    valid_text,
)
from .call import RequestLimits
from .form import FormFields, form, form_faults
from .sampling import SamplingFields, disagreements, first, sampling, sampling_faults

MAX_STOPS = 16  # OpenAI's 4 are too few for common evaluation tasks
MAX_STOP_CHARACTERS = 1000
MAX_STOP_TOKENS = 256

_LENGTHS = ("max_tokens", "max_completion_tokens", "n_predict")


def _length(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= Range().high:
        raise BadValue("must be a whole number from 1 up, or omit the field for the default")
    return value


def _stops(value: Any) -> tuple[str, ...]:
    """One string or a list of them. An empty string alone stands for none: a form field left blank."""
    if isinstance(value, str):
        return (_stop(valid_text(value), ""),) if value else ()
    if not isinstance(value, list) or len(value) > MAX_STOPS:
        raise BadValue(f"must be a string or a list of at most {MAX_STOPS} strings")
    return tuple(_stop(text, f"[{place}]") for place, text in enumerate(read_texts(value)))


def _stop(text: str, at: str) -> str:
    if len(text) > MAX_STOP_CHARACTERS:
        raise BadValue(f"must have at most {MAX_STOP_CHARACTERS:,} characters", at)
    return text


def _stop_tokens(value: Any) -> frozenset[int]:
    if not isinstance(value, list) or len(value) > MAX_STOP_TOKENS:
        raise BadValue(f"must be a list of at most {MAX_STOP_TOKENS} token ids")
    return frozenset(read_ids(value))


LENGTH = Reader(_length, {"type": "integer", "minimum": 0})
STOPS = Reader(
    _stops,
    {
        "anyOf": [
            {"type": "string", "maxLength": MAX_STOP_CHARACTERS},
            {
                **TEXT_LIST,
                "maxItems": MAX_STOPS,
                "items": {**TEXT_LIST["items"], "maxLength": MAX_STOP_CHARACTERS},
            },
        ]
    },
)
STOP_TOKENS = Reader(_stop_tokens, {**ID_LIST, "maxItems": MAX_STOP_TOKENS})


@frozen(kw_only=True)
class StreamOptions:
    """What else a stream carries."""

    include_usage: Annotated[bool, "A last chunk without choices has the usage."] = False
    continuous_usage_stats: Annotated[bool, "Not supported: false."] = False


@frozen(kw_only=True, slots=False)
class GenerationFields(SamplingFields, FormFields):
    """The part of a body that every endpoint has."""

    model: Annotated[str | None, "Any name: one model is served."] = None
    max_tokens: Annotated[int | None, LENGTH, "New tokens at most. The context may cut it."] = None
    max_completion_tokens: Annotated[int | None, LENGTH, "OpenAI's newer name of `max_tokens`."] = None
    n_predict: Annotated[int | None, LENGTH, "llama.cpp's name of `max_tokens`."] = None
    min_tokens: Annotated[int, Range(0, INT32), "No end-of-generation token before so many."] = 0
    ignore_eos: Annotated[bool, "End-of-generation tokens never come."] = False
    stop: Annotated[tuple[str, ...], STOPS, "Texts that end the answer; they are not part of it."] = ()
    stop_token_ids: Annotated[frozenset[int], STOP_TOKENS, "Tokens that end the answer like the model's own."] = (
        frozenset()
    )
    n: Annotated[int, Range(1, INT32), "Answers to each prompt."] = 1
    stream: Annotated[bool, "Send server-sent events."] = False
    stream_options: Annotated[StreamOptions, "Only with `stream`."] = StreamOptions()
    cache_prompt: Annotated[bool, "May share computed prompts with other requests of the key."] = True
    return_progress: Annotated[bool, "The stream tells how far queue and prompt are. Only with `stream`."] = False


def asked_length(asked: GenerationFields) -> tuple[str, int | None]:
    """How many new tokens, under which name; None when nothing was said."""
    return first(asked, *_LENGTHS)


def generation_faults(
    asked: GenerationFields, limits: RequestLimits, max_tokens: int, prompts: int = 1
) -> Iterator[Fault]:
    """What is wrong between the fields of a body for so many prompts and, as it is understood, `max_tokens`."""
    yield from sampling_faults(asked)
    yield from form_faults(asked)
    yield from disagreements(asked, *_LENGTHS)
    if asked.min_tokens > max_tokens:
        yield Fault("min_tokens", f"is more than max_tokens, which is {max_tokens}")
    if prompts > limits.places:
        yield Fault("prompt", f"has {prompts} prompts, more than the {limits.places} answers this server can work on")
    elif asked.n * prompts > limits.places:
        each = f" for each of {prompts} prompts" if prompts > 1 else ""
        yield Fault("n", f"{asked.n}{each} is more than the {limits.places} answers this server can work on")
    if not asked.stream and asked.stream_options != StreamOptions():
        yield Fault("stream_options", "is only allowed together with stream: true")
    if not asked.stream and asked.return_progress:
        yield Fault("return_progress", "is only allowed together with stream: true")
    if asked.stream_options.continuous_usage_stats:
        yield Fault("stream_options.continuous_usage_stats", "is not supported here: omit it or send false")


def generation(
    asked: GenerationFields, prompt: Prompt, param: str, max_tokens: int, logprobs: int | None, echo: bool
) -> Generation:
    """The record of a body in which no fault was found. `param` is the field that the prompt came from."""
    return Generation(
        prompt=prompt,
        max_tokens=max_tokens,
        sampling=sampling(asked),
        stop=asked.stop,
        choices=asked.n,
        min_tokens=asked.min_tokens,
        ignore_eos=asked.ignore_eos,
        stop_token_ids=asked.stop_token_ids,
        logprobs=logprobs,
        echo=echo,
        grammar=form(asked),
        progress=asked.return_progress,
        cache_prompt=asked.cache_prompt,
        param=param,
    )
