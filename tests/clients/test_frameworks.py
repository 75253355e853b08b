"""litellm, langchain-openai, instructor and pydantic-ai against the real server and model."""

import pytest

from support.environments import Environments
from support.server import Server
from support.shapes import check_answer, check_call, check_city, check_refusal, check_scores, check_usage, check_weather

pytestmark = pytest.mark.clients


@pytest.fixture(scope="module")
def run(environments: Environments, server: Server, tmp_path_factory):
    """The findings of a client's program, in the environment of the same name."""

    def run(name):
        program = f"{name.replace('-', '_')}_client.py"
        return environments.get(name).findings(program, server.url, tmp_path_factory.mktemp(name))

    return run


class TestLitellm:
    @pytest.fixture(scope="class")
    def findings(self, run):
        return run("litellm")

    def test_a_plain_answer_and_the_same_as_a_stream(self, findings):
        check_answer(findings["plain"])
        check_answer(findings["streamed"])
        assert said(findings["streamed"]) == said(findings["plain"])

    def test_log_probabilities(self, findings):
        check_scores(findings["logprobs"]["choices"][0]["logprobs"]["content"], top=3)

    def test_a_tool_call_its_result_and_the_same_as_a_stream(self, findings):
        check_call(findings["tool_call"]["call"])
        check_answer(findings["tool_call"]["after"])
        check_call(findings["streamed_tool_call"])

    def test_an_answer_parsed_into_a_model(self, findings):
        check_city(findings["parsed"])

    def test_an_error_is_the_clients_own(self, findings):
        check_refusal(findings["wrong_field"], "BadRequestError", "logit_bias")

    def test_a_text_completion_with_scores(self, findings):
        (choice,) = findings["text_completion"]["choices"]
        assert len(choice["logprobs"]["tokens"]) == len(choice["logprobs"]["token_logprobs"]) == 8


class TestLangchain:
    @pytest.fixture(scope="class")
    def findings(self, run):
        return run("langchain")

    def test_a_plain_answer_and_the_same_as_a_stream(self, findings):
        plain, streamed = findings["plain"], findings["streamed"]
        assert plain["content"]
        assert streamed["content"] == plain["content"]
        assert streamed["response_metadata"]["finish_reason"] == plain["response_metadata"]["finish_reason"]
        check_usage(plain["response_metadata"]["token_usage"])
        assert streamed["usage_metadata"]["output_tokens"] == plain["usage_metadata"]["output_tokens"]

    def test_log_probabilities(self, findings):
        check_scores(findings["logprobs"]["response_metadata"]["logprobs"]["content"], top=3)

    def test_a_tool_call_its_result_and_a_call_as_a_stream(self, findings):
        for message in (findings["tool_call"]["call"], findings["streamed_tool_call"]):
            (call,) = message["tool_calls"]
            assert call["name"] == "get_weather"
            check_weather(call["args"])
            assert message["invalid_tool_calls"] == []
        assert findings["tool_call"]["after"]["content"]
        assert findings["tool_call"]["after"]["tool_calls"] == []

    def test_answers_parsed_into_a_model(self, findings):
        check_city(findings["parsed"])
        check_city(findings["parsed_by_tool"])

    def test_an_error_is_the_clients_own(self, findings):
        check_refusal(findings["wrong_field"], "OpenAIInvalidRequestError", "logit_bias")

    def test_a_batch_answers_like_one_request(self, findings):
        assert [message["content"] for message in findings["many"]] == [findings["plain"]["content"]] * 6


class TestInstructor:
    @pytest.fixture(scope="class")
    def findings(self, run):
        return run("instructor")

    def test_a_plain_answer(self, findings):
        assert findings["plain"]

    @pytest.mark.parametrize("way", ["schema", "tool"])
    def test_an_answer_parsed_into_a_model(self, findings, way):
        check_city(findings[f"parsed_by_{way}"])

    @pytest.mark.parametrize("way", ["schema", "tool"])
    def test_a_model_that_grows_while_it_streams(self, findings, way):
        assert findings[f"streamed_by_{way}"]["parts"] > 3
        assert findings[f"streamed_by_{way}"]["last"] == findings[f"parsed_by_{way}"]

    def test_log_probabilities_of_a_parsed_answer(self, findings):
        check_city(findings["with_completion"]["city"])
        assert findings["with_completion"]["body"]["choices"][0]["logprobs"]["content"]

    def test_an_error_is_the_clients_own(self, findings):
        assert findings["wrong_field"]["raised"] in ("BadRequestError", "InstructorRetryException")
        assert "logit_bias" in findings["wrong_field"]["text"]


class TestPydanticAi:
    @pytest.fixture(scope="class")
    def findings(self, run):
        return run("pydantic-ai")

    def test_a_plain_answer_and_the_same_as_a_stream(self, findings):
        assert findings["plain"]["text"]
        assert findings["plain"]["usage"]["output"] > 0
        assert findings["streamed"] == findings["plain"]

    @pytest.mark.parametrize("way", ["schema", "tool"])
    def test_an_answer_parsed_into_a_model(self, findings, way):
        check_city(findings[f"parsed_by_{way}"])

    def test_the_agent_calls_the_function_and_answers(self, findings):
        (call,) = findings["tool_call"]["calls"]
        assert call["days"] in range(1, 8)
        assert findings["tool_call"]["requests"] == 2
        assert findings["tool_call"]["text"]

    def test_log_probabilities(self, findings):
        assert all(token["logprob"] <= 0 for token in findings["logprobs"])
        assert findings["logprobs"]

    def test_an_error_is_the_clients_own(self, findings):
        check_refusal(findings["wrong_field"], "ModelRequestRejectedError", "logit_bias")


def said(body):
    return body["choices"][0]["message"]["content"]
