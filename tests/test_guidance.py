"""Grammars of every kind: what they let through, what is refused, and that nothing a client sends ends the process."""

import json
import pickle
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from slim.errors import InvalidRequest, Unanswerable
from slim.guidance import Guide, keywords
from slim.types import Grammar
from support.nasty import TOO_MUCH, WITHIN_LIMITS
from support.schemas import SMALL, TEXT, closed
from support.vocabulary import ByteTokenizer, allowed, takes, walk

TOKENIZER = ByteTokenizer()
GUIDE = Guide(TOKENIZER)
TOOL, TOOL_END = TOKENIZER.control["<|tool|>"], TOKENIZER.control["<|/tool|>"]


def compiled(kind, source, param="grammar"):
    return GUIDE.compile(Grammar(kind, source, param))


def honours(kind, source, good, bad):
    for text in good:
        assert takes(compiled(kind, source), text, TOKENIZER.end), text
    for text in bad:
        assert not takes(compiled(kind, source), text, TOKENIZER.end), text


def refusal(kind, source, param="grammar"):
    with pytest.raises(InvalidRequest) as caught:
        compiled(kind, source, param)
    text = str(caught.value)
    assert "\n" not in text
    assert len(text) < 500
    assert "no_forcing" not in text, "our own words are no help to a client"
    assert caught.value.param is not None
    assert caught.value.param.startswith(param)
    return text


# What each kind lets through.


@pytest.mark.parametrize(
    ("source", "good", "bad"),
    [
        ("[ab]+", ["a", "abba"], ["", "c", "ac"]),
        ("^[ab]+$", ["a", "abba"], ["", "^a$", "ca"]),
        ("a|b", ["a", "b"], ["ab", "xa"]),
        ("^a|b$", ["a", "b"], ["ab", "xb"]),
        ("^$", [""], ["a", "$"]),
        ("", [""], ["a"]),
        ("a/b", ["a/b"], ["ab"]),
        ("a\\$", ["a$"], ["a"]),
        ("a\nb", ["a\nb"], ["anb"]),
        ("(?i)yes", ["yes", "YES"], ["no"]),
        ("\\d{2}", ["42"], ["4", "٤٢"]),
        (" ", [" "], [""]),
    ],
)
def test_a_regex_is_the_whole_answer(source, good, bad):
    honours("regex", source, good, bad)


@pytest.mark.parametrize(
    ("choices", "bad"),
    [
        (("yes", "no"), ["", "yesno", "maybe", "y"]),
        (("a", "ab", "abc"), ["abcd", "b"]),
        (('quo"te', "back\\slash", "line\nbreak", "tab\t", "nul\x00", "del\x7f", "😀", "/re/", "<|end|>"), ["quote"]),
        (("same", "same"), ["samesame"]),
    ],
)
def test_a_choice_is_one_of_the_texts(choices, bad):
    honours("choice", choices, choices, bad)


LARK = 'start: greeting " " NAME "!"?\ngreeting: "hello" | "bye"\nNAME: /[A-Z][a-z]{0,9}/\n'
GBNF = 'root ::= greeting " " name "!"?\ngreeting ::= "hello" | "bye"\nname ::= [A-Z] [a-z]{0,9}\n'


@pytest.mark.parametrize(("kind", "source"), [("lark", LARK), ("gbnf", GBNF)])
def test_a_grammar_is_the_whole_answer(kind, source):
    honours(kind, source, ["hello Ann", "bye B!"], ["hello ann", "hi Ann", "hello Ann!!", ""])


@pytest.mark.parametrize(
    ("source", "good", "bad"),
    [
        ('root ::= "\\u0041\\u00e9\\U0001F600"', ["Aé😀"], ["A"]),
        ('root ::= "\\\\u0041"', ["\\u0041"], ["A"]),
        ('root ::= [^\\u0000-\\u001f\\u0022]+ "\\u0022"', ['ab"', 'é"'], ['"', "\n"]),
        ("root ::= [\\u005d\\u002d]", ["]", "-"], ["\\", "u"]),
        ('root ::= ("a" | "b"){2,3} # a comment', ["ab", "aba"], ["a", "abab"]),
        ('root ::= "(" root ")" | "x"', ["((x))"], ["((x)"]),
    ],
)
def test_gbnf_has_its_escapes_and_repetitions(source, good, bad):
    honours("gbnf", source, good, bad)


