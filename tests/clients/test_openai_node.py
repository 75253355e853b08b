"""OpenAI's client for JavaScript against the real server and model."""

import pytest

from support.checks import check_answer, check_call, check_refusal, check_scores, check_usage, check_weather
from support.environments import Environments, read_findings
from support.server import Server

pytestmark = pytest.mark.clients


@pytest.fixture(scope="module")
def findings(environments: Environments, server: Server, tmp_path_factory):
    environment = environments.get_node()
    command = [environment.folder / "bin" / "node", environment.folder / "openai_node.mjs", server.url]
    return read_findings(environment.execute(command, tmp_path_factory.mktemp("node")))


def test_a_plain_answer(findings):
    check_answer(findings["plain"])


def test_a_stream_tells_the_same_and_ends_with_the_usage(findings):
    chunks = findings["streamed"]
    said = "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks[:-1])
    assert said == findings["plain"]["choices"][0]["message"]["content"]
    assert chunks[-1]["choices"] == []
    check_usage(chunks[-1]["usage"])


def test_the_clients_own_stream_assembly(findings):
    helped, whole = findings["stream_helper"]["choices"][0], findings["plain"]["choices"][0]
    assert helped["message"]["content"] == whole["message"]["content"]
    assert helped["finish_reason"] == whole["finish_reason"]


def test_log_probabilities(findings):
    check_scores(findings["logprobs"]["choices"][0]["logprobs"]["content"], top=3)


def test_a_streamed_tool_call(findings):
    check_call(findings["streamed_tool_call"])


def test_the_client_runs_the_tool_and_sends_its_result(findings):
    (arguments,) = findings["tool_run"]["calls"]
    check_weather(arguments)
    assert findings["tool_run"]["roles"][:3] == ["user", "assistant", "tool"]


def test_an_answer_with_a_schema(findings):
    check_weather(findings["parsed"])


def test_an_error_is_the_clients_own(findings):
    check_refusal(findings["wrong_field"], "BadRequestError", "logit_bias")
    assert (findings["wrong_field"]["status_code"], findings["wrong_field"]["param"]) == (400, "logit_bias")


def test_a_stream_that_is_left_leaves_nothing_behind(findings, server: Server):
    assert findings["left_early"] == 3
    server.wait_metric("slm_inflight_requests", 0)
