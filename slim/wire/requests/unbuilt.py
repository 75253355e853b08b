"""Request fields that other servers know and this one can't honour. Tables and their reader; knows no records.

To ignore such a field would answer another question than the one asked. A value that asks for nothing is fine.
Names that are in no table and no body (`user`, `metadata`, `store`, anybody's own) leave the text as it
is: ignored.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from ..convert import Fault
from ..render import compact

Table = Mapping[str, tuple[Any, ...]]
"""Name -> values that ask for nothing, besides null. A float matches any equal number."""

COMMON: Table = {
    # choices and scores
    "best_of": (1,),
    "use_beam_search": (False,),
    "prompt_logprobs": (),
    "n_probs": (0,),
    "post_sampling_probs": (False,),
    # the prompt
    "truncate_prompt_tokens": (),
    "lora": ([],),
    "lora_path": (),
    "adapters": (),
    "adapter_id": (),
    # the next token
    "top_n_sigma": (-1.0, 0.0),
    "dynatemp_range": (0.0,),
    "adaptive_target": (-1.0,),
    "samplers": (),
    "bad_words": ([],),
    "allowed_token_ids": (),
    "logit_bias_type": ("input_ids",),
    # the form of the text
    "ebnf": (),
    "grammar_lazy": (False,),
    "grammar_triggers": ([],),
    "guided_whitespace_pattern": (),
    # where it ends
    "stop_regex": ("", []),
    "include_stop_str_in_output": (False,),
    "no_stop_trim": (False,),
    "n_indent": (0,),
    "t_max_predict_ms": (0, -1),
    # what comes with it
    "skip_special_tokens": (True,),
    "return_tokens": (False,),
    "return_token_ids": (False,),
    "return_tokens_as_token_ids": (False,),
    "timings_per_token": (False,),
}

COMPLETION_FIELDS: Table = {
    **COMMON,
    "suffix": ("",),
    "prompt_embeds": (),
    "add_special_tokens": (True,),
    "messages": ([],),
    "tools": ([],),
    "top_logprobs": (0,),
}

CHAT_FIELDS: Table = {
    **COMMON,
    "prompt": (),
    "echo": (False,),
    "suffix": ("",),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "audio": (),
    "web_search_options": (),
    "documents": ([],),
    "chat_template": (),
    "thinking_budget_tokens": (-1,),
    "thinking_token_budget": (),
    "include_reasoning": (True,),
    "separate_reasoning": (True,),
    "parse_tool_calls": (True,),
}

_ADVICE = {
    "functions": "is not supported here: use tools",
    "function_call": "is not supported here: use tools and tool_choice",
    "messages": "belongs to /v1/chat/completions: this endpoint takes a prompt",
    "prompt": "belongs to /v1/completions: this endpoint takes messages",
    "chat_template": "is not supported here: the model's own template is used",
}


def unbuilt_faults(fields: dict[str, Any], table: Table) -> Iterator[Fault]:
    """A fault for each field of a body that asks for what isn't built."""
    for name, value in fields.items():
        neutral = table.get(name)
        if neutral is not None and value is not None and not any(_same(value, wanted) for wanted in neutral):
            yield Fault(name, _ADVICE.get(name) or _text(neutral))


def _same(value: Any, neutral: Any) -> bool:
    """Equal, and of the same JSON kind: Python's `True == 1` and `1.0 == 1` don't count."""
    kinds = (int, float) if type(neutral) is float else (type(neutral),)
    return type(value) in kinds and bool(value == neutral)


def _text(neutral: tuple[Any, ...]) -> str:
    return " or ".join(["is not supported here: omit it", *(f"send {compact(value)}" for value in neutral)])
