"""The fields that say how the next token is chosen, the same for every endpoint. Knows no endpoint.

OpenAI's names, and those that llama.cpp's server, vLLM and others share. Where one thing has two names, either does.
"""

import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from attrs import frozen

from ...types import Dry, Mirostat, Sampling, Xtc
from ..convert import INT32, BadValue, Fault, Range, Reader, is_text, is_token_id

MAX_BIASES = 4096  # the sampler looks at each of them for every token
MAX_BREAKERS, MAX_BREAKER_BYTES = 32, 40  # llama.cpp cuts longer ones
_ID = re.compile("0|[1-9][0-9]{0,9}")


def _logit_bias(value: Any) -> tuple[tuple[int, float], ...]:
    """OpenAI's object of ids as text, or the list of pairs that llama.cpp's server takes; false bans a token there."""
    if isinstance(value, dict):
        pairs: list[tuple[Any, Any]] = [(int(key) if _ID.fullmatch(key) else None, bias) for key, bias in value.items()]
    elif isinstance(value, list) and all(isinstance(pair, list) and len(pair) == 2 for pair in value):
        pairs = [(pair[0], pair[1]) for pair in value]
    else:
        raise BadValue("must be an object of token ids and numbers")
    if len(pairs) > MAX_BIASES:
        raise BadValue(f"must not have more than {MAX_BIASES} entries")
    biases: dict[int, float] = {}
    for token, bias in pairs:
        if not is_token_id(token):
            raise BadValue(
                "has a key that is no token id. You should only be submitting non-negative integers "
                f"up to {INT32}, without leading zeros"
            )
        if bias is False:
            bias = -100
        if type(bias) not in (int, float) or not (-100 <= bias <= 100):
            raise BadValue("must have numbers from -100 to 100 as values")
        if token in biases:
            raise BadValue(f"has token {token} twice")
        biases[token] = float(bias)
    return tuple(biases.items())


