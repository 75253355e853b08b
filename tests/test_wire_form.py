"""The form of the answer: many servers' fields become one grammar, on both endpoints."""

import json

import pytest

from slim.errors import InvalidRequest
from slim.types import Grammar
from slim.wire.requests import RequestLimits, parse_chat, parse_completion

LIMITS = RequestLimits(max_tokens=100, max_prompt_chars=50, places=8)
BODIES = [(parse_completion, {"prompt": "hi"}), (parse_chat, {"messages": [{"role": "user", "content": "hi"}]})]
SCHEMA = {"type": "object", "properties": {"é": {"enum": [1, None]}}}
GBNF = 'root ::= "a"'
LARK = 'start: "a"'


def parse(**fields):
    found = []
    for parse_body, start in BODIES:
        (generation,) = parse_body(json.dumps({**start, **fields}).encode(), LIMITS).generations
        found.append(generation.grammar)
    assert found[0] == found[1]
    return found[0]


def refusal(**fields):
    errors = []
    for parse_body, start in BODIES:
        with pytest.raises(InvalidRequest) as caught:
            parse_body(json.dumps({**start, **fields}).encode(), LIMITS)
        errors.append(caught.value)
    assert str(errors[0]) == str(errors[1])
    return errors[0]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"response_format": None},
        {"response_format": {"type": "text"}},
        {"response_format": {"type": "text", "json_schema": None}},
        {"grammar": ""},
        {"guided_grammar": ""},
        {"structured_outputs": None},
    ],
)
def test_text_has_no_form(fields):
    assert parse(**fields) is None


@pytest.mark.parametrize(
    ("fields", "kind", "source", "param"),
    [
        ({"response_format": {"type": "json_object"}}, "json_object", None, "response_format"),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "n", "schema": SCHEMA, "strict": True},
                }
            },
            "json_schema",
            SCHEMA,
            "response_format.json_schema.schema",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}},
            "json_schema",
            {},
            "response_format.json_schema.schema",
        ),
        (
            {"response_format": {"type": "json_object", "schema": SCHEMA}},
            "json_schema",
            SCHEMA,
            "response_format.schema",
        ),
        ({"json_schema": SCHEMA}, "json_schema", SCHEMA, "json_schema"),
        ({"grammar": GBNF}, "gbnf", GBNF, "grammar"),
        ({"grammar": LARK}, "lark", LARK, "grammar"),
        ({"regex": "a+"}, "regex", "a+", "regex"),
        ({"guided_json": SCHEMA}, "json_schema", SCHEMA, "guided_json"),
        ({"guided_json": json.dumps(SCHEMA)}, "json_schema", SCHEMA, "guided_json"),
        ({"guided_regex": "a+"}, "regex", "a+", "guided_regex"),
        ({"guided_choice": ["a", "b"]}, "choice", ("a", "b"), "guided_choice"),
        ({"guided_grammar": LARK}, "lark", LARK, "guided_grammar"),
        ({"structured_outputs": {"json": SCHEMA}}, "json_schema", SCHEMA, "structured_outputs.json"),
        ({"structured_outputs": {"json": "{}"}}, "json_schema", {}, "structured_outputs.json"),
        ({"structured_outputs": {"regex": "a+", "json": None}}, "regex", "a+", "structured_outputs.regex"),
        ({"structured_outputs": {"choice": ["a"]}}, "choice", ("a",), "structured_outputs.choice"),
        ({"structured_outputs": {"grammar": GBNF}}, "gbnf", GBNF, "structured_outputs.grammar"),
        ({"structured_outputs": {"json_object": True}}, "json_object", None, "structured_outputs.json_object"),
    ],
)
def test_every_servers_way_becomes_one_grammar(fields, kind, source, param):
    assert parse(**fields) == Grammar(kind, source, param)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ('x ::= "a"\n  root   ::= x', "gbnf"),
        ("root ::= start\nstart ::= [a-z]", "gbnf"),
        ('%llguidance {}\nx: "a"\nstart: x', "lark"),
        ("?start: /a/", "lark"),
        ("start[lazy]: /a/", "lark"),
    ],
)
def test_a_grammar_is_told_by_its_first_rule(text, kind):
    assert parse(grammar=text).kind == kind


