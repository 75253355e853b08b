"""Request fields that other servers know and this one can't honour yet. A table and its reader; knows no records.

To ignore such a field would answer another question than the one asked. A value that asks for nothing is fine.
Names that are not here (`user`, `metadata`, `store`, `cache_prompt`, anybody's own) leave the text as it is: ignored.
"""

from collections.abc import Iterator
from typing import Any

from .convert import Fault
from .render import compact

COMPLETION_FIELDS: dict[str, tuple[Any, ...]] = {
    # choices and scores
    "n": (1,),
    "best_of": (1,),
    "use_beam_search": (False,),
    "logprobs": (),
    "top_logprobs": (0,),
    "prompt_logprobs": (),
    "n_probs": (0,),
    # the prompt
    "echo": (False,),
    "suffix": ("",),
    "prompt_embeds": (),
    "add_special_tokens": (True,),
    "truncate_prompt_tokens": (),
    "tools": ([],),
    "lora": ([],),
    "lora_path": (),
    "adapters": (),
    "adapter_id": (),
    # the next token; a float matches any equal number
    "logit_bias": ({}, []),
    "presence_penalty": (0.0,),
    "frequency_penalty": (0.0,),
    "repeat_penalty": (1.0,),
    "repetition_penalty": (1.0,),
    "top_k": (0, -1),
    "min_p": (0.0,),
    "typical_p": (1.0,),
    "top_n_sigma": (-1.0, 0.0),
    "xtc_probability": (0.0,),
    "dry_multiplier": (0.0,),
    "mirostat": (0,),
    "mirostat_mode": (0,),
    "dynatemp_range": (0.0,),
    "adaptive_target": (-1.0,),
    "samplers": (),
    "bad_words": ([],),
    "allowed_token_ids": (),
    # the form of the text
    "grammar": ("",),
    "json_schema": (),
    "response_format": ({"type": "text"},),
    "structured_outputs": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "regex": (),
    "ebnf": (),
    # where it ends
    "max_completion_tokens": (),
    "n_predict": (),
    "min_tokens": (0,),
    "ignore_eos": (False,),
    "stop_token_ids": ([],),
    "stop_regex": ("", []),
    "include_stop_str_in_output": (False,),
    "no_stop_trim": (False,),
    "n_indent": (0,),
    "t_max_predict_ms": (0, -1),
    # what comes with it
    "skip_special_tokens": (True,),
    "return_progress": (False,),
    "return_tokens": (False,),
    "return_token_ids": (False,),
    "timings_per_token": (False,),
}
"""Name -> values that ask for nothing, besides null."""

_OTHER_NAMES = {"max_completion_tokens": "max_tokens", "n_predict": "max_tokens"}


def unbuilt_faults(fields: dict[str, Any]) -> Iterator[Fault]:
    """A fault for each field of a completion body that asks for what isn't built."""
    for name, neutral in COMPLETION_FIELDS.items():
        value = fields.get(name)
        if value is not None and not any(_same(value, wanted) for wanted in neutral):
            yield Fault(name, _text(name, neutral))


def _same(value: Any, neutral: Any) -> bool:
    """Equal, and of the same JSON kind: Python's `True == 1` and `1.0 == 1` don't count."""
    kinds = (int, float) if type(neutral) is float else (type(neutral),)
    return type(value) in kinds and bool(value == neutral)


def _text(name: str, neutral: tuple[Any, ...]) -> str:
    if name in _OTHER_NAMES:
        return f"is not supported here: use {_OTHER_NAMES[name]}"
    return " or ".join(["is not supported here yet: omit it", *(f"send {compact(value)}" for value in neutral)])
