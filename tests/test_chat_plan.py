"""What a model may answer: grammars run in llguidance, and what they allow is read back.

Most tests have a vocabulary of a few hundred tokens, which is quick; some have SmolLM2's, whose tokens hold more.
"""

import itertools
import json
import random
import re
from functools import cache

import jsonschema
import numpy as np
import pytest
from attrs import frozen

from slim.answer import CallArguments, CallStart, Content, Reasoning
from slim.chat.calls import PLAIN
from slim.chat.formats import plan
from slim.chat.output import ChatOutput
from slim.types import Grammar
from support.chat import CONTROLS, call, conversation, message, smollm2_vocabulary, template, tool
from support.vocabulary import ByteTokenizer

llguidance = pytest.importorskip("llguidance")

SPACING = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 8}, "days": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["city"],
    "additionalProperties": False,
}
MANY = {
    "type": "object",
    "properties": {
        "unit": {"enum": ["C", "F", 3, None]},
        "all": {"type": "boolean"},
        "at": {"type": "object", "properties": {"x": {"type": "number"}, "y": {"type": "number"}}, "required": ["y"]}
        | {"additionalProperties": False},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 4}, "maxItems": 2},
        "either": {"anyOf": [{"const": "a/b"}, {"type": ["integer", "null"]}]},
    },
    "required": ["unit", "at"],
    "additionalProperties": False,
}
TOOLS = (tool("get_weather", CITY), tool("look-up_2", MANY), tool("now"))
SCHEMAS = {"get_weather": CITY, "look-up_2": MANY, "now": {"type": "object", "maxProperties": 0}}
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 6}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
ANSWER = Grammar("json_schema", PERSON, "response_format.json_schema.schema")
USER = message("user", "hi")
END = 0
FREE = 9
"""The ids below it are the end token and what a family's control tokens get."""
TEACHING = ["hermes", "llama3", "mistral", "mistral_named", "function_gemma", "thinking"]
FAMILIES = [*TEACHING, "chatml", "opened", "coder"]


@cache
def small_vocabulary():
    """Every byte that a text needs, and common pieces of JSON."""
    made = ByteTokenizer()
    made.pieces[:FREE] = [b""] * FREE
    return made


@frozen(eq=False)
class Renamed:
    """A vocabulary whose control tokens are called as in another family. `end` is a token of no mark."""

    control: dict[str, int]
    vocabulary: object
    bos: str = ""
    eos: str = ""

    @property
    def pieces(self):
        return self.vocabulary.pieces

    @property
    def end(self):
        return frozenset({END})

    def encode(self, segments, *, leading=True):
        return self.vocabulary.encode(segments, leading=leading)

    def ids(self, text):
        """The tokens of a text in which control tokens stand for themselves."""
        marks = "|".join(map(re.escape, self.control))
        for piece in re.split(f"({marks})", text):
            if piece in self.control:
                yield self.control[piece]
            else:
                yield from self.spelled(piece)

    def spelled(self, text):
        """The tokens of a text in which control tokens are ordinary letters."""
        return self.vocabulary.encode((Plain(text),), leading=False)


@frozen
class Plain:
    text: str
    parse_special: bool = False


def renamed(family, *, as_text=False, large=False):
    """With `as_text` the marks of calls and reasoning are ordinary text, as in models that were trained later."""
    return with_controls(CONTROLS[family][:2] if as_text else CONTROLS[family], large)


@cache
def with_controls(names, large):
    control = {name: number for number, name in enumerate(names, 1)}
    return Renamed(control, smollm2_vocabulary() if large else small_vocabulary())


class Wrapped:
    """A vocabulary as llguidance wants it."""

    eos_token_id = END
    bos_token_id = None

    def __init__(self, tokenizer):
        self._tokenizer = tokenizer
        names = {number: name for name, number in tokenizer.control.items()}
        self.special_token_ids = [END, *names]
        self.tokens = [
            b"\xff" + names.get(number, f"<{number}>").encode() if number in names or not piece else piece
            for number, piece in enumerate(tokenizer.pieces)
        ]

    def __call__(self, text):
        return list(self._tokenizer.spelled(bytes(text).decode()))


