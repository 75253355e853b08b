"""The OpenAPI document says what the server does: its schemas are held against real bodies and real answers."""

import json

import attrs
import pytest
from jsonschema import Draft202012Validator
from openapi_spec_validator import validate

from slim.answer import CallArguments, CallStart, Content, Reasoning, Timings
from slim.errors import InvalidRequest, Overloaded
from slim.types import Segment, TokenScore, Usage
from slim.wire.answers import Head
from slim.wire.chat import ChatChoice, chat_body
from slim.wire.completions import TextChoice, completion_body
from slim.wire.convert import Range, Reader, marks, strict_converter, structure
from slim.wire.embeddings import EmbeddingAnswer, parse_embeddings
from slim.wire.errors import error_reply
from slim.wire.models import model_list, model_object
from slim.wire.openapi import OPERATIONS, openapi_document
from slim.wire.readiness import status_body
from slim.wire.requests import RequestLimits
from slim.wire.tokenize import TokenizeCall, detokenized, template_applied, tokenized, tokenizer_info

DOCUMENT = json.loads(openapi_document("1.2.3"))
SCHEMAS = DOCUMENT["components"]["schemas"]
BODIES = [body for methods in OPERATIONS.values() for operation in methods.values() for body in operation.body]
FIELDS = [(cls, attribute) for cls in BODIES for attribute in attrs.fields(cls)]
CONVERTER = strict_converter()
HEAD = Head("id", 1, "m")
USAGE = Usage(1, 2, 3)
TIMINGS = Timings(1, 1, 1, 1, 1, 1)
SCORES = [TokenScore(b"\xff", None), TokenScore(b"b", float("-inf"), ((b"a", -0.5),))]


def embedded(body):
    answer = EmbeddingAnswer(parse_embeddings(body.encode(), RequestLimits(9, 9, 9)))
    answer.add(0, (0.5, -0.5))
    return answer.body("m", 1)


def follows(value, name):
    """The value has the shape that the document gives under that name."""
    schema = {"$ref": f"#/components/schemas/{name}", "components": DOCUMENT["components"]}
    return Draft202012Validator(schema).is_valid(value)


def test_the_document_is_valid_openapi():
    assert DOCUMENT["openapi"].startswith("3.1")
    assert DOCUMENT["info"]["version"] == "1.2.3"
    validate(DOCUMENT)
    for schema in SCHEMAS.values():
        Draft202012Validator.check_schema(schema)


@pytest.mark.parametrize("cls", BODIES, ids=lambda cls: cls.__name__)
def test_every_field_of_a_body_is_in_the_document(cls):
    assert list(SCHEMAS[cls.__name__]["properties"]) == [attribute.name for attribute in attrs.fields(cls)]


@pytest.mark.parametrize("name", ["ChatBody", "CompletionBody"])
def test_every_field_of_a_request_for_text_is_described(name):
    for described in SCHEMAS[name]["properties"].values():
        assert described["description"].endswith(".")


@pytest.mark.parametrize("cls", BODIES, ids=lambda cls: cls.__name__)
def test_the_required_fields_are_those_without_which_a_body_is_refused(cls):
    for name in SCHEMAS[cls.__name__]["required"]:
        with pytest.raises(InvalidRequest) as caught:
            structure(CONVERTER, {}, cls)
        assert f"{name}: is required" in str(caught.value)


def is_taken(cls, fields):
    try:
        structure(CONVERTER, fields, cls)
    except InvalidRequest:
        return False
    return True


VALUES = [
    *(
        None,
        True,
        False,
        0,
        1,
        2,
        3,
        -1,
        21,
        101,
        2**31,
        10**30,
        0.5,
        1.5,
        -3.5,
        "",
        "x",
        "auto",
        "none",
        [],
        {},
        [1],
        ["x"],
    ),
    *(
        [""],
        [[1]],
        [{}],
        {"x": 1},
        {"type": "text"},
        {"type": "x"},
        [{"role": "user", "content": "x"}],
        [{"role": "x"}],
    ),
    *({"include_usage": True}, {"include_usage": 1}, {"1": 5}, {"1": "5"}, [["1", 2]], [True], [-1], [None]),
]


@pytest.mark.parametrize(("cls", "attribute"), FIELDS, ids=lambda item: getattr(item, "name", ""))
def test_what_the_document_forbids_is_refused_and_what_it_allows_is_taken(cls, attribute):
    """A reader of its own may be stricter than JSON Schema can say; a type and its bounds may not."""
    others = {"messages": [{"role": "user", "content": "x"}], "prompt": "x", "input": "x", "content": "x", "tokens": []}
    schema = SCHEMAS[cls.__name__]["properties"][attribute.name]
    validator = Draft202012Validator({**schema, "components": DOCUMENT["components"]})
    bounds = marks(attribute.type, Range)
    edges = [edge for bound in bounds for edge in (bound.low, bound.high, bound.low - 1, bound.high + 1)]
    assert validator.is_valid(None) is (attribute.name not in SCHEMAS[cls.__name__]["required"])
    for value in [*VALUES, *edges]:
        if is_taken(cls, {**others, attribute.name: value}):
            assert validator.is_valid(value), f"{value!r} is taken"
        elif not marks(attribute.type, Reader):
            assert not validator.is_valid(value), f"{value!r} is refused"


