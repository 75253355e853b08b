"""langchain-openai against the real server and model."""

import pytest

from support.checks import check_city, check_refusal, check_scores, check_usage, check_weather

pytestmark = pytest.mark.clients


@pytest.fixture(scope="module")
def findings(run_program):
    return run_program("langchain")


def test_a_plain_answer_and_the_same_as_a_stream(findings):
    plain, streamed = findings["plain"], findings["streamed"]
    assert plain["content"]
    assert streamed["content"] == plain["content"]
    assert streamed["response_metadata"]["finish_reason"] == plain["response_metadata"]["finish_reason"]
    check_usage(plain["response_metadata"]["token_usage"])
    assert streamed["usage_metadata"]["output_tokens"] == plain["usage_metadata"]["output_tokens"]


def test_log_probabilities(findings):
    check_scores(findings["logprobs"]["response_metadata"]["logprobs"]["content"], top=3)


def test_a_tool_call_its_result_and_a_call_as_a_stream(findings):
    for message in (findings["tool_call"]["call"], findings["streamed_tool_call"]):
        (call,) = message["tool_calls"]
        assert call["name"] == "get_weather"
        check_weather(call["args"])
        assert message["invalid_tool_calls"] == []
    assert findings["tool_call"]["after"]["content"]
    assert findings["tool_call"]["after"]["tool_calls"] == []


def test_answers_parsed_into_a_model(findings):
    check_city(findings["parsed"])
    check_city(findings["parsed_by_tool"])


def test_an_error_is_the_clients_own(findings):
    check_refusal(findings["wrong_field"], "OpenAIInvalidRequestError", "logit_bias")


def test_a_batch_answers_like_one_request(findings):
    assert [message["content"] for message in findings["many"]] == [findings["plain"]["content"]] * 6
