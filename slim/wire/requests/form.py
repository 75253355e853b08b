"""The fields that give the answer a form: many names of several servers, one Grammar. Knows no endpoint.

Whether a schema or a grammar is any good is decided elsewhere; here it is only taken out of its wrapping.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from attrs import frozen

from ...errors import InvalidRequest
from ...types import Grammar
from ..convert import TEXT_LIST, BadValue, Fault, Reader, read_mapping, read_object, read_texts, valid_text

MAX_CHOICES = 1000

_GBNF_START = re.compile(r"^[ \t]*root[ \t]*::=", re.MULTILINE)
_LARK_START = re.compile(r"^[ \t]*\??start\b[^\n:]*:", re.MULTILINE)


def _schema(value: Any) -> dict[str, Any]:
    """A JSON Schema: an object, or the text of one, as vLLM's clients may send it."""
    if isinstance(value, str):
        try:
            value = read_object(valid_text(value).encode())
        except InvalidRequest:
            raise BadValue("must be a JSON Schema, which is an object") from None
    return read_mapping(value)


def _grammar(value: Any) -> Grammar | None:
    """A text in GBNF or Lark; empty stands for none."""
    if not valid_text(value):
        return None
    if _GBNF_START.search(value):
        return Grammar("gbnf", value, "")
    if _LARK_START.search(value):
        return Grammar("lark", value, "")
    raise BadValue("must have a rule `root ::= ...` (GBNF) or `start: ...` (Lark)")


def _choices(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not 1 <= len(value) <= MAX_CHOICES:
        raise BadValue(f"must be a list of 1 to {MAX_CHOICES} strings")
    return read_texts(value)


def _pattern(value: Any) -> str:
    if not valid_text(value):
        raise BadValue("must not be empty")
    return str(value)


def _nothing(value: Any) -> None:
    raise BadValue("is not supported here: omit it")


_OBJECT = {"type": "object"}
_Schema = Annotated[Mapping[str, Any] | None, Reader(_schema, {"type": ["object", "string"]}), "A JSON Schema."]
_Grammar = Annotated[Grammar | None, Reader(_grammar, {"type": "string"}), "A grammar in GBNF or Lark."]
_Choice = Annotated[
    tuple[str, ...] | None,
    Reader(_choices, {**TEXT_LIST, "minItems": 1, "maxItems": MAX_CHOICES}),
    "The answer is one of these texts.",
]
_Pattern = Annotated[
    str | None, Reader(_pattern, {"type": "string", "minLength": 1}), "A regular expression for the whole answer."
]
_Object = Annotated[Mapping[str, Any] | None, Reader(read_mapping, _OBJECT), "A JSON Schema."]
_Refused = Annotated[None, Reader(_nothing, {"type": "null"}), "Not supported: null."]


@frozen(kw_only=True)
class NamedSchema:
    """OpenAI's wrapping of a schema."""

    name: Annotated[str | None, "Any name; the model does not see it."] = None
    description: Annotated[str | None, "Not used."] = None
    schema: _Object = None
    strict: Annotated[bool, "The schema holds strictly either way."] = False


@frozen(kw_only=True)
class ResponseFormat:
    """OpenAI's way to ask for JSON."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: NamedSchema | None = None
    schema: Annotated[
        Mapping[str, Any] | None,
        Reader(read_mapping, _OBJECT),
        "A JSON Schema beside `json_object`, as llama.cpp's server takes it.",
    ] = None


@frozen(kw_only=True)
class StructuredOutputs:
    """vLLM's way: exactly one of these."""

    json: _Schema = None
    regex: _Pattern = None
    choice: _Choice = None
    grammar: _Grammar = None
    json_object: Annotated[bool | None, "Any JSON object."] = None
    structural_tag: _Refused = None
    whitespace_pattern: _Refused = None


@frozen(kw_only=True, slots=False)
class FormFields:
    """A body's part. At most one of them."""

    response_format: Annotated[ResponseFormat | None, "Text, JSON, or JSON by a schema: OpenAI's way."] = None
    json_schema: _Object = None
    grammar: _Grammar = None
    regex: _Pattern = None
    structured_outputs: Annotated[StructuredOutputs | None, "vLLM's way to the same."] = None
    guided_json: _Schema = None
    guided_regex: _Pattern = None
    guided_choice: _Choice = None
    guided_grammar: _Grammar = None


def form(asked: FormFields) -> Grammar | None:
    """The form that was asked for, once `form_faults` has found nothing."""
    return next(_grammars(asked), None)


def form_faults(asked: FormFields) -> Iterator[Fault]:
    """What is wrong between the fields."""
    if asked.response_format is not None:
        yield from _response_format_faults(asked.response_format)
    if asked.structured_outputs is not None and not list(_structured(asked.structured_outputs)):
        yield Fault("structured_outputs", "must have exactly one of json, regex, choice, grammar and json_object")
    grammars = list(_grammars(asked))
    for other in grammars[1:]:
        yield Fault(other.param, f"can't be combined with {grammars[0].param}: send one of them")


def _response_format_faults(wanted: ResponseFormat) -> Iterator[Fault]:
    named = wanted.json_schema
    if wanted.type == "json_schema" and (named is None or named.schema is None):
        yield Fault("response_format.json_schema.schema", "is required with type json_schema")
    if wanted.type != "json_schema" and named is not None:
        yield Fault("response_format.json_schema", "is only allowed with type json_schema")
    if wanted.type != "json_object" and wanted.schema is not None:
        yield Fault("response_format.schema", "is only allowed with type json_object")


def _grammars(asked: FormFields) -> Iterator[Grammar]:
    if asked.response_format is not None:
        yield from _response_format(asked.response_format)
    if asked.json_schema is not None:
        yield Grammar("json_schema", asked.json_schema, "json_schema")
    if asked.structured_outputs is not None:
        yield from _structured(asked.structured_outputs)
    yield from _guided(asked.guided_json, asked.guided_regex, asked.guided_choice, asked.guided_grammar, "guided_")
    yield from _guided(None, asked.regex, None, asked.grammar, "")


def _response_format(wanted: ResponseFormat) -> Iterator[Grammar]:
    if wanted.type == "json_schema" and wanted.json_schema is not None:
        yield Grammar("json_schema", wanted.json_schema.schema, "response_format.json_schema.schema")
    elif wanted.type == "json_object" and wanted.schema is not None:
        yield Grammar("json_schema", wanted.schema, "response_format.schema")
    elif wanted.type == "json_object":
        yield Grammar("json_object", None, "response_format")


def _structured(wanted: StructuredOutputs) -> Iterator[Grammar]:
    prefix = "structured_outputs."
    yield from _guided(wanted.json, wanted.regex, wanted.choice, wanted.grammar, prefix)
    if wanted.json_object:
        yield Grammar("json_object", None, f"{prefix}json_object")


def _guided(
    schema: Mapping[str, Any] | None,
    regex: str | None,
    choice: tuple[str, ...] | None,
    grammar: Grammar | None,
    prefix: str,
) -> Iterator[Grammar]:
    if schema is not None:
        yield Grammar("json_schema", schema, f"{prefix}json")
    if regex is not None:
        yield Grammar("regex", regex, f"{prefix}regex")
    if choice is not None:
        yield Grammar("choice", choice, f"{prefix}choice")
    if grammar is not None:
        yield Grammar(grammar.kind, grammar.source, f"{prefix}grammar")
