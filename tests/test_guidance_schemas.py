"""Answers to several hundred schemas: drawn from the masks at random, and judged by the `jsonschema` package."""

import json
from functools import cache

import pytest
from jsonschema import Draft202012Validator

from slim.errors import InvalidRequest
from slim.guidance import Guide
from slim.types import Grammar
from support import schemas
from support.vocabulary import ByteTokenizer, walk

TOKENIZER = ByteTokenizer()
GUIDE = Guide(TOKENIZER)
SUPPORTED = schemas.supported()
UNSUPPORTED = schemas.unsupported()
PARAM = "response_format.json_schema.schema"


@cache
def validator(name):
    # \p{...} is ECMA's, and Python's re has none.
    schema = {key: value for key, value in SUPPORTED[name].items() if "\\p" not in str(value)}
    return Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER)


def test_there_are_enough_of_them():
    assert len(SUPPORTED) >= 200
    assert len(UNSUPPORTED) >= 60
    assert len(SUPPORTED) + len(UNSUPPORTED) >= 300


@pytest.mark.parametrize("name", SUPPORTED)
def test_random_answers_are_json_that_the_schema_allows(name):
    constraint = GUIDE.compile(Grammar("json_schema", SUPPORTED[name], PARAM))
    for seed in range(3):
        answer = walk(constraint.copy(), TOKENIZER, f"{name} {seed}")
        assert answer is not None, "an answer that does not end"
        found = [error.message for error in validator(name).iter_errors(json.loads(answer))]
        assert found == [], answer


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_what_cannot_be_honoured_is_refused_by_its_path(name):
    schema, path = UNSUPPORTED[name]
    with pytest.raises(InvalidRequest) as caught:
        GUIDE.compile(Grammar("json_schema", schema, PARAM))
    assert caught.value.param == (PARAM if not path else f"{PARAM}.{path}")
    assert str(caught.value).startswith(f"{caught.value.param}: ")


def test_the_masks_never_ask_the_tokenizer():
    """It would hold Python's lock, and may be closed with its engine."""
    before = TOKENIZER.encoded
    walk(GUIDE.compile(Grammar("json_schema", SUPPORTED["realistic-0"], PARAM)), TOKENIZER, 1)
    assert TOKENIZER.encoded == before
