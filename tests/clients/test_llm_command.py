"""The `llm` command line against the real server and model."""

import json

import pytest

from support.environments import Environments
from support.server import Server

pytestmark = pytest.mark.clients

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 20},
    },
    "required": ["name", "age"],
}
TOOL = """
def add(a: int, b: int) -> int:
    "The sum of two numbers"
    return a + b
"""
GREEDY = ("-o", "temperature", "0", "-o", "max_tokens", "60")


@pytest.fixture(scope="module")
def llm(environments: Environments, server: Server, tmp_path_factory):
    """Runs `llm` with a home of its own that knows the server as the model `slim`."""
    environment = environments.get("llm")
    home = tmp_path_factory.mktemp("llm")
    model = {"model_id": "slim", "model_name": "slim", "api_base": server.url + "/v1"}
    known = json.dumps([{**model, "supports_tools": True, "supports_schema": True}])
    (home / "extra-openai-models.yaml").write_text(known)

    def run(*arguments):
        return environment.run("-m", "llm", *arguments, cwd=home, LLM_USER_PATH=str(home))

    return run


def test_an_answer_streamed_and_whole(llm):
    streamed = llm("-m", "slim", *GREEDY, "Name three colours.")
    assert streamed.returncode == 0, streamed.stderr
    assert streamed.stdout.strip()
    whole = llm("-m", "slim", "--no-stream", *GREEDY, "Name three colours.")
    assert whole.stdout.strip() == streamed.stdout.strip()


def test_the_log_has_the_usage(llm):
    assert llm("-m", "slim", *GREEDY, "Hello").returncode == 0
    (logged,) = json.loads(llm("logs", "--json", "-n", "1").stdout)
    assert logged["input_tokens"] > 0
    assert logged["output_tokens"] > 0


def test_an_answer_with_a_schema(llm):
    done = llm("-m", "slim", *GREEDY, "--schema", json.dumps(SCHEMA), "Invent a dog.")
    dog = json.loads(done.stdout)
    assert isinstance(dog["name"], str)
    assert dog["age"] in range(21)


def test_a_tool_is_offered(llm):
    """The model is free to call it or not; `llm` calls it and sends the result back, up to the chain's limit."""
    done = llm("-m", "slim", *GREEDY, "--functions", TOOL, "--chain-limit", "3", "What is 1 and 2?")
    assert done.returncode == 0 or "Chain limit" in done.stderr, done.stderr
    (logged,) = json.loads(llm("logs", "--json", "-n", "1").stdout)
    assert [tool["name"] for tool in logged["tools"]] == ["add"]


def test_an_error_is_shown(llm):
    done = llm("-m", "slim", "-o", "logit_bias", '{"99999999": 5}', "Hello")
    assert done.returncode == 1
    assert "400" in done.stderr
    assert "logit_bias" in done.stderr