def _breakers(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or len(value) > MAX_BREAKERS:
        raise BadValue(f"must be a list of at most {MAX_BREAKERS} strings")
    for place, text in enumerate(value):
        if not is_text(text) or "\0" in text or len(text.encode()) > MAX_BREAKER_BYTES:
            raise BadValue(f"must be a string of 1 to {MAX_BREAKER_BYTES} bytes, none of them 0", f"[{place}]")
    return tuple(value)


LOGIT_BIAS = Reader(
    _logit_bias,
    {
        "anyOf": [
            {"type": "object", "additionalProperties": {"type": ["number", "boolean"]}},
            {"type": "array", "items": {"type": "array", "minItems": 2, "maxItems": 2}},
        ]
    },
)
BREAKERS = Reader(_breakers, {"type": "array", "maxItems": MAX_BREAKERS, "items": {"type": "string", "minLength": 1}})

_Penalty = Range(-2, 2)
_Share = Range(0, 1)
_Repeat = Range(0.01, 10)
_Length = Range(-1, INT32)


@frozen(kw_only=True, slots=False)
class SamplingFields:
    """A body's part. Defaults change nothing."""

    temperature: Annotated[float, Range(0, 2), "0 is greedy: always the likeliest token."] = 1.0
    top_p: Annotated[float, _Share, "Keep the likeliest tokens that together have this probability."] = 1.0
    top_k: Annotated[int, _Length, "Keep so many of the likeliest tokens. 0 or -1: all."] = 0
    min_p: Annotated[float, _Share, "Drop tokens less likely than this share of the likeliest."] = 0.0
    typical_p: Annotated[float, _Share, "Locally typical sampling. 1: off."] = 1.0
    presence_penalty: Annotated[float, _Penalty, "Subtracted once from the logit of a token of the output."] = 0.0
    frequency_penalty: Annotated[float, _Penalty, "Subtracted as often as the token is in the output."] = 0.0
    repeat_penalty: Annotated[
        float | None,
        _Repeat,
        "Divides positive logits of tokens of prompt and output, multiplies negative ones. 1: off.",
    ] = None
    repetition_penalty: Annotated[float | None, _Repeat, "Another name of `repeat_penalty`."] = None
    repeat_last_n: Annotated[int, _Length, "Tokens that `repeat_penalty` looks back. -1: all."] = -1
    logit_bias: Annotated[
        tuple[tuple[int, float], ...],
        LOGIT_BIAS,
        "Token ids as text, and what is added to their logits, -100 to 100. Or a list of pairs. false is -100.",
    ] = ()
    seed: Annotated[int | None, Range(), "Makes the draws repeatable. Each further choice takes the next one."] = None
    dry_multiplier: Annotated[float, Range(0, 100), "Strength of the DRY penalty on repeated sequences. 0: off."] = 0.0
    dry_base: Annotated[float, Range(1, 100), "Growth of that penalty with each further token."] = 1.75
    dry_allowed_length: Annotated[int, Range(0, INT32), "Tokens that may repeat unpunished."] = 2
    dry_penalty_last_n: Annotated[int, _Length, "Tokens that DRY looks back. -1: all."] = -1
    dry_sequence_breakers: Annotated[tuple[str, ...], BREAKERS, "Texts that end a sequence."] = ("\n", ":", '"', "*")
    xtc_probability: Annotated[float, _Share, "How often XTC drops all likely tokens but the least likely. 0: off."] = (
        0.0
    )
    xtc_threshold: Annotated[float, _Share, "What XTC counts as likely."] = 0.1
    mirostat: Annotated[Literal[0, 1, 2] | None, "Version of Mirostat, which replaces the other cuts. 0: off."] = None
    mirostat_mode: Annotated[Literal[0, 1, 2] | None, "Another name of `mirostat`."] = None
    mirostat_tau: Annotated[float, Range(0, 100), "The surprise that Mirostat aims at."] = 5.0
    mirostat_eta: Annotated[float, _Share, "How fast Mirostat corrects itself."] = 0.1


def sampling(asked: SamplingFields) -> Sampling:
    """What the fields ask for, once `sampling_faults` has found nothing."""
    return Sampling(
        temperature=asked.temperature,
        top_p=asked.top_p,
        top_k=max(asked.top_k, 0),
        min_p=asked.min_p,
        typical_p=asked.typical_p,
        presence_penalty=asked.presence_penalty,
        frequency_penalty=asked.frequency_penalty,
        repeat_penalty=first(asked, "repeat_penalty", "repetition_penalty")[1] or 1.0,
        repeat_last_n=asked.repeat_last_n,
        logit_bias=asked.logit_bias,
        seed=asked.seed,
        dry=_dry(asked),
        xtc=Xtc(asked.xtc_probability, asked.xtc_threshold) if asked.xtc_probability else None,
        mirostat=_mirostat(asked),
    )


def sampling_faults(asked: SamplingFields) -> Iterator[Fault]:
    """What is wrong between the fields."""
    yield from disagreements(asked, "repeat_penalty", "repetition_penalty")
    yield from disagreements(asked, "mirostat", "mirostat_mode")


def first(asked: object, *names: str) -> tuple[str, Any]:
    """Of several names for one thing, the one that was sent and its value; the first name and None when none was."""
    sent = ((name, getattr(asked, name)) for name in names)
    return next((pair for pair in sent if pair[1] is not None), (names[0], None))


def disagreements(asked: object, *names: str) -> Iterator[Fault]:
    """A fault for each name that says something else than the first of them that was sent."""
    chosen, value = first(asked, *names)
    for name in names:
        if getattr(asked, name) not in (None, value):
            yield Fault(name, f"is another name of {chosen}, and the two differ: send one of them")


def _dry(asked: SamplingFields) -> Dry | None:
    if not asked.dry_multiplier:
        return None
    return Dry(
        asked.dry_multiplier,
        asked.dry_base,
        asked.dry_allowed_length,
        asked.dry_penalty_last_n,
        asked.dry_sequence_breakers,
    )


def _mirostat(asked: SamplingFields) -> Mirostat | None:
    version = first(asked, "mirostat", "mirostat_mode")[1]
    return Mirostat(version, asked.mirostat_tau, asked.mirostat_eta) if version else None