@pytest.mark.parametrize("text", ["hello", 'x: "a"', 'x ::= "a"', 'restart: "a"', 'startled: "a"', "start", 5, ["a"]])
def test_a_grammar_without_a_first_rule_is_refused(text):
    assert refusal(grammar=text).param == "grammar"
    assert refusal(structured_outputs={"grammar": text}).param == "structured_outputs.grammar"


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"type": "sound"}, ".type"),
        ({"type": "hiccup"}, ".type"),
        ({"type": 123}, ".type"),
        ({"type": None}, ".type"),
        ({}, ".type"),
        ("json", ""),
        ([], ""),
        ({"type": "json_schema"}, ".json_schema.schema"),
        ({"type": "json_schema", "json_schema": {}}, ".json_schema.schema"),
        ({"type": "json_schema", "json_schema": {"name": "x"}}, ".json_schema.schema"),
        ({"type": "json_schema", "json_schema": {"schema": 123}}, ".json_schema.schema"),
        ({"type": "json_schema", "json_schema": {"schema": "{}"}}, ".json_schema.schema"),
        ({"type": "json_schema", "json_schema": "x"}, ".json_schema"),
        ({"type": "json_schema", "json_schema": {"schema": {}, "strict": 1}}, ".json_schema.strict"),
        ({"type": "json_schema", "json_schema": {"schema": {}, "name": 1}}, ".json_schema.name"),
        ({"type": "text", "json_schema": {"schema": {}}}, ".json_schema"),
        ({"type": "text", "schema": {}}, ".schema"),
        ({"type": "json_object", "schema": 1}, ".schema"),
    ],
)
def test_a_bad_response_format_is_refused_by_its_place(value, path):
    assert refusal(response_format=value).param == f"response_format{path}"


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"json_schema": 123}, "json_schema"),
        ({"json_schema": []}, "json_schema"),
        ({"json_schema": "{}"}, "json_schema"),
        ({"guided_json": "no JSON"}, "guided_json"),
        ({"guided_json": "[1]"}, "guided_json"),
        ({"guided_json": "[" * 100_000}, "guided_json"),
        ({"guided_json": '{"a":1e999}'}, "guided_json"),
        ({"guided_regex": ""}, "guided_regex"),
        ({"guided_regex": 5}, "guided_regex"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_choice": "ab"}, "guided_choice"),
        ({"guided_choice": ["a", ""]}, "guided_choice[1]"),
        ({"guided_choice": ["a", 1]}, "guided_choice[1]"),
        ({"guided_choice": ["a"] * 1001}, "guided_choice"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"json_object": False}}, "structured_outputs"),
        ({"structured_outputs": "json"}, "structured_outputs"),
        ({"structured_outputs": {"choice": ["a", 5]}}, "structured_outputs.choice[1]"),
        ({"structured_outputs": {"json": {}, "structural_tag": "x"}}, "structured_outputs.structural_tag"),
        ({"structured_outputs": {"json": {}, "whitespace_pattern": " "}}, "structured_outputs.whitespace_pattern"),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_bad_values_are_refused_by_their_place(fields, path):
    assert refusal(**fields).param == path


def test_a_schema_that_is_nested_too_deeply_is_refused():
    schema = {}
    for _ in range(200):
        schema = {"items": schema}
    assert refusal(json_schema=schema).param == "json_schema"
    assert refusal(guided_json=json.dumps(schema)).param == "guided_json"


@pytest.mark.parametrize(
    ("fields", "path", "other"),
    [
        ({"grammar": GBNF, "json_schema": SCHEMA}, "grammar", "json_schema"),
        ({"response_format": {"type": "json_object"}, "regex": "a"}, "regex", "response_format"),
        ({"guided_json": SCHEMA, "guided_regex": "a"}, "guided_regex", "guided_json"),
        ({"structured_outputs": {"json": {}, "regex": "a"}}, "structured_outputs.regex", "structured_outputs.json"),
        ({"structured_outputs": {"json": {}}, "guided_choice": ["a"]}, "guided_choice", "structured_outputs.json"),
    ],
)
def test_two_forms_at_once_are_refused(fields, path, other):
    error = refusal(**fields)
    assert error.param == path
    assert other in str(error)


def test_text_goes_with_any_form():
    assert parse(response_format={"type": "text"}, grammar=GBNF).param == "grammar"
