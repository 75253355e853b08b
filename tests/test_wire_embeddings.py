"""Bodies and answers of `/v1/embeddings`."""

import base64
import json
import struct
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slim.errors import InvalidRequest
from slim.types import Segment
from slim.wire.embeddings import MAX_INPUTS, EmbeddingAnswer, EmbeddingCall, parse_embeddings
from slim.wire.requests import RequestLimits

LIMITS = RequestLimits(max_tokens=16, max_prompt_chars=100, places=8)


def parse(**fields: Any) -> EmbeddingCall:
    return parse_embeddings(json.dumps(fields).encode(), LIMITS)


def refused(**fields: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        parse(**fields)
    return caught.value


def plain(text: str) -> tuple[Segment, ...]:
    return (Segment(text, parse_special=False),)


@pytest.mark.parametrize(
    ("sent", "inputs"),
    [
        ("a cat", (plain("a cat"),)),
        (["a", "b"], (plain("a"), plain("b"))),
        ([1, 2], ((1, 2),)),
        ([[1], [2, 3]], ((1,), (2, 3))),
        (" ", (plain(" "),)),
        ("<|im_end|>", (plain("<|im_end|>"),)),
        (["x"] * MAX_INPUTS, (plain("x"),) * MAX_INPUTS),
    ],
    ids=lambda value: str(value)[:20],
)
def test_every_form_of_input_is_read(sent: Any, inputs: Any) -> None:
    assert parse(input=sent).inputs == inputs


@pytest.mark.parametrize(
    ("sent", "param", "words"),
    [
        (None, "input", "required"),
        ("", "input", "empty"),
        ([], "input", "not empty"),
        ([[]], "input[0]", "empty"),
        (["a", ""], "input[1]", "empty"),
        ([""], "input", "empty"),
        (5, "input", "must be a string"),
        ({"text": "a"}, "input", "must be a string"),
        (["a", 1], "input[1]", "string"),
        ([1, "a"], "input[1]", "whole number"),
        ([1, True], "input[1]", "whole number"),
        ([[1], [1.0]], "input[1][0]", "whole number"),
        ([-1], "input[0]", "whole number"),
        ([2**31], "input[0]", "whole number"),
        ("\ud800", "input", "surrogate"),
        ("x" * 101, "input", "101 characters"),
        ([[1] * 101, [2]], "input[0]", "101 token ids"),
        (["x"] * (MAX_INPUTS + 1), "input", "2049 entries"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_bad_input_is_named(sent: Any, param: str, words: str) -> None:
    error = refused(input=sent)
    assert error.param == param
    assert words in str(error)


def test_the_other_fields_have_openais_meaning() -> None:
    assert parse(input="a") == EmbeddingCall((plain("a"),), base64=False, dimensions=None)
    full = parse(input="a", model="text-embedding-3-small", user="u", encoding_format="base64", dimensions=576)
    assert full == EmbeddingCall((plain("a"),), base64=True, dimensions=576)
    assert parse(input="a", encoding_format=None, dimensions=None, model=None) == parse(input="a")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("encoding_format", "hex"),
        ("encoding_format", 1),
        ("dimensions", 0),
        ("dimensions", 1.5),
        ("dimensions", True),
        ("truncate_prompt_tokens", 5),
        ("normalize", False),
        ("messages", [{"role": "user", "content": "a"}]),
    ],
)
def test_what_is_not_honoured_is_refused_by_name(field: str, value: Any) -> None:
    assert refused(input="a", **{field: value}).param == field


def test_every_bad_field_is_named_at_once() -> None:
    text = str(refused(input=5, dimensions=0, encoding_format="x"))
    assert all(name in text for name in ("input", "dimensions", "encoding_format"))


@settings(max_examples=50, deadline=None)
@given(
    st.binary(max_size=40)
    | st.recursive(st.none() | st.text() | st.integers(), st.lists, max_leaves=5).map(
        lambda value: json.dumps({"input": value}).encode()
    )
)
def test_no_body_raises_anything_but_invalid_request(body: bytes) -> None:
    with suppress(InvalidRequest):
        parse_embeddings(body, LIMITS)


VECTORS = ((0.1, -1 / 3, 1e-30), (0.123456789, 0.0, -7.0064923e-45))


def answer(*, as_base64: bool) -> dict[str, Any]:
    gathered = EmbeddingAnswer(EmbeddingCall((plain("a"), plain("b")), as_base64, None))
    for place in (1, 0):
        gathered.add(place, VECTORS[place])
    body: dict[str, Any] = json.loads(gathered.body('the "model"', 7))
    return body


def test_the_answer_has_openais_shape_in_the_order_of_the_inputs() -> None:
    body = answer(as_base64=False)
    assert list(body) == ["object", "data", "model", "usage"]
    assert body["object"] == "list"
    assert body["model"] == 'the "model"'
    assert body["usage"] == {"prompt_tokens": 7, "total_tokens": 7}
    assert [(item["object"], item["index"]) for item in body["data"]] == [("embedding", 0), ("embedding", 1)]


def test_floats_are_exact_as_32_bit_numbers() -> None:
    for item, vector in zip(answer(as_base64=False)["data"], VECTORS, strict=True):
        assert struct.pack("<3f", *item["embedding"]) == struct.pack("<3f", *vector)


def test_base64_is_the_bytes_of_little_endian_floats() -> None:
    for item, vector in zip(answer(as_base64=True)["data"], VECTORS, strict=True):
        assert base64.b64decode(item["embedding"], validate=True) == struct.pack("<3f", *vector)
