"""The model's text becomes content, reasoning and tool calls, however it is cut."""

import itertools
import json
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slim.answer import CallArguments, CallStart, Content, Reasoning
from slim.chat.calls import GEMMA, HERMES, LLAMA, MISTRAL, MISTRAL_NAMED, PLAIN
from slim.chat.output import ChatOutput, OutputFormat
from slim.chat.reasoning import Marks

THINK = Marks("<think>", "</think>")
NAMES = frozenset({"f", "get_weather"})


def deltas(output, pieces):
    """All deltas of a text that comes in pieces, and whether there was a call."""
    numbers = itertools.count()
    reader = ChatOutput(output, lambda: f"{next(numbers):024d}")
    found = [delta for piece in pieces for delta in reader.feed(piece)]
    return found + reader.finish(), reader.called


def joined(found):
    """Deltas as a client that joins them has them; neighbours of one kind become one."""
    answer = []
    for delta in found:
        kind = type(delta).__name__
        match delta:
            case CallStart(index, id, name):
                answer.append([kind, (index, id, name)])
            case CallArguments(index, text) if answer and answer[-1][0] == (kind, index):
                answer[-1][1] += text
            case CallArguments(index, text):
                answer.append([(kind, index), text])
            case _ if answer and answer[-1][0] == kind:
                answer[-1][1] += delta.text
            case _:
                answer.append([kind, delta.text])
    return answer


def read(text, output, cut=None):
    """The joined answer in short: `c:` content, `r:` reasoning, `name(arguments)` calls."""
    size = cut or max(len(text), 1)
    found, called = deltas(output, [text[start : start + size] for start in range(0, len(text), size)])
    assert called == any(isinstance(delta, CallStart) for delta in found)
    short = []
    for kind, value in joined(found):
        match kind:
            case "Content":
                short.append(f"c:{value}")
            case "Reasoning":
                short.append(f"r:{value}")
            case "CallStart":
                short.append(value[2])
            case _:
                short[-1] += f"({value})"
    return short


def calls(form):
    return OutputFormat(calls=form, names=NAMES)