def test_a_json_object_has_any_members_and_one_spacing():
    good = ["{}", '{"a": 1}', '{"a": [1, {"b": null}], "c": "d"}']
    honours("json_object", None, good, ["[]", '{"a":1}', '{ "a": 1}', '{"a": 1,"b": 2}', '{"a": 1}\n', '"a"', ""])


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": "number", "exclusiveMinimum": 0, "maximum": 0.5}, ["0.1", "0.5"], ["0", "0.0", "0.51", "-0.1"]),
        ({"type": "number", "minimum": -2.82, "exclusiveMaximum": -2}, ["-2.5", "-2.82"], ["-2", "-2.0", "-1"]),
        ({"type": "number", "exclusiveMinimum": 1, "minimum": 1.5, "maximum": 2}, ["1.5", "2"], ["1", "1.2"]),
        ({"type": "integer", "exclusiveMinimum": 3, "exclusiveMaximum": 5}, ["4"], ["3", "5"]),
        ({"type": "integer", "exclusiveMinimum": 10**12, "maximum": 10**12 + 1}, [str(10**12 + 1)], [str(10**12)]),
        ({"type": "object", "properties": {"a": SMALL}}, ['{"a": 1}', "{}"], ['{"a": "x"}', '{"\\u0061": 1}']),
        ({"patternProperties": {"^x": SMALL}, "type": "object"}, ['{"x": 1, "y": "z"}'], ['{"\\u0078": "z"}']),
        ({"type": "string"}, ['"é😀 \\n\\""'], ['"\\u0041"', '"\n"', '"']),
        ({"format": "date", "type": "string"}, ['"2024-02-29"', '"2000-02-29"'], ['"2023-02-29"', '"1900-02-29"']),
        ({"format": "date-time"}, ['"1999-12-31T23:59:59.5Z"'], ['"1999-12-31T23:59:60Z"', '"1999-12-31 23:59:59Z"']),
        ({"type": "string", "format": "hiccup"}, ['"anything"'], ["3"]),
        ({"const": {"b": 1, "a": [True]}}, ['{"b": 1, "a": [true]}'], ['{"b": 1}', "{}"]),
        ({"type": "string", "pattern": "own fox"}, ['"brown fox es"'], ['"brown"']),
        (
            {"additionalProperties": False, "anyOf": [{"required": ["x1"]}], "patternProperties": {"^x": SMALL}},
            ['{"x1": 4}', '{"x1": 4, "x2": 5}'],
            ["{}", '{"y": 4}'],
        ),
        (
            closed(c={"$ref": "#/$defs/C"}) | {"$defs": {"C": {"enum": ["r", "g"]}}},
            ['{"c": "r"}'],
            ['{"c": "b"}', "{}"],
        ),
        (closed(["v"], v=SMALL, next={"$ref": "#"}), ['{"v": 1, "next": {"v": 2}}'], ['{"v": 1, "next": {}}']),
        (closed(["a", "b"], b=SMALL, a=SMALL), ['{"b": 1, "a": 2}'], ['{"a": 2, "b": 1}']),
        (True, ["3", "[{}]"], ["", "x"]),
    ],
)
def test_a_schema_means_what_json_schema_says(schema, good, bad):
    honours("json_schema", schema, good, bad)


# The constraint.


def test_the_mask_has_every_spelling_and_no_control_token():
    ids = allowed(compiled("regex", "the|true").mask())
    pieces = [TOKENIZER.pieces[token] for token in ids]
    assert sorted(pieces) == [b"t", b"the", b"the", b"true", b"true"]


def test_only_a_whole_answer_may_end_and_by_every_end_token():
    constraint = compiled("regex", "ab?")
    assert not TOKENIZER.end & set(allowed(constraint.mask()))
    constraint.accept(ord("a"))
    assert TOKENIZER.end <= set(allowed(constraint.mask()))
    assert not constraint.complete
    constraint.accept(ord("b"))
    assert constraint.complete
    assert set(allowed(constraint.mask())) == TOKENIZER.end


def test_an_end_token_completes_an_answer_that_could_go_on():
    constraint = compiled("regex", "a+")
    constraint.accept(ord("a"))
    constraint.accept(min(TOKENIZER.end))
    assert constraint.complete


def test_a_mask_has_a_bit_for_each_token():
    assert len(compiled("regex", "a").mask()) * 8 >= len(TOKENIZER.pieces)
    assert max(allowed(compiled("regex", "(?s:.)*").mask())) < len(TOKENIZER.pieces)


def test_a_token_that_the_mask_lacks_is_an_error_and_stays_one():
    constraint = compiled("regex", "ab")
    with pytest.raises(Unanswerable, match="token 98"):
        constraint.accept(ord("b"))
    with pytest.raises(Unanswerable):
        constraint.mask()
    assert not constraint.complete


