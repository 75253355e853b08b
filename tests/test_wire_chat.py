"""Answers of `/v1/chat/completions`: whole messages and stream events, as OpenAI's clients put them together."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from slim.answer import CallArguments, CallStart, Content, PromptProgress, Reasoning, Timings
from slim.types import FinishReason, TokenScore, Usage
from slim.wire.answers import Head
from slim.wire.chat import ChatChoice, ChatStream, chat_body
from support.sse import read_chunks, read_events

HEAD = Head(id="chatcmpl-1", created=1700000000, model='tiny "" é')
USAGE = Usage(prompt_tokens=5, completion_tokens=3, cached_tokens=2)
TIMINGS = Timings(queue=0.25, prompt=0.5, decode=1.5, prompt_tokens=4, cached_tokens=2, new_tokens=3)
CALLS = [
    Content("Wait. "),
    CallStart(0, "call_a", "f"),
    CallArguments(0, '{"a'),
    CallArguments(0, '":1}'),
    CallStart(1, "call_b", "g"),
    CallArguments(1, "{}"),
]
SCORE = TokenScore(b"\xf0\x9f", -0.5, ((b"a", -0.25),))
SCORED = {
    "token": "\ufffd",
    "logprob": -0.5,
    "bytes": [240, 159],
    "top_logprobs": [{"token": "a", "logprob": -0.25, "bytes": [97]}],
}


def whole(*deltas, scores=None, reason="stop"):
    return json.loads(chat_body(HEAD, [ChatChoice(deltas, scores, reason)], USAGE, TIMINGS))


def message(*deltas):
    return whole(*deltas)["choices"][0]["message"]


def chunk(delta, reason=None, index=0, logprobs=None, **more):
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1700000000,
        "model": 'tiny "" é',
        "choices": [{"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}],
        **more,
    }


def sent(body):
    return [json.loads(event) for event in read_events(body)]


def test_the_whole_answer_has_openais_shape():
    answer = whole(Content("Hé"), Content("llo"), reason=FinishReason.LENGTH)
    timings = answer.pop("timings")
    assert answer == {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1700000000,
        "model": 'tiny "" é',
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Héllo", "refusal": None},
                "logprobs": None,
                "finish_reason": "length",
            }
        ],
        "usage": {
            "prompt_tokens": 5,
            "completion_tokens": 3,
            "total_tokens": 8,
            "prompt_tokens_details": {"cached_tokens": 2},
        },
    }
    assert (timings["queue_ms"], timings["prompt_n"], timings["cache_n"], timings["predicted_ms"]) == (250, 4, 2, 1500)


def test_only_calls_leave_the_content_null():
    assert message() == {"role": "assistant", "content": "", "refusal": None}
    assert message(Reasoning("hm")) == {"role": "assistant", "content": "", "refusal": None, "reasoning_content": "hm"}
    assert message(CallStart(0, "call_a", "f"))["content"] is None
    assert message(*CALLS)["content"] == "Wait. "


def test_calls_are_put_together_from_their_parts():
    assert message(*CALLS)["tool_calls"] == [
        {"id": "call_a", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}},
        {"id": "call_b", "type": "function", "function": {"name": "g", "arguments": "{}"}},
    ]


def test_unused_keys_are_left_out():
    assert message(Content("a")).keys() == {"role", "content", "refusal"}


def test_reasoning_and_answer_are_told_apart():
    made = message(Reasoning("let me "), Reasoning("see"), Content("5"))
    assert (made["reasoning_content"], made["content"]) == ("let me see", "5")


def test_each_choice_has_its_index_and_its_reason():
    choices = [ChatChoice([Content("a")], None, "stop"), ChatChoice([Content("b")], None, "length")]
    made = json.loads(chat_body(HEAD, choices, USAGE, TIMINGS))["choices"]
    assert [(one["index"], one["message"]["content"], one["finish_reason"]) for one in made] == [
        (0, "a", "stop"),
        (1, "b", "length"),
    ]


def test_scores_are_told_where_they_were_asked_for():
    assert whole(Content("a"), scores=[SCORE])["choices"][0]["logprobs"] == {"content": [SCORED], "refusal": None}
    assert whole(scores=[])["choices"][0]["logprobs"] == {"content": [], "refusal": None}


def test_a_stream_opens_with_the_role_and_ends_with_a_chunk_of_its_own():
    stream = ChatStream(HEAD, include_usage=False, scored=False)
    body = stream.open(0) + stream.events(0, [Reasoning("hm"), Content("a"), Content("é")], ())
    body += stream.end(0, "stop", TIMINGS) + stream.close(USAGE)
    *chunks, last = read_chunks(body)
    assert chunks == [
        chunk({"role": "assistant", "content": ""}),
        *(chunk({"reasoning_content": "hm"}), chunk({"content": "a"}), chunk({"content": "é"})),
    ]
    assert last.pop("timings")["predicted_n"] == 3
    assert last == chunk({}, "stop")


def test_with_usage_all_chunks_have_null_and_a_last_one_has_numbers_and_no_choices():
    stream = ChatStream(HEAD, include_usage=True, scored=False)
    body = stream.open(0) + stream.events(0, [Content("a"), CALLS[1], CALLS[2]], ()) + stream.end(0, "stop", TIMINGS)
    *chunks, last = read_chunks(body + stream.close(USAGE))
    assert [one["usage"] for one in chunks] == [None] * 5
    assert all(one["choices"] for one in chunks)
    assert last["choices"] == []
    assert last["usage"]["total_tokens"] == 8


def test_a_call_is_one_start_and_then_arguments_under_the_same_index():
    stream = ChatStream(HEAD, include_usage=False, scored=False)
    body = stream.events(0, CALLS[:3], ()) + stream.events(0, CALLS[3:], ()) + stream.end(0, "tool_calls", TIMINGS)
    deltas = [one["choices"][0]["delta"] for one in sent(body)]
    start = {"index": 0, "id": "call_a", "type": "function", "function": {"name": "f", "arguments": ""}}
    assert deltas == [
        {"content": "Wait. "},
        {"tool_calls": [start]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"a'}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '":1}'}}]},
        {"tool_calls": [{**start, "index": 1, "id": "call_b", "function": {"name": "g", "arguments": ""}}]},
        {"tool_calls": [{"index": 1, "function": {"arguments": "{}"}}]},
        {},
    ]


def test_choices_of_one_stream_are_told_apart_by_their_index():
    stream = ChatStream(HEAD, include_usage=False, scored=False)
    body = stream.open(1) + stream.events(1, [Content("a")], ()) + stream.events(0, [Content("b")], ())
    body += stream.events(1, [Content("c"), CallArguments(0, "x")], ()) + stream.end(1, "stop", TIMINGS)
    assert [one["choices"][0]["index"] for one in sent(body)] == [1, 1, 0, 1, 1, 1]


def test_progress_comes_in_a_chunk_with_a_choice():
    stream = ChatStream(HEAD, include_usage=False, scored=False)
    progress = PromptProgress(total=10, cached=4, done=8, seconds=1.25, queue_position=0)
    (made,) = sent(stream.progress(1, progress))
    assert made == chunk(
        {}, index=1, prompt_progress={"total": 10, "cache": 4, "processed": 8, "time_ms": 1250.0, "queue_position": 0}
    )


def test_scores_go_with_the_first_of_their_deltas():
    stream = ChatStream(HEAD, include_usage=False, scored=True)
    logprobs = {"content": [SCORED, SCORED], "refusal": None}
    assert sent(stream.events(0, [Content("a"), Content("b")], [SCORE, SCORE])) == [
        chunk({"content": "a"}, logprobs=logprobs),
        chunk({"content": "b"}),
    ]


def test_scores_of_text_that_is_held_back_come_alone():
    stream = ChatStream(HEAD, include_usage=False, scored=True)
    assert sent(stream.events(0, [], [SCORE])) == [chunk({}, logprobs={"content": [SCORED], "refusal": None})]


def test_an_empty_model_name_does_not_disturb_the_events():
    stream = ChatStream(Head("", 1, ""), include_usage=True, scored=False)
    (event,) = sent(stream.events(0, [Content("a")], ()))
    assert (event["model"], event["choices"][0]["delta"]) == ("", {"content": "a"})


@pytest.mark.parametrize("scored", [True, False])
def test_nothing_new_is_no_event(scored):
    assert ChatStream(HEAD, False, scored).events(0, [], ()) == b""


@given(
    st.lists(
        st.builds(Content, st.text(st.characters(codec=None)))
        | st.builds(Reasoning, st.text(st.characters(codec=None)))
        | st.builds(CallStart, st.integers(0, 2), st.text(), st.text())
        | st.builds(CallArguments, st.integers(0, 2), st.text())
    ),
    st.booleans(),
)
def test_every_delta_is_one_ascii_event_and_comes_back_as_it_was(deltas, scored):
    body = ChatStream(HEAD, True, scored).events(0, deltas, [SCORE] if scored else ())
    assert body.isascii()
    events = sent(body)
    if scored and not deltas:
        assert [event["choices"][0]["delta"] for event in events] == [{}]
        return
    for event, delta in zip(events, deltas, strict=True):
        (got,) = event["choices"]
        if isinstance(delta, Content):
            assert got["delta"] == {"content": delta.text}
        elif isinstance(delta, Reasoning):
            assert got["delta"] == {"reasoning_content": delta.text}
        else:
            (call,) = got["delta"]["tool_calls"]
            assert call["index"] == delta.index
            text = "" if isinstance(delta, CallStart) else delta.text
            assert call["function"]["arguments"] == text


def test_openais_own_types_take_every_shape():
    ChatCompletion.model_validate(whole(*CALLS, Reasoning("hm"), scores=[SCORE], reason="tool_calls"), strict=True)
    stream = ChatStream(HEAD, include_usage=True, scored=True)
    body = stream.open(0) + stream.events(0, CALLS, [SCORE]) + stream.end(0, "tool_calls", TIMINGS)
    body += stream.progress(0, PromptProgress(1, 0, 0, 0.0)) + stream.close(USAGE)
    for one in read_chunks(body):
        ChatCompletionChunk.model_validate(one, strict=True)
