"""Bodies of `/v1/chat/completions`: messages, tools and scores, what is accepted and what is refused by name."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slim.errors import InvalidRequest
from slim.types import ChatPrompt, Generation, Grammar
from slim.wire.requests import Call, RequestLimits, parse_chat
from slim.wire.requests.unbuilt import CHAT_FIELDS

LIMITS = RequestLimits(max_tokens=100, max_prompt_chars=200, places=8)
USER = {"role": "user", "content": "hi"}
CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
CALLS = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "call_1", "content": "5"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
OPTIONAL = {
    *("tools", "tool_choice", "parallel_tool_calls", "chat_template_kwargs", "reasoning_effort", "reasoning_format"),
    *("continue_final_message", "add_generation_prompt", "logprobs", "top_logprobs", "max_tokens", "stop", "n"),
    *("max_completion_tokens", "response_format", "stream", "stream_options", "temperature", "logit_bias"),
}


def parse(limits=LIMITS, **fields):
    return parse_chat(json.dumps({"messages": [USER], **fields}).encode(), limits)


def prompt(**fields):
    (generation,) = parse(**fields).generations
    assert isinstance(generation.prompt, ChatPrompt)
    return generation.prompt


def refusal(**fields):
    with pytest.raises(InvalidRequest) as caught:
        parse(**fields)
    return caught.value


def test_a_question_alone_gets_all_that_the_server_gives():
    assert parse() == Call((Generation(ChatPrompt((USER,)), max_tokens=100, param="messages"),))


def test_every_field_of_the_answer_arrives():
    call = parse(
        stream=True,
        stream_options={"include_usage": True},
        return_progress=True,
        logprobs=True,
        top_logprobs=20,
        max_completion_tokens=7,
        n=3,
        stop="x",
        response_format={"type": "json_object"},
    )
    (generation,) = call.generations
    assert (call.stream, call.include_usage, call.scored) == (True, True, True)
    assert (generation.logprobs, generation.max_tokens, generation.choices, generation.stop) == (20, 7, 3, ("x",))
    assert generation.grammar == Grammar("json_object", None, "response_format")
    assert generation.progress


def test_null_is_absent_for_every_optional_field():
    assert parse(**dict.fromkeys([*OPTIONAL, *CHAT_FIELDS])) == parse()
    for name in OPTIONAL:
        assert parse(**{name: None}) == parse()
    message = {**USER, "name": None, "tool_calls": None, "tool_call_id": None, "reasoning_content": None}
    assert parse(messages=[message]) == parse()


# Messages


def messages(*sent):
    return list(prompt(messages=list(sent)).messages)


def test_messages_reach_the_template_as_they_are():
    sent = [{"role": "system", "content": "be\nkind", "name": "me"}, USER, {"role": "assistant", "content": ""}]
    assert messages(*sent, RESULT) == [*sent, RESULT]


def test_a_developer_is_a_system_to_the_template():
    assert messages({"role": "developer", "content": "x"}) == [{"role": "system", "content": "x"}]


def test_text_parts_are_joined_by_line_breaks():
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b", "cache_control": None}]
    assert messages({"role": "user", "content": parts}) == [{"role": "user", "content": "a\nb"}]


@pytest.mark.parametrize("content", [{"content": None}, {}, {"content": ""}])
def test_an_assistant_that_called_tools_needs_no_content(content):
    message = {"role": "assistant", **content, "tool_calls": [CALL]}
    assert messages(USER, message, RESULT)[1] == {"role": "assistant", "content": "", "tool_calls": [CALL]}


@pytest.mark.parametrize("arguments", ['{"a":1}', "no JSON", "", {"a": [1, None]}])
def test_arguments_of_earlier_calls_are_handed_on(arguments):
    call = {**CALL, "function": {"name": "f", "arguments": arguments}}
    assert messages(USER, {**CALLS, "tool_calls": [call]})[1]["tool_calls"] == [call]


def test_a_call_needs_a_name_only():
    (_, message) = messages(USER, {"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]})
    assert message["tool_calls"] == [{"type": "function", "function": {"name": "f", "arguments": "{}"}}]


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_earlier_reasoning_is_handed_on_under_one_name(name):
    assert messages({"role": "assistant", "content": "5", name: "2 + 3"}) == [
        {"role": "assistant", "content": "5", "reasoning_content": "2 + 3"}
    ]


def test_unknown_keys_of_messages_are_ignored():
    assert messages({**USER, "refusal": None, "annotations": [], "audio": None}) == [USER]


@pytest.mark.parametrize(
    ("message", "path"),
    [
        ({"role": "user"}, "content"),
        ({"role": "user", "content": None}, "content"),
        ({"role": "system", "content": None}, "content"),
        ({"role": "assistant", "content": None}, "content"),
        ({"role": "assistant", "content": None, "tool_calls": []}, "content"),
        ({"role": "tool", "tool_call_id": "1", "content": None}, "content"),
        ({"role": "user", "content": 5}, "content"),
        ({"role": "user", "content": {"type": "text", "text": "a"}}, "content"),
        ({"role": "user", "content": []}, "content"),
        ({"role": "user", "content": ["a"]}, "content[0]"),
        ({"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text"}]}, "content[1].text"),
        ({"role": "user", "content": [{"type": "text", "text": 5}]}, "content[0].text"),
        ({"role": "user", "content": [{"text": "a"}]}, "content[0]"),
        ({"role": "user", "content": "\ud83d"}, "content"),
        ({"role": "user", "content": [{"type": "text", "text": "\ud83d"}]}, "content[0].text"),
        ({"role": "user", "content": "a", "name": 5}, "name"),
        ({"role": "user", "content": "a", "name": "\udcf0"}, "name"),
        ({"content": "a"}, "role"),
        ({"role": "function", "content": "a"}, "role"),
        ({"role": "User", "content": "a"}, "role"),
        ({"role": 5, "content": "a"}, "role"),
        ({"role": ["user"], "content": "a"}, "role"),
        ({"role": "tool", "content": "a"}, "tool_call_id"),
        ({"role": "tool", "content": "a", "tool_call_id": 5}, "tool_call_id"),
        ({"role": "user", "content": "a", "tool_call_id": "1"}, "tool_call_id"),
        ({"role": "user", "content": "a", "tool_calls": [CALL]}, "tool_calls"),
        ({**CALLS, "tool_calls": "x"}, "tool_calls"),
        ({**CALLS, "tool_calls": [5]}, "tool_calls[0]"),
        ({**CALLS, "tool_calls": [5] * 1001}, "tool_calls"),
        ({**CALLS, "tool_calls": [CALL, {"id": "1"}]}, "tool_calls[1].function"),
        ({**CALLS, "tool_calls": [{**CALL, "type": "custom"}]}, "tool_calls[0].type"),
        ({**CALLS, "tool_calls": [{**CALL, "id": 5}]}, "tool_calls[0].id"),
        ({**CALLS, "tool_calls": [{"function": {"arguments": "{}"}}]}, "tool_calls[0].function.name"),
        ({**CALLS, "tool_calls": [{"function": {"name": "f", "arguments": 5}}]}, "tool_calls[0].function.arguments"),
        (
            {**CALLS, "tool_calls": [{"function": {"name": "f", "arguments": {"a": "\ud83d"}}}]},
            "tool_calls[0].function.arguments",
        ),
    ],
)
def test_a_bad_message_is_refused_by_its_place(message, path):
    error = refusal(messages=[USER, message])
    assert error.param == f"messages[1].{path}"
    assert str(error).isascii()


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "file", "video_url", "refusal", ""])
def test_this_model_takes_text_only(kind):
    error = refusal(messages=[USER, {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": kind}]}])
    assert error.param == "messages[1].content[1]"
    assert "this model takes text only" in str(error)


@pytest.mark.parametrize("value", [None, [], {}, "hi", 5, [[]], ["hi"], [None]])
def test_messages_are_a_list_of_at_least_one(value):
    assert refusal(messages=value).param in ("messages", "messages[0]")


def test_a_hundred_thousand_messages_are_refused_as_a_whole():
    error = refusal(messages=[{"role": "user", "content": 5}] * 100_000)
    assert error.param == "messages"
    assert "10000" in str(error)


def test_all_texts_of_the_messages_count_as_the_prompt():
    for message in (
        {"role": "user", "content": "x" * 199},
        {"role": "user", "content": "x" * 100, "name": "y" * 99},
        {"role": "assistant", "content": "x" * 100, "reasoning_content": "y" * 99},
        {"role": "assistant", "tool_calls": [{"function": {"name": "f" * 100, "arguments": "y" * 99}}]},
        {"role": "assistant", "tool_calls": [{"id": "i" * 100, "function": {"name": "f" * 97}}]},
        {"role": "tool", "content": "x" * 100, "tool_call_id": "y" * 99},
    ):
        one = {"role": "user", "content": "z"}
        assert parse(messages=[message, one])
        error = refusal(messages=[message, one, one])
        assert error.param == "messages"
        assert "201" in str(error)
        assert "200" in str(error)


def test_tools_count_as_the_prompt_too():
    tool = {"type": "function", "function": {"name": "f", "description": "x" * 50}}
    assert parse(tools=[tool])
    assert parse(messages=[{"role": "user", "content": "x" * 150}])
    error = refusal(messages=[{"role": "user", "content": "x" * 150}], tools=[tool])
    assert error.param == "tools"
    assert "200" in str(error)


@pytest.mark.parametrize(
    ("name", "value"), [("chat_template_kwargs", {"k": "x" * 97}), ("reasoning_effort", "x" * 100)]
)
def test_variables_of_the_template_count_as_the_prompt_too(name, value):
    assert parse(messages=[{"role": "user", "content": "x" * 100}], **{name: value})
    error = refusal(messages=[{"role": "user", "content": "x" * 101}], **{name: value})
    assert error.param == name
    assert "201" in str(error)
    assert "200" in str(error)


# Tools


def test_tools_reach_the_template_in_openais_shape():
    function = {"name": "f-_9", "description": "d", "parameters": {"type": "object", "a": None}, "strict": True}
    sent = {"type": "function", "function": {**function, "extra": 1}, "extra": 2}
    made = prompt(tools=[sent])
    assert made.tools == ({"type": "function", "function": function},)
    assert (made.tool_choice, made.parallel_tool_calls) == ("auto", True)
    assert prompt(tools=[{"type": "function", "function": {"name": "f", "parameters": None}}]).tools == (
        {"type": "function", "function": {"name": "f"}},
    )


@pytest.mark.parametrize(
    ("choice", "wanted"),
    [("auto", "auto"), ("required", "required"), ({"type": "function", "function": {"name": "f"}}, "=f")],
)
def test_which_tool_must_be_called(choice, wanted):
    made = prompt(tools=[TOOL], tool_choice=choice, parallel_tool_calls=False)
    assert (made.tool_choice, made.parallel_tool_calls, len(made.tools)) == (wanted, False, 1)


def test_no_tool_call_means_that_the_model_sees_no_tools():
    made = prompt(tools=[TOOL], tool_choice="none")
    assert (made.tools, made.tool_choice) == ((), "none")


@pytest.mark.parametrize("choice", ["none", "auto", None])
def test_without_tools_there_is_nothing_to_choose(choice):
    assert prompt(tools=[], tool_choice=choice).tools == ()
    assert prompt(tool_choice=choice).tools == ()


@pytest.mark.parametrize(
    ("tools", "path"),
    [
        ({}, "tools"),
        ([5], "tools[0]"),
        ([{"function": {"name": "f"}}], "tools[0].type"),
        ([{"type": "custom", "function": {"name": "f"}}], "tools[0].type"),
        ([{"type": "web_search"}], "tools[0].type"),
        ([{"type": "function"}], "tools[0].function"),
        ([{"type": "function", "function": {}}], "tools[0].function.name"),
        ([{"type": "function", "function": {"name": ""}}], "tools[0].function.name"),
        ([{"type": "function", "function": {"name": "a b"}}], "tools[0].function.name"),
        ([{"type": "function", "function": {"name": "é"}}], "tools[0].function.name"),
        ([{"type": "function", "function": {"name": "f\n"}}], "tools[0].function.name"),
        ([{"type": "function", "function": {"name": "f" * 65}}], "tools[0].function.name"),
        ([{"type": "function", "function": {"name": "f", "description": 5}}], "tools[0].function.description"),
        ([{"type": "function", "function": {"name": "f", "parameters": 5}}], "tools[0].function.parameters"),
        ([{"type": "function", "function": {"name": "f", "parameters": []}}], "tools[0].function.parameters"),
        (
            [{"type": "function", "function": {"name": "f", "parameters": {"\udcf0": 1}}}],
            "tools[0].function.parameters",
        ),
        ([{"type": "function", "function": {"name": "f", "strict": "yes"}}], "tools[0].function.strict"),
        ([TOOL, TOOL], "tools[1].function.name"),
    ],
)
def test_a_bad_tool_is_refused_by_its_place(tools, path):
    assert refusal(tools=tools).param == path


def test_there_are_at_most_128_tools():
    tools = [{"type": "function", "function": {"name": f"f{i}"}} for i in range(129)]
    roomy = RequestLimits(max_tokens=100, max_prompt_chars=100_000, places=8)
    assert len(parse(roomy, tools=tools[:128]).generations[0].prompt.tools) == 128
    with pytest.raises(InvalidRequest) as caught:
        parse(roomy, tools=tools)
    assert caught.value.param == "tools"


def test_parameters_that_are_nested_too_deeply_are_refused():
    schema = {}
    for _ in range(300):
        schema = {"items": schema}
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    assert refusal(tools=[tool]).param == "tools[0].function.parameters"


@pytest.mark.parametrize(
    ("tools", "choice"),
    [
        ([], "required"),
        ([TOOL], "any"),
        ([TOOL], "f"),
        ([TOOL], {}),
        ([TOOL], {"type": "function"}),
        ([TOOL], {"type": "function", "function": {"name": "g"}}),
        ([TOOL], {"type": "function", "function": {"name": 5}}),
        ([TOOL], {"type": "allowed_tools", "allowed_tools": {}}),
        ([TOOL], ["auto"]),
        ([TOOL], True),
        ([], {"type": "function", "function": {"name": "f"}}),
    ],
)
def test_a_choice_that_is_none_of_the_tools_is_refused(tools, choice):
    assert refusal(tools=tools, tool_choice=choice).param == "tool_choice"


def test_the_older_functions_get_advice():
    for name in ("functions", "function_call"):
        error = refusal(**{name: [{"name": "f"}]})
        assert error.param == name
        assert "use tools" in str(error)


# The template


def test_variables_of_the_template_are_handed_on():
    made = prompt(chat_template_kwargs={"enable_thinking": False, "x": [1]}, reasoning_effort="low")
    assert made.template_kwargs == {"enable_thinking": False, "x": [1], "reasoning_effort": "low"}
    assert prompt(chat_template_kwargs={"reasoning_effort": "low"}, reasoning_effort="low").template_kwargs == {
        "reasoning_effort": "low"
    }


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"chat_template_kwargs": []}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"a": "\ud83d"}}, "chat_template_kwargs"),
        ({"reasoning_effort": 5}, "reasoning_effort"),
        ({"reasoning_effort": "low", "chat_template_kwargs": {"reasoning_effort": "high"}}, "reasoning_effort"),
        ({"reasoning_format": "deepseek-legacy"}, "reasoning_format"),
        ({"continue_final_message": True}, "continue_final_message"),
        ({"continue_final_message": 1}, "continue_final_message"),
        ({"add_generation_prompt": False}, "add_generation_prompt"),
    ],
)
def test_odd_wishes_for_the_template_are_refused(fields, path):
    assert refusal(**fields).param == path


@pytest.mark.parametrize(("form", "splits"), [("none", False), ("auto", True), ("deepseek", True), (None, True)])
def test_reasoning_is_told_apart_unless_the_client_wants_it_in_place(form, splits):
    assert prompt(reasoning_format=form).split_reasoning is splits


def test_an_answer_may_go_on_with_the_last_message():
    half = {"role": "assistant", "content": "Once"}
    assert not prompt(messages=[USER, half]).continue_final
    assert not prompt(messages=[USER, half], add_generation_prompt=True).continue_final
    assert prompt(messages=[USER, half], continue_final_message=True).continue_final
    assert prompt(messages=[USER, half], continue_final_message=True, add_generation_prompt=False).continue_final
    error = refusal(messages=[USER, half], continue_final_message=True, add_generation_prompt=True)
    assert error.param == "add_generation_prompt"


@pytest.mark.parametrize("schema", [{"type": "string"}, {"type": ["array", "null"]}, {"type": None}])
def test_parameters_describe_an_object(schema):
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    assert refusal(tools=[tool]).param == "tools[0].function.parameters"
    for good in ({}, {"type": "object"}, {"type": ["object", "null"]}, {"properties": {}}):
        assert prompt(tools=[{"type": "function", "function": {"name": "f", "parameters": good}}]).tools


@pytest.mark.parametrize(
    ("more", "path"),
    [
        ({"tool_calls": [CALL]}, "messages[1].tool_calls"),
        ({"reasoning_content": "hm"}, "messages[1].reasoning_content"),
        ({"reasoning": "hm"}, "messages[1].reasoning"),
    ],
)
def test_an_answer_goes_on_with_content_only(more, path):
    half = {"role": "assistant", "content": "Once", **more}
    assert refusal(messages=[USER, half], continue_final_message=True).param == path
    assert prompt(messages=[USER, half, USER]).messages[1]["content"] == "Once"


@pytest.mark.parametrize(
    ("message", "path"),
    [
        ({**USER, "reasoning_content": "hm"}, "messages[0].reasoning_content"),
        ({**USER, "reasoning": "hm"}, "messages[0].reasoning"),
        ({"role": "assistant", "content": "a", "reasoning_content": "x", "reasoning": "y"}, "messages[0].reasoning"),
    ],
)
def test_reasoning_is_the_assistants_and_said_once(message, path):
    assert refusal(messages=[message]).param == path


# Scores and lengths


def test_scores_are_asked_for_by_two_fields():
    assert parse().generations[0].logprobs is None
    assert parse(logprobs=True).generations[0].logprobs == 0
    assert parse(logprobs=False, top_logprobs=0).generations[0].logprobs is None


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
        ({"top_logprobs": 5}, "top_logprobs"),
        ({"logprobs": False, "top_logprobs": 5}, "top_logprobs"),
        ({"logprobs": 1}, "logprobs"),
    ],
)
def test_odd_scores_are_refused_before_a_stream_begins(fields, path):
    assert refusal(**fields).param == path
    assert refusal(stream=True, **fields).param == path


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens", "n_predict"])
def test_a_length_above_the_servers_limit_is_cut_to_it(name):
    assert parse(**{name: 5}).generations[0].max_tokens == 5
    assert parse(**{name: 2**63 - 1}).generations[0].max_tokens == 100
    for bad in (0, -1, 2**63, "5", 1.5, True):
        assert refusal(**{name: bad}).param == name


def test_two_names_for_the_length_must_agree():
    assert refusal(max_tokens=5, max_completion_tokens=6).param == "max_completion_tokens"
    assert refusal(max_tokens=500, max_completion_tokens=600).param == "max_completion_tokens"


def test_min_tokens_are_at_most_what_the_server_gives():
    assert parse(min_tokens=100).generations[0].min_tokens == 100
    assert refusal(min_tokens=101).param == "min_tokens"


def test_answers_beyond_the_places_are_refused():
    assert refusal(n=9).param == "n"


# What isn't built


@pytest.mark.parametrize(("name", "neutral"), [(name, value) for name, vs in CHAT_FIELDS.items() for value in vs])
def test_a_value_that_asks_for_nothing_is_taken(name, neutral):
    assert parse(**{name: neutral}) == parse()


@pytest.mark.parametrize("name", CHAT_FIELDS)
def test_a_field_that_is_not_built_is_refused_by_name(name):
    assert refusal(**{name: [{"asks": "for something"}]}).param == name


def test_names_that_do_not_change_the_text_are_ignored():
    ignored = {"user": "u", "metadata": {"a": 1}, "store": True, "service_tier": "auto", "prediction": {}}
    assert parse(**ignored, verbosity="low", safety_identifier="x", nobody=[]) == parse()


def test_every_field_that_is_wrong_by_itself_is_named_at_once():
    error = refusal(messages=[USER, {"role": "x", "content": 5}], tools=[{"type": "x"}], audio={}, temperature="1")
    for path in (
        "messages[1].role",
        "messages[1].content",
        "tools[0].type",
        "tools[0].function",
        "audio",
        "temperature",
    ):
        assert f"{path}: " in str(error)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec=None), max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
KEYS = ["role", "content", "name", "tool_calls", "tool_call_id", "type", "function", "arguments", "text", "parameters"]
SHAPED = st.recursive(
    st.sampled_from(["user", "assistant", "tool", "function", "text", "f", None, 5]) | JSON,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(sorted({"messages", *OPTIONAL, *CHAT_FIELDS})), SHAPED, max_size=6))
def test_any_object_is_taken_or_refused(fields):
    for body in (fields, {"messages": [USER], **fields}):
        try:
            call = parse_chat(json.dumps(body).encode(), LIMITS)
        except InvalidRequest as error:
            str(error).encode("ascii")
        else:
            assert 1 <= call.generations[0].max_tokens <= LIMITS.max_tokens