@cache
def engine_of(tokenizer):
    wrapped = Wrapped(tokenizer)
    return llguidance.LLTokenizer(llguidance.TokenizerWrapper(wrapped), n_vocab=len(wrapped.tokens))


def matcher(made, tokenizer, answer=None):
    """llguidance's state machine for a plan."""
    grammars = [{"lark_grammar": made.main}]
    for name, part in {**made.parts, **({"answer": answer} if answer else {})}.items():
        schema = {"type": "object"} if part.kind == "json_object" else part.source
        grammars.append({"name": name, "json_schema": {**schema, "x-guidance": SPACING}})
    return compiled(tokenizer, json.dumps({"grammars": grammars})).deep_copy()


@cache
def compiled(tokenizer, text):
    machine = llguidance.LLMatcher(engine_of(tokenizer), text, log_level=0)
    assert not machine.is_error(), machine.get_error()
    return machine


def accepted(made, tokenizer, text, answer=None):
    """Whether a text is a whole answer, the beginning of one, or neither: True, None, False."""
    machine = matcher(made, tokenizer, answer)
    for token in tokenizer.ids(text):
        if not machine.consume_token(token):
            return False
    return True if machine.is_accepting() else None


def walk(made, tokenizer, rng, begin="", answer=None, limit=2000):
    """A random answer that begins with a text: the text as the engine shows it."""
    machine = matcher(made, tokenizer, answer)
    names = {number: name for name, number in tokenizer.control.items()}
    ends = [list(tokenizer.ids(text)) for text in ends_of(made.output)]
    data = b""
    forced = list(tokenizer.ids(begin))
    for _ in range(limit):
        if machine.is_stopped():
            break
        if not forced and ends and rng.random() < 0.3:
            forced = next((end[:] for end in ends if machine.validate_tokens(end) == len(end)), [])
        token = forced.pop(0) if forced else choose(machine, tokenizer, rng)
        assert machine.consume_token(token), (data, machine.get_error())
        if token in tokenizer.end:
            break
        data += names[token].encode() if token in made.shown else tokenizer.pieces[token]
    else:
        pytest.fail(f"no end: {data!r}")
    return data.decode("utf-8", "replace")


def ends_of(output):
    """Texts that a random walk would never end with."""
    if output.calls and output.calls.arguments:
        yield "<escape>"
    if output.reasoning:
        yield output.reasoning.close


@cache
def closers(tokenizer):
    """Tokens that may end a string, an object or a list: one bit for each id."""
    return np.array([piece[:1] in (b'"', b"}", b"]") for piece in tokenizer.pieces])


def choose(machine, tokenizer, rng):
    """An allowed token; likely one that ends something."""
    bits = np.frombuffer(machine.compute_bitmask(), np.uint8)
    closing = closers(tokenizer)
    allowed = np.unpackbits(bits, bitorder="little")[: len(closing)].astype(bool)
    assert allowed.any(), machine.get_error()
    if allowed[END] and rng.random() < 0.6:
        return END
    closing = np.flatnonzero(allowed & closing)
    if len(closing) and rng.random() < 0.6:
        return int(rng.choice(closing))
    return int(rng.choice(np.flatnonzero(allowed)))


@frozen
class Answer:
    content: str
    reasoning: str
    calls: list
    """Name and arguments as text."""


def read(made, text):
    numbers = itertools.count()
    output = ChatOutput(made.output, lambda: f"{next(numbers):024d}")
    found = [delta for char in text for delta in output.feed(char)] + output.finish()
    calls = []
    for delta in found:
        match delta:
            case CallStart(index, _, name):
                assert index == len(calls)
                calls.append([name, ""])
            case CallArguments(index, piece):
                assert index == len(calls) - 1
                calls[-1][1] += piece
    content = "".join(delta.text for delta in found if isinstance(delta, Content))
    return Answer(content, "".join(delta.text for delta in found if isinstance(delta, Reasoning)), calls)