ONE = '{"name": "f", "arguments": {"a": "<b> </tool_call>}{"}}'
ONE_READ = 'f({"a": "<b> </tool_call>}{"})'
CASES = [
    (HERMES, "", []),
    (HERMES, "Hello <there>, 1 < 2 ", ["c:Hello <there>, 1 < 2 "]),
    (HERMES, " \n", ["c: \n"]),
    (HERMES, f"<tool_call>\n{ONE}\n</tool_call>", [ONE_READ]),
    (HERMES, f"Let me see. \n\n<tool_call>{ONE}</tool_call>\n", ["c:Let me see.", ONE_READ]),
    (
        HERMES,
        f"<tool_call>{ONE}</tool_call>\n<tool_call>\n{ONE}\n</tool_call>\n\nDone. ",
        [ONE_READ] * 2 + ["c:Done. "],
    ),
    (HERMES, f"<tool_call>{ONE}<tool_call>{ONE}", [ONE_READ] * 2),
    (HERMES, f"<tool_call>{ONE}</tool_", [ONE_READ]),
    (HERMES, f"<tool_call>{ONE}</tool> x", [ONE_READ, "c:</tool> x"]),
    (HERMES, '<tool_call>{"id": [{"}": 1}, "]"], "arguments": {"b": [1, {}]}, "name": "f"}', ['f({"b": [1, {}]})']),
    (HERMES, '<tool_call>{"name": "\\u0066", "parameters": {"x" : -1.5e3}}', ['f({"x" : -1.5e3})']),
    (HERMES, '<tool_call>{"name": "f"}</tool_call>', ["f({})"]),
    (HERMES, '<tool_call>{"name": "f", "arguments": "{\\"a\\": \\"\\\\\\"\\"}"}', ['f({"a": "\\""})']),
    (HERMES, '<tool_call>{"arguments": "{}", "name": "f"}</tool_call>', ["f({})"]),
    (HERMES, '<tool_call>{"name": "f", "arguments": {"a": [1, "x', ['f({"a": [1, "x)']),
    (HERMES, '<tool_call>{"name": "f", "arguments": {}, "arguments": {"b": 1}}', ["f({})"]),
    # No calls: everything comes out as it is.
    (HERMES, "a <tool_call> b </tool_call> c ", ["c:a <tool_call> b </tool_call> c "]),
    (
        HERMES,
        'a\n<tool_call>\n{"name": "other", "arguments": {}}',
        ['c:a\n<tool_call>\n{"name": "other", "arguments": {}}'],
    ),
    (HERMES, '<tool_call>{"name": "f", "arguments": 5}', ['c:<tool_call>{"name": "f", "arguments": 5}']),
    (HERMES, '<tool_call>{"name": "f", "arguments": "no"}', ['c:<tool_call>{"name": "f", "arguments": "no"}']),
    (HERMES, '<tool_call>{"name": 5}', ['c:<tool_call>{"name": 5}']),
    (HERMES, '<tool_call>{"name": "\\x"}', ['c:<tool_call>{"name": "\\x"}']),
    (HERMES, '<tool_call>{"na', ['c:<tool_call>{"na']),
    (HERMES, "<tool_call>{}", ["c:<tool_call>{}"]),
    (HERMES, f"<tool_call> <tool_call>{ONE}", ["c:<tool_call>", ONE_READ]),
    (HERMES, "x <tool_ca", ["c:x <tool_ca"]),
    (HERMES, f"<tool_call>{ONE}</tool_call> a <tool_call> b", [ONE_READ, "c:a <tool_call> b"]),
    (HERMES, '<tool_call>{"name": "f", "name": "other", "arguments": {}}', ["f({})"]),
    (HERMES, '<tool_call>{"name": "f" x}', ['c:<tool_call>{"name": "f" x}']),
    (HERMES, '<tool_call>{"id": 5 , "name": "f", "arguments": {}, "n": 5 }</tool_call>x', ["f({})", "c:x"]),
    (MISTRAL, f"Sure. [TOOL_CALLS] [{ONE}, {ONE}]\n", ["c:Sure."] + [ONE_READ] * 2),
    (MISTRAL, '[TOOL_CALLS][{"name": "f", "arguments": {"a": 1}, "id": "abc123abc"}]', ['f({"a": 1})']),
    (MISTRAL, f"[TOOL_CALLS][{ONE}, nonsense]", [ONE_READ, "c:, nonsense]"]),
    (MISTRAL, "[TOOL_CALLS][5]", ["c:[TOOL_CALLS][5]"]),
    (MISTRAL_NAMED, '[TOOL_CALLS]f[ARGS]{"a": "[TOOL_CALLS]"}', ['f({"a": "[TOOL_CALLS]"})']),
    (
        MISTRAL_NAMED,
        'Hm [TOOL_CALLS]f[ARGS] {"a": 1}[TOOL_CALLS]get_weather[CALL_ID]x[ARGS]{}',
        ["c:Hm", 'f({"a": 1})', "get_weather({})"],
    ),
    (MISTRAL_NAMED, "[TOOL_CALLS]g[ARGS]{}", ["c:[TOOL_CALLS]g[ARGS]{}"]),
    (MISTRAL_NAMED, "[TOOL_CALLS]f[ARGH]{}", ["c:[TOOL_CALLS]f[ARGH]{}"]),
    (MISTRAL_NAMED, "[TOOL_CALLS]f[ARGS]5", ["c:[TOOL_CALLS]f[ARGS]5"]),
    (LLAMA, '{"name": "f", "parameters": {"a": 1}}', ['f({"a": 1})']),
    (LLAMA, 'I call <|python_tag|>{"name": "f", "parameters": {"a": 1}}', ["c:I call", 'f({"a": 1})']),
    (LLAMA, "<|python_tag|>print(1)", ["c:<|python_tag|>print(1)"]),
    (PLAIN, ' \n{"name" : "f" , "arguments" : {"a": 1} } ', ['f({"a": 1})']),
    (PLAIN, f"{ONE}\nthat was it", [ONE_READ, "c:that was it"]),
    (PLAIN, f"It is {ONE}", [f"c:It is {ONE}"]),
    (PLAIN, ' {"name": "Ann", "arguments": {}}', ['c: {"name": "Ann", "arguments": {}}']),
    (PLAIN, '{"name": "f", "age": 3}', ['c:{"name": "f", "age": 3}']),
    (PLAIN, '{"name": "f"}', ['c:{"name": "f"}']),
    (PLAIN, '{"arguments": {}, "name": "f"}', ['c:{"arguments": {}, "name": "f"}']),
    (PLAIN, "{1: 2}", ["c:{1: 2}"]),
    (
        GEMMA,
        'Ok. <start_function_call>call:f{b:{c:[1,<escape>q"\n<<es, }<escape>]},n:-2.5,t:true,u:null}',
        ["c:Ok.", 'f({"b": {"c": [1, "q\\"\\n<<es, }"]}, "n": -2.5, "t": true, "u": null})'],
    ),
    (
        GEMMA,
        "<start_function_call>call:f{}<end_function_call><start_function_call>call:get_weather{a: 1 , b:[]}",
        ["f({})", 'get_weather({"a": 1, "b": []})'],
    ),
    (
        GEMMA,
        "<start_function_call>call:f{a:bare <text>,b:NaN}<end_function_call>",
        ['f({"a": "bare <text>", "b": "NaN"})'],
    ),
    (GEMMA, "<start_function_call>call:f{a}<end_function_call>", ['f({"a": null})']),
    (
        GEMMA,
        "<start_function_call>call:g{a:1}<end_function_call>",
        ["c:<start_function_call>call:g{a:1}<end_function_call>"],
    ),
    (GEMMA, "<start_function_call>call:f{a:<es>, b: x", ['f({"a": "<es>", "b": )']),
    (GEMMA, "<start_function_call>f{}", ["c:<start_function_call>f{}"]),
    (GEMMA, "<start_function_call>call:f(1)", ["c:<start_function_call>call:f(1)"]),
]


