"""What must be true of any answer, whatever a small model says: the checks that all client tests share."""

import json
import re
from collections.abc import Sequence
from typing import Any

CONTINENTS = {"Africa", "America", "Asia", "Australia", "Europe"}


def check_answer(body: dict[str, Any]) -> None:
    """A whole chat answer of words."""
    (choice,) = body["choices"]
    assert choice["message"]["role"] == "assistant"
    assert choice["message"]["content"]
    assert not choice["message"].get("tool_calls")
    assert choice["finish_reason"] in ("stop", "length")
    check_usage(body["usage"])


def check_usage(usage: dict[str, Any]) -> None:
    assert usage["prompt_tokens"] > 0
    assert usage["completion_tokens"] > 0
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


def check_call(body: dict[str, Any], name: str = "get_weather") -> None:
    """A whole chat answer that is one tool call and nothing else."""
    (choice,) = body["choices"]
    assert choice["finish_reason"] == "tool_calls"
    (call,) = choice["message"]["tool_calls"]
    check_call_id(call["id"])
    assert (call["type"], call["function"]["name"]) == ("function", name)
    check_weather(json.loads(call["function"]["arguments"]))
    assert not choice["message"]["content"]


def check_call_id(made: str) -> None:
    assert re.fullmatch("call_[0-9A-Za-z]{8,}", made)


def check_weather(arguments: Any) -> None:
    """Arguments as the schema of `get_weather` wants them."""
    assert set(arguments) == {"city", "unit", "days"}
    assert isinstance(arguments["city"], str)
    assert len(arguments["city"]) <= 20
    assert arguments["unit"] in ("celsius", "fahrenheit")
    assert arguments["days"] in range(1, 8)


def check_city(city: Any) -> None:
    """An instance of the programs' `City`."""
    assert set(city) == {"name", "continent", "millions"}
    assert city["continent"] in CONTINENTS
    assert city["millions"] in range(41)


def check_scores(content: Sequence[dict[str, Any]], top: int) -> None:
    """The tokens of a greedy answer's `logprobs.content`, with so many alternatives."""
    assert content
    for token in content:
        assert token["logprob"] <= 0
        assert isinstance(token["token"], str)
        likeliest = [other["logprob"] for other in token["top_logprobs"]]
        assert len(likeliest) == top
        assert likeliest == sorted(likeliest, reverse=True)
        assert token["logprob"] == likeliest[0]


def scored_bytes(content: Sequence[dict[str, Any]]) -> bytes:
    return b"".join(bytes(token["bytes"]) for token in content)


def check_refusal(finding: dict[str, Any], raised: str, named: str) -> None:
    """The client raised its own exception, whose text or fields name what was wrong."""
    assert finding["raised"] == raised, finding
    assert named in f"{finding['text']} {finding['param']}"
