"""instructor against the real server and model."""

import pytest

from support.checks import check_city

pytestmark = pytest.mark.clients


@pytest.fixture(scope="module")
def findings(run_program):
    return run_program("instructor")


def test_a_plain_answer(findings):
    assert findings["plain"]


@pytest.mark.parametrize("way", ["schema", "tool"])
def test_an_answer_parsed_into_a_model(findings, way):
    check_city(findings[f"parsed_by_{way}"])


@pytest.mark.parametrize("way", ["schema", "tool"])
def test_a_model_that_grows_while_it_streams(findings, way):
    assert findings[f"streamed_by_{way}"]["parts"] > 3
    check_city(findings[f"streamed_by_{way}"]["last"])


def test_log_probabilities_of_a_parsed_answer(findings):
    check_city(findings["with_completion"]["city"])
    assert findings["with_completion"]["body"]["choices"][0]["logprobs"]["content"]


def test_an_error_is_the_clients_own(findings):
    assert findings["wrong_field"]["raised"] in ("BadRequestError", "InstructorRetryException")
    assert "logit_bias" in findings["wrong_field"]["text"]