@pytest.mark.parametrize(("form", "text", "expected"), CASES)
@pytest.mark.parametrize("cut", [None, 1, 3])
def test_calls_are_told_from_content(form, text, expected, cut):
    assert read(text, calls(form), cut) == expected


@pytest.mark.parametrize("form", [HERMES, MISTRAL, MISTRAL_NAMED, LLAMA, PLAIN, GEMMA])
def test_arguments_come_as_they_are_written(form):
    """Not at the end of the call: a client may show a long text while it grows."""
    begin = {
        MISTRAL_NAMED: "[TOOL_CALLS]f[ARGS]",
        MISTRAL: '[TOOL_CALLS][{"name": "f", "arguments": ',
        GEMMA: "<start_function_call>call:f",
    }.get(form, f'{form.mark}{{"name": "f", "arguments": ')
    quote = "<escape>" if form is GEMMA else '"'
    key = "text:" if form is GEMMA else '"text": '
    reader = ChatOutput(calls(form), lambda: "0" * 24)
    start = reader.feed(begin + "{" + key + quote + "x")
    assert start[0] == CallStart(0, "call_" + "0" * 24, "f")
    for word in ("once", "upon", "a", "time"):
        assert reader.feed(word) == [CallArguments(0, word)]
    assert reader.called


def test_each_call_has_its_index_and_its_id():
    found, _ = deltas(calls(HERMES), [f"<tool_call>{ONE}</tool_call>"] * 3)
    starts = [delta for delta in found if isinstance(delta, CallStart)]
    assert [(start.index, start.id) for start in starts] == [(n, f"call_{n:024d}") for n in range(3)]