def test_a_copy_begins_anew_and_goes_its_own_way():
    first = compiled("choice", ("ab", "ba"))
    first.accept(ord("a"))
    second = first.copy()
    second.accept(ord("b"))
    assert allowed(first.mask()) == [ord("b")]
    assert [token for token in allowed(second.mask()) if token < 256] == [ord("a")]


@pytest.mark.parametrize(
    ("kind", "source", "token"),
    [("regex", "((a{1,50}){1,50}){1,50}", "a"), ("lark", 'start: a\na: a a | "x"', "x")],
)
def test_a_limit_met_on_the_way_is_an_error_in_one_line(kind, source, token):
    constraint = compiled(kind, source)

    def go_on():
        for _ in range(250):
            constraint.mask()
            constraint.accept(ord(token))

    with pytest.raises(Unanswerable) as caught:
        go_on()
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_a_constraint_does_not_pickle():
    with pytest.raises(TypeError, match="pickle"):
        pickle.dumps(compiled("regex", "a"))


# A main grammar with parts: tool calls.

MAIN = "start: TEXT | call\nTEXT: /[a-z]+/\ncall: <|tool|> @answer <|/tool|> | <|tool|> @one <|/tool|>"


def test_a_main_grammar_may_have_control_tokens_and_names_its_parts():
    parts = {"one": Grammar("json_schema", closed(a=SMALL), "tools[0].function.parameters")}
    guided = GUIDE.compile(Grammar("choice", ("yes", "no"), "response_format"), MAIN, parts)
    assert TOOL in allowed(guided.mask())
    assert ord("t") in allowed(guided.mask())
    for answer in (b"yes", b'{"a": 12}'):
        constraint = guided.copy()
        for token in (TOOL, *answer, TOOL_END):
            assert token in allowed(constraint.mask())
            constraint.accept(token)
        assert constraint.complete


def test_the_part_at_fault_is_named():
    good = Grammar("json_object", None, "response_format")
    parts = {
        "one": Grammar("json_schema", closed(a=SMALL), "tools[0].function.parameters"),
        "two": Grammar("json_schema", {"type": "integer", "minimum": 3, "maximum": 2}, "tools[1].function.parameters"),
    }
    main = "start: @answer | @one | @two"
    with pytest.raises(InvalidRequest, match=r"minimum \(3\)") as caught:
        GUIDE.compile(good, main, parts)
    assert caught.value.param == "tools[1].function.parameters"


def test_parts_need_no_answer():
    parts = {"one": Grammar("regex", "x+", "tools[0]")}
    assert takes(GUIDE.compile(None, 'start: "<" @one ">"', parts), "<xx>", TOKENIZER.end)


# The vocabulary.


class Counted(ByteTokenizer):
    """Counts how often its pieces are read, and gives a second reader time to come."""

    def __init__(self):
        self.reads = 0
        self.again = threading.Event()
        super().__init__()

    @property
    def pieces(self):
        self.reads += 1
        if self.reads > 1:
            self.again.set()
        self.again.wait(0.2)
        return self._pieces

    @pieces.setter
    def pieces(self, value):
        self._pieces = value


