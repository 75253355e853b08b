"""Over 300 JSON Schemas through `response_format` on the real server and model: valid, cut short, or refused."""

import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from jsonschema import Draft202012Validator

from support import schemas
from support.server import Server

pytestmark = pytest.mark.evaluation

SUPPORTED = schemas.supported()
UNSUPPORTED = {name: case for name, case in schemas.unsupported().items() if r"\ud800" not in str(case)}
"""But for half a surrogate pair, which no client's JSON holds and the body's reader refuses."""
SAMPLING = {"temperature": 0, "frequency_penalty": 1}
CLOSING, END_BIAS, CLOSING_BIAS = (
    ('"', '"}', "}", "}}", '"]', "]", '"},', '","', "]}", '", "', '"]}', "}]", '"}]'),
    30,
    6,
)
"""Where a schema sets no bound the model writes on for ever: 100000… So what ends a value, or the text, is likelier."""
PARAM = "response_format.json_schema.schema"
CUT_AT_MOST = 10
"""Answers that a small model may leave unfinished at its limit of tokens."""


@pytest.fixture(scope="module")
def ask(server: Server):
    """Sends one schema after the other, eight at a time, and gives the answers by name."""

    def tokens(client: httpx.Client, text: str) -> list[int]:
        return client.post("/tokenize", json={"content": text}).json()["tokens"]

    def biases(client: httpx.Client) -> dict[str, float]:
        closing = [ids[0] for ids in (tokens(client, text) for text in CLOSING) if len(ids) == 1]
        (end,) = tokens(client, "<|im_end|>")
        return {str(token): CLOSING_BIAS for token in closing} | {str(end): END_BIAS}

    def one(client: httpx.Client, schema: object, bias: dict[str, float]) -> httpx.Response:
        form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
        messages = [{"role": "user", "content": "Answer in JSON."}]
        body = {"messages": messages, "max_tokens": 500, "response_format": form, "logit_bias": bias}
        return client.post("/v1/chat/completions", json=body | SAMPLING)

    def every(named: dict[str, object]) -> dict[str, httpx.Response]:
        with httpx.Client(base_url=server.url, timeout=600) as client, ThreadPoolExecutor(8) as pool:
            bias = biases(client)
            return dict(zip(named, pool.map(lambda schema: one(client, schema, bias), named.values()), strict=True))

    return every


def verdict(schema: dict, response: httpx.Response) -> str:
    if response.status_code != 200:
        return f"refused: {response.text}"
    (choice,) = response.json()["choices"]
    if choice["finish_reason"] == "length":
        return "cut"
    try:
        answer = json.loads(choice["message"]["content"])
    except ValueError:
        return f"no JSON: {choice['message']['content']}"
    # \p{...} is ECMA's, and Python's re has none.
    known = {key: value for key, value in schema.items() if "\\p" not in str(value)}
    validator = Draft202012Validator(known, format_checker=Draft202012Validator.FORMAT_CHECKER)
    wrong = next(validator.iter_errors(answer), None)
    return "valid" if wrong is None else f"invalid: {answer} {wrong.message}"


def test_answers_to_supported_schemas_are_valid(ask):
    verdicts = {name: verdict(SUPPORTED[name], response) for name, response in ask(SUPPORTED).items()}
    counted = Counter(verdicts.values())
    print(f"{len(verdicts)} schemas: {counted['valid']} valid, {counted['cut']} cut")
    assert {name: said for name, said in verdicts.items() if said not in ("valid", "cut")} == {}
    assert counted["cut"] <= CUT_AT_MOST, [name for name, said in verdicts.items() if said == "cut"]


def test_what_is_not_supported_is_refused_by_its_name(ask):
    answers = ask({name: schema for name, (schema, _) in UNSUPPORTED.items()})
    for name, response in answers.items():
        schema, path = UNSUPPORTED[name]
        assert response.status_code == 400, (schema, response.text)
        error = response.json()["error"]
        assert error["param"] == (f"{PARAM}.{path}" if path else PARAM), schema
        keyword = path.rpartition(".")[2].partition("[")[0]
        assert keyword in error["message"], (schema, error)