def test_content_is_not_held_back():
    reader = ChatOutput(calls(HERMES), lambda: "")
    assert reader.feed("1 <") == [Content("1")]
    assert reader.feed(" 2") == [Content(" < 2")]
    reader = ChatOutput(calls(PLAIN), lambda: "")
    assert reader.feed('{"name": "Ann') == []
    assert reader.feed('"') == []
    assert reader.feed(", ") == [Content('{"name": "Ann"'), Content(",")]


def test_without_tools_and_reasoning_the_text_passes_as_it_is():
    text = ' <think>a</think> <tool_call>{"name": "f", "arguments": {}}</tool_call> \n'
    assert read(text, OutputFormat(), 2) == [f"c:{text}"]
    assert ChatOutput(OutputFormat(), lambda: "").feed("") == []


THOUGHTS = [
    ("<think>weighing it</think>Answer.", ["r:weighing it", "c:Answer."]),
    ("\n<think>\nweighing it\n</think>\n\nAnswer. ", ["r:weighing it", "c:Answer. "]),
    ("<think></think>Answer.", ["c:Answer."]),
    ("<think> \n</think>\n", []),
    ("<think>weighing it", ["r:weighing it"]),
    ("<think>weighing it </thin", ["r:weighing it </thin"]),
    ("<think>a <think> b</think>c", ["r:a <think> b", "c:c"]),
    ("<think>a</think>b <think>c</think>", ["r:a", "c:b <think>c</think>"]),
    ("<thi", ["c:<thi"]),
    ("<thinking>a</think> b</think>", ["c:<thinking>a", "c:b</think>"]),
    ("Answer. <think>a", ["c:Answer. <think>a"]),
    ("  Answer.", ["c:  Answer."]),
    ("closing only</think>\nAnswer.", ["c:closing only", "c:Answer."]),
    (" \n", ["c: \n"]),
    ("", []),
]


@pytest.mark.parametrize(("text", "expected"), THOUGHTS)
@pytest.mark.parametrize("cut", [None, 1, 2, 7])
def test_reasoning_is_told_from_the_answer(text, expected, cut):
    parts = [[part[:2], part[2:]] for part in expected]
    merged = "".join(text for kind, text in parts if kind == "c:")
    thoughts = "".join(text for kind, text in parts if kind == "r:")
    found, _ = deltas(
        OutputFormat(reasoning=THINK), [text[i : i + (cut or 99)] for i in range(0, len(text), cut or 99)]
    )
    assert "".join(delta.text for delta in found if isinstance(delta, Content)) == merged
    assert "".join(delta.text for delta in found if isinstance(delta, Reasoning)) == thoughts
    assert all(delta.text for delta in found)


@pytest.mark.parametrize("cut", [None, 1])
def test_a_prompt_may_have_opened_the_reasoning(cut):
    inside = OutputFormat(reasoning=THINK, inside=True)
    assert read("\nweighing it\n</think>\n\nAnswer.", inside, cut) == ["r:weighing it", "c:Answer."]
    assert read("weighing it ", inside, cut) == ["r:weighing it "]


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("cut", [None, 1])
def test_reasoning_can_be_left_in_the_text(inside, cut):
    for text, _ in THOUGHTS:
        assert read(text, OutputFormat(reasoning=THINK, inside=inside, split=False), cut) == (
            [f"c:{text}"] if text else []
        )


def test_reasoning_is_not_held_back():
    reader = ChatOutput(OutputFormat(reasoning=THINK), lambda: "")
    assert reader.feed("<think>") == []
    assert reader.feed("weighing") == [Reasoning("weighing")]
    assert reader.feed(" it </") == [Reasoning(" it")]
    assert reader.feed("b>") == [Reasoning(" </b>")]


