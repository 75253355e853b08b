"""pydantic-ai against the real server and model."""

import pytest

from support.checks import check_city, check_refusal

pytestmark = pytest.mark.clients


@pytest.fixture(scope="module")
def findings(run_program):
    return run_program("pydantic-ai")


def test_a_plain_answer_and_the_same_as_a_stream(findings):
    assert findings["plain"]["text"]
    assert findings["plain"]["usage"]["output"] > 0
    assert findings["streamed"] == findings["plain"]


@pytest.mark.parametrize("way", ["schema", "tool"])
def test_an_answer_parsed_into_a_model(findings, way):
    check_city(findings[f"parsed_by_{way}"])


def test_the_agent_calls_the_function_and_answers(findings):
    (call,) = findings["tool_call"]["calls"]
    assert call["days"] in range(1, 8)
    assert findings["tool_call"]["requests"] == 2
    assert findings["tool_call"]["text"]


def test_log_probabilities(findings):
    assert all(token["logprob"] <= 0 for token in findings["logprobs"])
    assert findings["logprobs"]


def test_an_error_is_the_clients_own(findings):
    check_refusal(findings["wrong_field"], "ModelRequestRejectedError", "logit_bias")