@pytest.mark.parametrize(
    ("name", "field", "wanted"),
    [
        ("ChatBody", "temperature", {"type": ["number", "null"], "minimum": 0, "maximum": 2, "default": 1.0}),
        ("ChatBody", "n", {"type": ["integer", "null"], "minimum": 1, "default": 1}),
        ("ChatBody", "seed", {"type": ["integer", "null"]}),
        ("CompletionBody", "logprobs", {"type": ["integer", "null"], "minimum": 0, "maximum": 20}),
        ("CompletionBody", "stop", {"default": []}),
        ("ChatBody", "stream", {"type": ["boolean", "null"], "default": False}),
        ("Message", "role", {"enum": ["system", "developer", "user", "assistant", "tool"]}),
        ("ResponseFormat", "type", {"enum": ["text", "json_object", "json_schema"]}),
        ("Function", "name", {"type": "string", "pattern": "^[a-zA-Z0-9_-]{1,64}$"}),
    ],
)
def test_types_bounds_and_defaults_are_those_of_the_classes(name, field, wanted):
    described = SCHEMAS[name]["properties"][field]
    assert {key: described.get(key) for key in wanted} == wanted


def test_the_classes_inside_of_bodies_are_in_the_document():
    inner = {"Message", "ToolCall", "CalledFunction", "Tool", "Function", "ResponseFormat", "NamedSchema"}
    assert inner | {"StructuredOutputs", "StreamOptions"} <= SCHEMAS.keys()


@pytest.mark.parametrize(
    ("answer", "name"),
    [
        (completion_body(HEAD, [TextChoice(["a"], None, "stop")], USAGE, TIMINGS), "Completion"),
        (completion_body(HEAD, [TextChoice(["ab"], [SCORES], "length")], USAGE, TIMINGS), "Completion"),
        (chat_body(HEAD, [ChatChoice([Content("a")], None, "stop")], USAGE, TIMINGS), "ChatCompletion"),
        (
            chat_body(
                HEAD,
                [ChatChoice([Reasoning("a"), CallStart(0, "c", "f"), CallArguments(0, "{}")], SCORES, "tool_calls")],
                USAGE,
                TIMINGS,
            ),
            "ChatCompletion",
        ),
        (error_reply(Overloaded("full", 1.0)).body, "Error"),
        (error_reply(InvalidRequest("bad", "n")).body, "Error"),
        (model_object("m", 1, None), "Model"),
        (model_object("m", 1, 512), "Model"),
        (model_list("m", 1, 512), "ModelList"),
        (embedded('{"input": "a"}'), "Embeddings"),
        (embedded('{"input": "a", "encoding_format": "base64"}'), "Embeddings"),
        (tokenized(TokenizeCall(Segment("", True), True, False, counted=False), [1], [b"a"], 9), "Tokens"),
        (tokenized(TokenizeCall(Segment("", True), True, True, counted=False), [1], [b"\xff"], 9), "Tokens"),
        (tokenized(TokenizeCall(Segment("", True), True, False, counted=True), [1], [b"a"], 9), "Tokens"),
        (tokenized(TokenizeCall(Segment("", True), True, True, counted=True), [1], [b"a"], 9), "Tokens"),
        (detokenized(b"a"), "Text"),
        (template_applied([Segment("a", True)]), "Prompt"),
        (tokenizer_info(bos="", eos="e", chat_template=None, context=9), "TokenizerInfo"),
        (status_body("ok", None), "Status"),
        (status_body("failed", "why"), "Status"),
    ],
    ids=lambda item: item if isinstance(item, str) else "",
)
def test_real_answers_have_the_shape_in_the_document(answer, name):
    value = json.loads(answer)
    assert follows(value, name)
    assert not follows({**value, "more": 1}, name)


def test_a_bad_answer_would_be_noticed():
    answer = json.loads(chat_body(HEAD, [ChatChoice([Content("a")], None, "stop")], USAGE, TIMINGS))
    answer["choices"][0]["message"]["tool_calls"] = None
    assert not follows(answer, "ChatCompletion")


def test_routes_say_what_they_take_and_give():
    chat = DOCUMENT["paths"]["/v1/chat/completions"]["post"]
    assert chat["requestBody"]["content"]["application/json"]["schema"]["$ref"].endswith("/ChatBody")
    assert set(chat["responses"]["200"]["content"]) == {"application/json", "text/event-stream"}
    assert chat["responses"]["default"]["content"]["application/json"]["schema"]["$ref"].endswith("/Error")
    assert chat["security"] == [{}, {"bearer": []}, {"x-api-key": []}]
    assert DOCUMENT["paths"]["/healthz"]["get"]["security"] == [{}]
    assert set(DOCUMENT["paths"]["/readyz"]["get"]["responses"]) == {"200", "503", "default"}
    assert DOCUMENT["paths"]["/v1/models/{model}"]["get"]["parameters"][0]["name"] == "model"
    tokenize = DOCUMENT["paths"]["/tokenize"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert [form["$ref"].rpartition("/")[2] for form in tokenize["anyOf"]] == [
        *("ContentBody", "PromptBody", "ConversationBody")
    ]


def test_the_document_is_made_once():
    assert openapi_document("1.2.3") is openapi_document("1.2.3")
    assert json.loads(openapi_document("4.5.6"))["info"]["version"] == "4.5.6"