def test_the_vocabulary_is_read_once_and_only_when_needed():
    tokenizer = Counted()
    guide = Guide(tokenizer)
    with pytest.raises(InvalidRequest):
        guide.compile(Grammar("json_schema", {"not": {}}, "p"))
    assert tokenizer.reads == 0
    threads = [threading.Thread(target=guide.compile, args=(Grammar("regex", "a", "p"),)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert tokenizer.reads == 1


def test_a_byte_that_begins_no_text_is_never_allowed():
    """llguidance marks control tokens with it, and some vocabularies have it as a token."""
    assert 255 not in allowed(compiled("lark", "start: /(?s:.)*/").mask())


def test_the_real_vocabulary_of_smollm2():
    llama_cpp = pytest.importorskip("llama_cpp")
    from slim.engines.llama_cpp.vocab import Vocabulary
    from support.smollm2 import smollm2_path

    parameters = llama_cpp.llama_model_default_params()
    parameters.vocab_only = True
    model = llama_cpp.llama_model_load_from_file(str(smollm2_path()).encode(), parameters)
    try:
        tokenizer = Vocabulary(llama_cpp, model)
        guide = Guide(tokenizer)
        constraint = guide.compile(Grammar("json_schema", closed(name=TEXT, ok={"type": "boolean"}), "p"))
        names = {tokenizer.pieces[token] for token in allowed(constraint.mask())}
        assert names == {b"{", b'{"'}
        answer = walk(constraint, tokenizer, 1)
        assert answer is not None
        assert answer.startswith(b'{"name": "')
    finally:
        llama_cpp.llama_model_free(model)


# What is refused.


@pytest.mark.parametrize(
    ("kind", "source", "word"),
    [
        ("regex", "a\\", "backslash"),
        ("regex", "(?=x)y", "look-around"),
        ("regex", "(a)\\1", "backreferences"),
        ("regex", "a\\bc", "word boundary"),
        ("regex", "[", "unclosed"),
        ("regex", "a{2,1}", "repetition"),
        ("regex", "\ud800", "surrogate"),
        ("regex", "a" * 4001, "4,000"),
        ("choice", ("\ud800",), "surrogate"),
        ("choice", tuple(f"choice {number}" for number in range(5000)), "characters in all"),
        ("lark", "", "start"),
        ("gbnf", "", "GBNF"),
        ("lark", "nonsense", "Expected"),
        ("lark", 'begin: "a"', "start"),
        ("lark", "start: missing", "missing"),
        ("lark", 'start: "a', "does not end"),
        ("lark", 'start: / "test"', "does not end"),
        ("lark", "start: <|end|>", "control tokens"),
        ("lark", "start: <[*]>", "control tokens"),
        ("lark", "start: @answer", "@"),
        ("lark", 'start: %json {"not": {}}', "%json"),
        ("lark", 'start: a\na[temperature=0.5]: "b"', "temperature"),
        ("lark", "start: A\nA: /(.*a.{900}z)*/ & /(.*b.{900}z)*/", "& and ~"),
        ("lark", "start: A\nA: ~(~/(.*a.{900}z)*/ | ~ /(.*b.{900}z)*/)", "& and ~"),
        ("lark", 'start: a "c"\na[stop="b"]: /.*/', "stop"),
        ("lark", "start: start", "no text"),
        ("lark", "start: " + "(" * 40 + '"a"' + ")" * 40, "nested"),
        ("lark", "start: /" + "a" * 4_000 + "/", "4,000 characters"),
        ("lark", 'start: "' + "a" * 32_768 + '"', "32,768 characters"),
        ("gbnf", "root ::= this is (not valid GBNF", "GBNF"),
        ("gbnf", 'root ::= "a', "GBNF"),
        ("gbnf", "root ::= missing", "missing"),
        ("gbnf", 'start ::= "a"', "root"),
        ("gbnf", "root ::= " + "(" * 20_000, "nested"),
        ("gbnf", 'root ::= "a"\n' * 501, "500 rules"),
    ],
)
def test_a_bad_text_is_refused_with_its_reason(kind, source, word):
    assert word in refusal(kind, source)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer", "const": -1e20},  # ended the process
        {"type": "integer", "const": 1e20},  # was answered with another number
        {"type": ["integer", "null"], "enum": [None, -9223372036854775808.0]},
        {"allOf": [{"type": "integer"}, {"const": 2.0**54}]},
        {"type": "integer", "minimum": -1e19},
        {"const": {"a": [10**300]}},
    ],
)
def test_a_number_too_large_to_be_exact_is_refused(schema):
    assert "2**53" in refusal("json_schema", schema)


@pytest.mark.parametrize(
    ("pattern", "text", "fits"),
    [
        (r"^\s$", "\u0085", False),
        (r"^\s$", "\ufeff", True),
        (r"^[\s]$", "\u2003", True),
        (r"^[^\s]$", "\u0085", True),
        (r"^\S$", "\ufeff", False),
        (r"^[a\S]$", "\u3000", False),
        (r"^[^\S]$", "\u00a0", True),
        ("^.$", "\u2028", False),
        ("^.$", "\u0085", True),
        ("^[.]$", "a", False),
        (r"^\.$", "a", False),
    ],
)
def test_a_pattern_means_what_ecma_262_says(pattern, text, fits):
    schemas = [
        {"type": "string", "pattern": pattern},
        {"type": "object", "patternProperties": {pattern: SMALL}, "additionalProperties": False},
    ]
    texts = [json.dumps(text, ensure_ascii=False), json.dumps({text: 1}, ensure_ascii=False)]
    for schema, answer in zip(schemas, texts, strict=True):
        assert takes(compiled("json_schema", schema), answer, TOKENIZER.end) == fits