def planned(family, tokenizer=None, *, answer=None, messages=(USER,), **more):
    tokenizer = tokenizer or renamed(family)
    made = template(family, tokenizer)
    prompt = conversation(*messages, **more)
    return plan(made, prompt, made.render(prompt), answer, tokenizer)


UNENFORCED = ("maxLength", "minimum", "maximum", "maxItems")
"""Keywords that FunctionGemma's form can't have."""


def without_bounds(schema):
    match schema:
        case dict():
            return {key: without_bounds(value) for key, value in schema.items() if key not in UNENFORCED}
        case list():
            return [without_bounds(value) for value in schema]
    return schema


def check_calls(made, answer, schemas=SCHEMAS):
    assert answer.calls
    assert answer.content == ""
    for name, arguments in answer.calls:
        schema = without_bounds(schemas[name]) if made.output.calls.arguments else schemas[name]
        jsonschema.validate(json.loads(arguments), schema)


TRIGGERS = {
    "hermes": "<tool_call>",
    "thinking": "<tool_call>",
    "llama3": "<|python_tag|>",
    "mistral": "[TOOL_CALLS]",
    "mistral_named": "[TOOL_CALLS]",
    "function_gemma": "<start_function_call>",
}
BARE = {"llama3": ' {"name" : "get_weather"', "chatml": '{"name": "look-up_2"', "coder": '\n{ "name":"now"'}
OPENED = {"opened": "So.</think>\n"}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("as_text", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_required_calls_are_calls_whose_arguments_validate(family, as_text, seed):
    tokenizer = renamed(family, as_text=as_text)
    made = planned(family, tokenizer, tools=TOOLS, tool_choice="required")
    text = walk(made, tokenizer, random.Random(seed), OPENED.get(family, ""))
    check_calls(made, read(made, text))


@pytest.mark.parametrize(("as_text", "large"), [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize("family", TEACHING)
def test_from_the_mark_on_the_form_and_the_schema_hold(family, as_text, large):
    tokenizer = renamed(family, as_text=as_text, large=large)
    made = planned(family, tokenizer, tools=TOOLS)
    answer = read(made, walk(made, tokenizer, random.Random(0), f"Let me see.\n{TRIGGERS[family]}"))
    assert answer.content == "Let me see."
    check_calls(made, Answer("", "", answer.calls))


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("family", BARE)
def test_an_answer_that_begins_like_a_call_becomes_one(family, seed):
    tokenizer = renamed(family, large=bool(seed))
    made = planned(family, tokenizer, tools=TOOLS)
    check_calls(made, read(made, walk(made, tokenizer, random.Random(seed), BARE[family])))


@pytest.mark.parametrize("as_text", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    "text",
    [
        "Hello there. ",
        "",
        "1 < 2 <tool",
        '{"name": "Ann", "age": 3}',
        '{"city": "Paris"}',
        "call:get_weather {",
        "\n\n{",
    ],
)
def test_with_auto_any_other_text_is_an_answer(family, as_text, text):
    tokenizer = renamed(family, as_text=as_text)
    made = planned(family, tokenizer, tools=TOOLS)
    begin = OPENED.get(family, "")
    assert accepted(made, tokenizer, begin + text)
    assert read(made, begin + text).content == (text.lstrip() if begin else text)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("choice", ["auto", "required", "=now"])
def test_a_call_that_is_written_otherwise_can_t_be_made(family, choice):
    """Neither another function nor other arguments, nor the mark spelled out of ordinary letters."""
    made = planned(family, tools=TOOLS, tool_choice=choice)
    tokenizer = renamed(family)
    begin = OPENED.get(family, "")
    form = made.output.calls
    bad = {
        "function_gemma": ["call:nope", "call:get_weather{days:", "call:get_weather{city:5", "call:now{a"],
        "mistral_named": ["nope", 'get_weather[ARGS]{"days', 'get_weather[ARGS]{"city": 5', 'now[ARGS]{"a'],
    }.get(family)
    opening = form.opening + form.head
    bad = bad or [
        opening + name + form.middle + rest
        for name, rest in (("nope", ""), ("get_weather", '{"days'), ("get_weather", '{"city": 5'), ("now", '{"a'))
    ]
    if form.bare and choice == "auto":
        bad = bad[1:]  # another name makes it text
    for text in bad:
        assert accepted(made, tokenizer, begin + form.mark + text) is False
    if form.mark in tokenizer.control:
        spelled = tokenizer.spelled(form.mark)
        machine = matcher(made, tokenizer)
        assert not all(machine.consume_token(token) for token in [*tokenizer.ids(begin), *spelled])


@pytest.mark.parametrize("family", FAMILIES)
def test_a_named_function_is_the_only_one(family):
    made = planned(family, tools=TOOLS, tool_choice="=look-up_2")
    for seed in range(2):
        answer = read(made, walk(made, renamed(family), random.Random(seed), OPENED.get(family, "")))
        check_calls(made, answer)
        assert {name for name, _ in answer.calls} == {"look-up_2"}


@pytest.mark.parametrize("family", TEACHING)
@pytest.mark.parametrize("choice", ["auto", "required"])
def test_parallel_calls_are_possible_where_the_form_has_them_and_not_forbidden(family, choice):
    tools = (tool("now"),)
    one = {
        "function_gemma": "<start_function_call>call:now{}<end_function_call>",
        "mistral_named": "[TOOL_CALLS]now[ARGS]{}",
        "mistral": '[TOOL_CALLS][{"name": "now", "arguments": {}}',
        "llama3": '{"name": "now", "parameters": {}}',
    }.get(family, '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>')
    again = {
        "function_gemma": one,
        "mistral_named": one,
        "mistral": ', {"name": "now", "arguments": {}}]',
        "llama3": None,
    }.get(family, f"\n{one}")
    closing = "]" if family == "mistral" else ""
    for parallel in (True, False):
        made = planned(family, tools=tools, tool_choice=choice, parallel_tool_calls=parallel)
        assert accepted(made, renamed(family), one + closing) is True
        assert accepted(made, renamed(family), f"{one}{closing} and") is False
        if again:
            assert accepted(made, renamed(family), one + again) is parallel
            assert len(read(made, one + again).calls) == 2


@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "opened"])
@pytest.mark.parametrize("as_text", [False, True])
def test_an_answer_s_form_holds_beside_the_calls(family, as_text):
    """With a schema for the answer the model may write that or a call, and no free text."""
    tokenizer = renamed(family, as_text=as_text)
    made = planned(family, tokenizer, tools=TOOLS, answer=ANSWER)
    form = made.output.calls
    for seed in range(4):
        begin = (form.mark or '{"name": "get_weather"') if seed % 2 else ""
        answer = read(made, walk(made, tokenizer, random.Random(seed), begin, answer=ANSWER))
        if answer.calls:
            check_calls(made, answer)
        else:
            jsonschema.validate(json.loads(answer.content), PERSON)
    for text in ('{"name": "Ann", "age": 3}', '{"name": "now", "age": 3}'):
        assert accepted(made, tokenizer, text, ANSWER) is True
        assert read(made, text).content == text
    for text in ("Hello", '{"age"', '{"name": 5'):
        assert accepted(made, tokenizer, text, ANSWER) is False


@pytest.mark.parametrize("family", ["thinking", "mistral_named"])
@pytest.mark.parametrize("as_text", [False, True])
def test_reasoning_may_come_before_an_answer_with_a_form(family, as_text):
    tokenizer = renamed(family, as_text=as_text)
    made = planned(family, tokenizer, answer=ANSWER)
    opening, closing = made.output.reasoning.open, made.output.reasoning.close
    person = '{"name": "Ann", "age": 3}'
    for between in ("", "\n", "\n\n"):
        text = f"{opening}\nHm, {{ <b> }}.\n{closing}{between}{person}"
        assert accepted(made, tokenizer, text, ANSWER) is True
        answer = read(made, text)
        assert (answer.reasoning, answer.content) == ("Hm, { <b> }.", person)
    assert accepted(made, tokenizer, person, ANSWER) is True
    assert accepted(made, tokenizer, f"{opening}Hm.", ANSWER) is None
    assert accepted(made, tokenizer, f"{opening}{closing}\n\n\n", ANSWER) is False
    assert accepted(made, tokenizer, f"{opening}{closing}{opening}", ANSWER) is False
    for seed in range(3):
        text = walk(made, tokenizer, random.Random(seed), f"{opening}Hm.{closing}", answer=ANSWER)
        jsonschema.validate(json.loads(read(made, text).content), PERSON)


@pytest.mark.parametrize("choice", ["auto", "required"])
@pytest.mark.parametrize("family", ["thinking", "mistral_named", "opened"])
@pytest.mark.parametrize("as_text", [False, True])
def test_reasoning_may_come_before_calls_and_may_speak_of_them(family, choice, as_text):
    tokenizer = renamed(family, as_text=as_text)
    made = planned(family, tokenizer, tools=TOOLS, tool_choice=choice)
    marks = made.output.reasoning
    mark = made.output.calls.mark
    thought = "" if mark in tokenizer.control else f"I may {mark} or"
    begin = f"{'' if made.output.inside else marks.open}{thought} not{marks.close}\n\n{mark}"
    begin += "" if mark else '{"name": "now"'
    for seed in range(3):
        answer = read(made, walk(made, tokenizer, random.Random(seed), begin))
        check_calls(made, answer)
        assert answer.reasoning == f"{thought} not".strip()


def test_a_closing_mark_spelled_out_of_letters_is_no_thought():
    """It would be read as the end of the reasoning."""
    tokenizer = renamed("mistral_named")
    machine = matcher(planned("mistral_named", answer=ANSWER), tokenizer, ANSWER)
    spelled = tokenizer.spelled("[/THINK]")
    assert not all(machine.consume_token(token) for token in [*tokenizer.ids("[THINK]Hm "), *spelled])


def test_a_prompt_that_has_closed_the_reasoning_allows_none():
    made = planned("thinking", answer=ANSWER, template_kwargs={"enable_thinking": False})
    assert made.output.reasoning is None
    assert made.main is None
    made = planned("thinking", tools=TOOLS, tool_choice="required", template_kwargs={"enable_thinking": False})
    assert accepted(made, renamed("thinking"), "<think>") is False


def test_a_prompt_that_has_opened_the_reasoning_wants_it_closed():
    made = planned("opened", answer=ANSWER)
    assert made.output.inside
    assert accepted(made, renamed("opened"), 'Hm.</think>{"name": "Ann", "age": 3}', ANSWER) is True
    assert accepted(made, renamed("opened"), '{"name": "Ann", "age": 3}', ANSWER) is None


@pytest.mark.parametrize(
    ("content", "inside", "may_think"),
    [
        ("<think>\nI am", True, True),
        ("<think>done</think>So", False, False),
        ("So", False, False),
        ("", False, True),
    ],
)
def test_a_continued_message_tells_whether_it_reasons(content, inside, may_think):
    text = "{% for m in messages %}{{ m.content }}{% endfor %}{# <think> #}"
    from slim.chat.template import ChatTemplate

    made = ChatTemplate(text, renamed("thinking"))
    prompt = conversation(USER, message("assistant", content), continue_final=True)
    output = plan(made, prompt, made.render(prompt), None, renamed("thinking")).output
    assert (output.inside, output.reasoning is not None) == (inside, may_think)


@pytest.mark.parametrize("family", CONTROLS)
def test_without_tools_the_output_is_free(family):
    asked = message("assistant", tool_calls=[call("f", "{}")])
    messages = (USER,) if family in ("mistral", "function_gemma") else (USER, asked, message("tool", "1"))
    for more in ({}, {"tools": TOOLS, "tool_choice": "none"}):
        made = planned(family, messages=messages, **more)
        assert (made.main, made.parts, made.output.calls) == (None, {}, None)
        assert not made.output.names


@pytest.mark.parametrize("family", CONTROLS)
def test_marks_that_are_control_tokens_are_shown_and_no_others(family):
    control = renamed(family).control
    names = {number: name for name, number in control.items()}
    made = planned(family, tools=TOOLS, messages=(USER,))
    expected = {
        "llama3": {"<|python_tag|>"},
        "mistral": {"[TOOL_CALLS]"},
        "mistral_named": {"[TOOL_CALLS]", "[ARGS]", "[THINK]", "[/THINK]"},
        "function_gemma": {"<start_function_call>", "<end_function_call>", "<escape>"},
    }.get(family, set())
    assert {names[number] for number in made.shown} == expected
    free = planned(family, messages=(USER,)).shown
    assert {names[number] for number in free} == ({"[THINK]", "[/THINK]"} if family == "mistral_named" else set())


def test_parts_name_the_request_s_field_and_can_give_way():
    broken = tool("f", {"type": "hiccup"})
    made = planned("hermes", tools=(tool("now"), broken))
    assert {part.param for part in made.parts.values()} == {f"tools[{n}].function.parameters" for n in range(2)}
    bad = next(name for name, part in made.parts.items() if part.source == {"type": "hiccup"})
    parts = {**made.parts, bad: Grammar("json_object", None, made.parts[bad].param)}
    loose = type(made)(made.output, made.main, parts, made.shown)
    text = '<tool_call>\n{"name": "f", "arguments": {"any": ["thing"]}}\n</tool_call>'
    assert accepted(loose, renamed("hermes"), text) is True
    assert accepted(loose, renamed("hermes"), text.replace('"f"', '"now"')) is False


def test_a_named_function_keeps_its_place_in_the_request():
    made = planned("hermes", tools=TOOLS, tool_choice="=now")
    assert [part.param for part in made.parts.values()] == ["tools[2].function.parameters"]


@pytest.mark.parametrize(
    "junk", [{"type": 5}, {"properties": 3, "required": "x"}, {"type": "object", "properties": []}]
)
def test_a_schema_that_is_none_does_not_break_function_gemma_s_form(junk):
    made = planned("function_gemma", tools=(tool("f", junk),), tool_choice="required")
    answer = read(made, walk(made, renamed("function_gemma"), random.Random(1)))
    assert isinstance(json.loads(answer.calls[0][1]), dict)


def test_a_deep_schema_is_any_value_from_some_depth_on():
    deep = {"type": "string"}
    for _ in range(60):
        deep = {"type": "object", "properties": {"a": deep}, "required": ["a"]}
    made = planned("function_gemma", tools=(tool("f", deep),), tool_choice="required")
    assert accepted(made, renamed("function_gemma"), "<start_function_call>call:f{" + "a:{" * 10) is None


@pytest.mark.parametrize("family", ["hermes", "chatml", "function_gemma"])
def test_a_hundred_functions_are_no_burden(family):
    tools = tuple(tool(f"function_{number}", MANY) for number in range(100))
    made = planned(family, tools=tools, tool_choice="required")
    schemas = {f"function_{number}": MANY for number in range(100)}
    check_calls(made, read(made, walk(made, renamed(family), random.Random(3))), schemas)


def test_the_plain_form_is_what_a_template_without_tools_gets():
    for family in ("chatml", "gemma", "coder", "opened"):
        assert planned(family, tools=TOOLS).output.calls is PLAIN