@pytest.mark.parametrize("split", [True, False])
@pytest.mark.parametrize("form", [HERMES, PLAIN])
def test_calls_in_reasoning_are_thoughts(form, split):
    thought = f"I could <tool_call>{ONE}</tool_call> {ONE}"
    text = f"<think>{thought}</think>\n\n{form.mark}{ONE}"
    output = OutputFormat(reasoning=THINK, split=split, calls=form, names=NAMES)
    first = f"r:{thought}" if split else f"c:<think>{thought}</think>"
    assert read(text, output, 1) == [first, ONE_READ]


ALPHABET = st.sampled_from(
    [
        *("<think>", "</think>", "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "<|python_tag|>", "f", " "),
        *("<start_function_call>", "<end_function_call>", "<escape>", "call:f", '{"name": "f", "arguments": ', "{"),
        *("}", '"', "\\", "[", "]", ",", ":", "<", "x", '{"a": [1, "b"]}', ONE, '"name"', '"arguments"', '"f"', "12"),
        *("\n", "é"),
    ]
)
TEXT = st.lists(ALPHABET, max_size=14).map("".join)
OUTPUTS = st.builds(
    OutputFormat,
    reasoning=st.sampled_from([None, THINK]),
    inside=st.booleans(),
    split=st.booleans(),
    calls=st.sampled_from([None, HERMES, MISTRAL, MISTRAL_NAMED, LLAMA, PLAIN, GEMMA]),
    names=st.just(NAMES),
)


@given(TEXT, OUTPUTS, st.data())
def test_the_cut_makes_no_difference(text, output, data):
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    whole, _ = deltas(output, [text])
    for bounds in ([0, *cuts, len(text)], range(len(text) + 1)):
        pieces, _ = deltas(output, [text[start:end] for start, end in itertools.pairwise(bounds)])
        assert joined(pieces) == joined(whole)


@given(TEXT, st.sampled_from([HERMES, MISTRAL, MISTRAL_NAMED, LLAMA, PLAIN, GEMMA]))
def test_a_text_without_calls_loses_nothing(text, form):
    found, called = deltas(calls(form), [text])
    if not called:
        assert "".join(delta.text for delta in found) == text


LEAVES = st.none() | st.booleans() | st.integers() | st.text(max_size=5)


@given(st.dictionaries(st.text(max_size=5), st.recursive(LEAVES, st.lists, max_leaves=5), max_size=3))
def test_arguments_are_the_exact_text(arguments):
    for form in (HERMES, PLAIN):
        for text in (json.dumps(arguments), json.dumps(arguments, ensure_ascii=False, indent=1)):
            assert read(f'{form.mark}{{"name": "f", "arguments": {text}}}', calls(form), 3) == [f"f({text})"]


@pytest.mark.parametrize(
    ("output", "begin", "more"),
    [
        (calls(HERMES), "", " "),
        (calls(HERMES), "", "<tool_call"),
        (calls(HERMES), '<tool_call>{"name": "f", "arguments": {"a": "', "x"),
        (calls(HERMES), '<tool_call>{"', "x"),
        (OutputFormat(reasoning=THINK), "<think>", "\n"),
        (OutputFormat(reasoning=THINK), "", " "),
        (OutputFormat(reasoning=THINK), "<think>a", "</think"),
    ],
)
def test_the_work_grows_with_the_text_alone(output, begin, more):
    """Twice the text, twice the steps: counted as calls of functions, which no load of the machine changes."""
    counts = [steps(output, begin, more, number) for number in (300, 600)]
    assert counts[1] <= 2.2 * counts[0]


def steps(output, begin, more, number):
    count = 0

    def profile(frame, event, argument):
        nonlocal count
        count += event.endswith("call")

    sys.setprofile(profile)
    try:
        deltas(output, [begin, *[more] * number])
    finally:
        sys.setprofile(None)
    return count