def test_a_one_of_that_may_overlap_is_refused_by_name():
    schema = closed(a={"oneOf": [{"type": "string", "pattern": "a"}, {"type": "string", "pattern": "b"}]})
    assert "oneOf" in refusal("json_schema", schema)


@pytest.mark.parametrize(
    ("schema", "hint"),
    [
        ({"items": [SMALL]}, "prefixItems"),
        ({"additionalItems": False}, "prefixItems"),
        ({"minimum": 3, "exclusiveMinimum": True}, "the bound itself"),
        ({"unevaluatedProperties": False}, "additionalProperties"),
        ({"$ref": "https://example.com/schema"}, "#/$defs/name"),
        ({"type": "hiccup"}, "boolean, integer"),
        ({"pattern": "(?=x)"}, "look-ahead"),
    ],
)
def test_a_refusal_says_what_to_write_instead(schema, hint):
    assert hint in refusal("json_schema", schema)


@pytest.mark.parametrize("name", TOO_MUCH)
def test_too_much_is_refused_without_a_vocabulary(name):
    with pytest.raises(InvalidRequest) as caught:
        Guide(None).compile(Grammar("json_schema", TOO_MUCH[name], "schema"))
    assert len(str(caught.value)) < 3_000


@pytest.mark.parametrize("name", WITHIN_LIMITS)
def test_much_is_honoured(name):
    constraint = compiled("json_schema", WITHIN_LIMITS[name])
    for _ in range(8):
        constraint.accept(allowed(constraint.mask())[0])


def test_nothing_ends_the_process():
    """In a process of its own, because most of these end one that has no limits."""
    here = Path(__file__).parent
    program = "import sys; sys.path[:0] = sys.argv[1:]; from support.nasty import compile_all; compile_all()"
    command = [sys.executable, "-c", program, str(here), str(here.parent)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert re.fullmatch(r"alive: \d+ cases, \d+ refused\n", done.stdout), done.stderr[-2_000:]


# The document.


def test_the_api_document_lists_the_honoured_keywords_and_formats():
    text = (Path(__file__).parent.parent / "docs/api.md").read_text(encoding="utf-8")
    table = text.partition("### JSON Schema")[2].partition("\n#")[0]
    rows = dict(line.strip("|").split("|")[:2] for line in table.splitlines() if line.startswith("| "))
    listed = {name.strip(): set(cell.replace("`", "").replace(",", " ").split()) for name, cell in rows.items()}
    for name in ("core", "numbers", "strings", "arrays", "objects"):
        assert listed[name] == getattr(keywords, name.upper())
    assert listed["formats"] == set(keywords.FORMATS)
    assert listed["refused"] == set(keywords.REFUSED)


A, B = {"properties": {"a": {"type": "null"}}}, {"properties": {"b": {"type": "null"}}}


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": "object", **A}, ["{}", '{"a": null}'], ['{"x": null}', '{"a": null, "x": 1}']),
        ({"type": "object", **A, "additionalProperties": True}, ['{"a": null, "x": 1}'], []),
        ({"type": "object", **A, "required": ["x"]}, ['{"a": null, "x": 1}'], ["{}"]),
        ({"properties": {"n": {"type": "object", **A}}, "type": "object"}, ['{"n": {}}'], ['{"n": {"x": 1}}']),
        (
            {"type": "array", "items": {"$ref": "#/$defs/A"}, "$defs": {"A": {"type": "object", **A}}},
            ["[{}]"],
            ['[{"x'],
        ),
        # What is merged may have the properties of each.
        ({"type": "object", "allOf": [A, B]}, ['{"a": null, "b": null}'], ['{"a": 1}']),
        (
            {"type": "object", "allOf": [{"$ref": "#/$defs/A"}, B], "$defs": {"A": A}},
            ['{"a": null, "b": null}'],
            ['{"a": 1}'],
        ),
        ({"type": "object", **A, "anyOf": [B, {"required": ["a"]}]}, ['{"a": null, "b": null}'], []),
    ],
)
def test_an_object_that_names_its_properties_gets_no_others(schema, good, bad):
    honours("json_schema", schema, good, bad)


def test_patterns_that_would_have_to_be_intersected_are_few():
    many = {"allOf": [{"type": "string", "pattern": f"a.{{{number}}}b"} for number in range(40)]}
    assert "patterns may be merged" in refusal("json_schema", many)
    named = {f"p{number}": one for number, one in enumerate(many["allOf"])}
    by_name = {"allOf": [{"$ref": f"#/$defs/{name}"} for name in named], "$defs": named}
    assert "patterns may be merged" in refusal("json_schema", by_name)
