"""OpenAI's own Python client, newest and 1.x, against the real server and model."""

import pytest

from support.checks import (
    check_answer,
    check_call,
    check_call_id,
    check_city,
    check_refusal,
    check_scores,
    check_usage,
    scored_bytes,
)
from support.environments import Environments
from support.server import Server

pytestmark = pytest.mark.clients


@pytest.fixture(scope="module", params=["openai-3", "openai-1"])
def findings(request, environments: Environments, server: Server, tmp_path_factory):
    environment = environments.get(request.param)
    found = environment.findings("openai_python.py", server.url, tmp_path_factory.mktemp("openai"))
    assert found["version"].startswith(request.param.removeprefix("openai-"))
    return found


def joined(chunks, field="content"):
    return "".join(chunk["choices"][0]["delta"].get(field) or "" for chunk in chunks if chunk["choices"])


def test_a_plain_answer(findings):
    check_answer(findings["plain"]["body"])
    assert findings["plain"]["request_id"]


def test_a_stream_tells_the_same_and_ends_with_the_usage(findings):
    whole, chunks = findings["plain"]["body"], findings["streamed"]
    assert joined(chunks) == whole["choices"][0]["message"]["content"]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks[:-1]][-1] == whole["choices"][0]["finish_reason"]
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks}) == 1
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    assert chunks[-1]["choices"] == []
    check_usage(chunks[-1]["usage"])
    for counted in ("prompt_tokens", "completion_tokens"):
        assert chunks[-1]["usage"][counted] == whole["usage"][counted]


def test_the_clients_own_stream_assembly(findings):
    check_city(findings["stream_helper"]["parsed"])
    assert findings["stream_helper"]["parsed"] == findings["parsed"]
    assert findings["stream_helper"]["kinds"].count("content.done") == 1
    assert findings["stream_helper"]["kinds"].count("content.delta") > 4


def test_several_choices(findings):
    choices = findings["several_choices"]
    assert [choice["index"] for choice in choices] == [0, 1, 2]
    assert len({choice["message"]["content"] for choice in choices}) > 1


def test_log_probabilities_are_of_the_answers_tokens(findings):
    (choice,) = findings["logprobs"]["choices"]
    content = choice["logprobs"]["content"]
    check_scores(content, top=3)
    assert scored_bytes(content).startswith(choice["message"]["content"].encode())
    assert len(content) - findings["logprobs"]["usage"]["completion_tokens"] in (0, 1)
    assert findings["streamed_logprobs"] == content


def test_a_tool_call_and_the_answer_to_its_result(findings):
    check_call(findings["tool_call"]["call"])
    check_answer(findings["tool_call"]["after"])


def test_a_named_tool_call(findings):
    check_call(findings["named_tool_call"])


def test_a_streamed_tool_call_comes_in_pieces(findings):
    calls = [
        call
        for chunk in findings["streamed_tool_call"]
        for choice in chunk["choices"]
        for call in choice["delta"].get("tool_calls") or []
    ]
    whole = findings["tool_call"]["call"]["choices"][0]["message"]["tool_calls"][0]["function"]
    assert {call["index"] for call in calls} == {0}
    assert calls[0]["function"]["name"] == whole["name"]
    check_call_id(calls[0]["id"])
    assert [call for call in calls[1:] if "id" in call] == []
    assert len(calls) > 4
    assert "".join(call["function"].get("arguments") or "" for call in calls) == whole["arguments"]
    assert findings["streamed_tool_call"][-1]["choices"][0]["finish_reason"] == "tool_calls"


def test_arguments_that_the_client_parses_itself(findings):
    assert findings["parsed_tool_call"]
    for city in findings["parsed_tool_call"]:
        check_city(city)


def test_an_answer_parsed_into_a_model(findings):
    check_city(findings["parsed"])


def test_a_json_object(findings):
    if findings["json_object"]["finish_reason"] == "stop":
        assert findings["json_object"]["message"]["content"].startswith("{")
        assert findings["json_object"]["message"]["content"].rstrip().endswith("}")


@pytest.mark.parametrize(
    ("finding", "raised", "named", "param"),
    [
        ("wrong_field", "BadRequestError", "logit_bias", "logit_bias"),
        ("wrong_value", "BadRequestError", "temperature", "temperature"),
        ("wrong_schema", "BadRequestError", "not", "response_format.json_schema.schema.properties.a.not"),
        ("missing_route", "NotFoundError", "/openapi.json", None),
    ],
)
def test_an_error_is_the_clients_own_and_names_the_field(findings, finding, raised, named, param):
    check_refusal(findings[finding], raised, named)
    assert findings[finding]["param"] == param


def test_models_are_listed_and_found(findings):
    assert findings["models"]["listed"] == [findings["models"]["retrieved"]]


def test_a_text_completion_with_echo_and_scores(findings):
    (choice,) = findings["completion"]["choices"]
    scores = choice["logprobs"]
    assert choice["text"].startswith("One, two,")
    assert "".join(scores["tokens"]) == choice["text"]
    assert scores["token_logprobs"][0] is None
    assert all(value <= 0 for value in scores["token_logprobs"][1:])
    assert all(len(top) >= 2 for top in scores["top_logprobs"][1:])
    assert [choice["text"][at] for at in scores["text_offset"]] == [token[0] for token in scores["tokens"]]


def test_streams_that_are_left_leave_nothing_behind(findings, server: Server):
    assert findings["concurrent_and_cancelled"] == [3] * 8
    server.wait_metric("slm_inflight_requests", 0)
    server.wait_metric("slm_kv_cache_usage_ratio", 0)
