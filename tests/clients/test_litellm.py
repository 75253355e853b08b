"""litellm against the real server and model."""

import pytest

from support.checks import check_answer, check_call, check_city, check_refusal, check_scores

pytestmark = pytest.mark.clients


@pytest.fixture(scope="module")
def findings(run_program):
    return run_program("litellm")


def test_a_plain_answer_and_the_same_as_a_stream(findings):
    check_answer(findings["plain"])
    check_answer(findings["streamed"])
    assert said(findings["streamed"]) == said(findings["plain"])


def test_log_probabilities(findings):
    check_scores(findings["logprobs"]["choices"][0]["logprobs"]["content"], top=3)


def test_a_tool_call_its_result_and_the_same_as_a_stream(findings):
    check_call(findings["tool_call"]["call"])
    check_answer(findings["tool_call"]["after"])
    check_call(findings["streamed_tool_call"])


def test_an_answer_parsed_into_a_model(findings):
    check_city(findings["parsed"])


def test_an_error_is_the_clients_own(findings):
    check_refusal(findings["wrong_field"], "BadRequestError", "logit_bias")


def test_a_text_completion_with_scores(findings):
    (choice,) = findings["text_completion"]["choices"]
    assert len(choice["logprobs"]["tokens"]) == len(choice["logprobs"]["token_logprobs"]) == 8


def said(body):
    return body["choices"][0]["message"]["content"]
