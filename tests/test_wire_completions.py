"""Answers of `/v1/completions`: whole bodies and stream events in OpenAI's older shape."""

import json

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from slim.answer import PromptProgress, Timings
from slim.types import FinishReason, TokenScore, Usage
from slim.wire.answers import Head
from slim.wire.completions import CompletionStream, TextChoice, completion_body
from support.sse import read_chunks, read_events

HEAD = Head(id="cmpl-1", created=1700000000, model='tiny "" é')
USAGE = Usage(prompt_tokens=5, completion_tokens=3, cached_tokens=2)
NUMBERS = {
    "prompt_tokens": 5,
    "completion_tokens": 3,
    "total_tokens": 8,
    "prompt_tokens_details": {"cached_tokens": 2},
}
TIMINGS = Timings(queue=0.25, prompt=0.5, decode=1.5, prompt_tokens=4, cached_tokens=2, new_tokens=3)
TIMES = {
    "queue_ms": 250.0,
    "cache_n": 2,
    "prompt_n": 4,
    "prompt_ms": 500.0,
    "prompt_per_token_ms": 125.0,
    "prompt_per_second": 8.0,
    "predicted_n": 3,
    "predicted_ms": 1500.0,
    "predicted_per_token_ms": 500.0,
    "predicted_per_second": 2.0,
}
NO_TIME = Timings(queue=0, prompt=0, decode=0, prompt_tokens=0, cached_tokens=0, new_tokens=0)


def chunk(text, reason=None, index=0, logprobs=None, **more):
    return {
        "id": "cmpl-1",
        "object": "text_completion",
        "created": 1700000000,
        "model": 'tiny "" é',
        "choices": [{"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}],
        **more,
    }


def plain_stream(head=HEAD, include_usage=False):
    return CompletionStream(head, include_usage, scored=False)


def test_the_whole_answer_has_openais_shape():
    body = completion_body(HEAD, [TextChoice(["héllo"], None, FinishReason.LENGTH)], USAGE, TIMINGS)
    assert json.loads(body) == chunk("héllo", "length", usage=NUMBERS, timings=TIMES)
    assert body.isascii()


def test_each_choice_has_its_index_and_its_reason():
    body = completion_body(HEAD, [TextChoice(["a"], None, "stop"), TextChoice(["b"], None, "length")], USAGE, TIMINGS)
    assert json.loads(body)["choices"] == [*chunk("a", "stop")["choices"], *chunk("b", "length", 1)["choices"]]


def test_scores_are_told_where_they_were_asked_for():
    scores = [TokenScore(b"a", None), TokenScore(b"b", -0.5, ((b"b", -0.5),))]
    body = completion_body(HEAD, [TextChoice(["ab"], [scores], "stop"), TextChoice([], [], "stop")], USAGE, TIMINGS)
    first, second = json.loads(body)["choices"]
    assert first["logprobs"] == {
        "tokens": ["a", "b"],
        "token_logprobs": [None, -0.5],
        "top_logprobs": [None, {"b": -0.5}],
        "text_offset": [0, 1],
    }
    assert second["logprobs"] == {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}


def test_a_request_that_did_nothing_has_rates_of_zero():
    timings = json.loads(completion_body(HEAD, [], USAGE, NO_TIME))["timings"]
    assert timings.keys() == TIMES.keys()
    assert set(timings.values()) == {0}


def test_a_stream_is_text_then_one_finish_then_done():
    stream = plain_stream()
    body = stream.events(0, ["a"], ()) + stream.events(0, ["b", "é"], ()) + stream.end(0, FinishReason.STOP, TIMINGS)
    assert read_chunks(body + stream.close(USAGE)) == [
        *(chunk("a"), chunk("b"), chunk("é")),
        chunk("", "stop", timings=TIMES),
    ]


def test_with_usage_all_chunks_have_null_and_a_last_one_has_numbers_and_no_choices():
    stream = plain_stream(include_usage=True)
    body = stream.events(0, ["a"], ()) + stream.end(0, "length", TIMINGS) + stream.close(USAGE)
    assert read_chunks(body) == [
        chunk("a", usage=None),
        chunk("", "length", usage=None, timings=TIMES),
        {**chunk(""), "choices": [], "usage": NUMBERS},
    ]


def test_choices_of_one_stream_are_told_apart_by_their_index():
    stream = plain_stream()
    body = stream.events(1, ["a"], ()) + stream.events(0, ["b"], ()) + stream.events(1, ["c"], ())
    body += stream.end(1, "stop", TIMINGS) + stream.end(0, "length", TIMINGS) + stream.close(USAGE)
    assert read_chunks(body) == [
        *(chunk("a", index=1), chunk("b", index=0), chunk("c", index=1)),
        *(chunk("", "stop", 1, timings=TIMES), chunk("", "length", 0, timings=TIMES)),
    ]


def test_progress_comes_in_a_chunk_with_a_choice():
    stream = plain_stream(include_usage=True)
    waiting = PromptProgress(total=10, cached=0, done=0, seconds=0.5, queue_position=2)
    running = PromptProgress(total=10, cached=4, done=8, seconds=1.25)
    body = stream.progress(0, waiting) + stream.progress(1, running)
    assert [json.loads(event) for event in read_events(body)] == [
        chunk(
            "",
            usage=None,
            prompt_progress={"total": 10, "cache": 0, "processed": 0, "time_ms": 500.0, "queue_position": 2},
        ),
        chunk("", index=1, usage=None, prompt_progress={"total": 10, "cache": 4, "processed": 8, "time_ms": 1250.0}),
    ]


def test_each_piece_of_a_scored_stream_has_its_tokens():
    stream = CompletionStream(HEAD, False, scored=True)
    half, whole = TokenScore(b"\xc3", -1.0), TokenScore(b"\xa9", -0.25)
    body = stream.events(0, ["ab", ""], [(TokenScore(b"a", None), TokenScore(b"b", -0.5)), (half,)])
    body += stream.events(1, ["x"], [(TokenScore(b"x", -0.5),)])
    body += stream.events(0, ["é"], [(whole,)]) + stream.end(0, "stop", TIMINGS)
    choices = [json.loads(event)["choices"][0] for event in read_events(body)]
    assert [choice["text"] for choice in choices] == ["ab", "", "x", "é", ""]
    assert choices[0]["logprobs"]["tokens"] == ["a", "b"]
    assert choices[0]["logprobs"]["token_logprobs"] == [None, -0.5]
    assert [choice["logprobs"]["text_offset"] for choice in choices[:4]] == [[0, 1], [2], [0], [2]]
    assert choices[1]["logprobs"]["tokens"] == ["bytes:\\xc3"]
    assert choices[4]["logprobs"] is None


def test_the_scored_parts_of_a_stream_join_to_the_whole_answers():
    scores = [TokenScore(b"a", None), TokenScore(b"\xc3", -1.0), TokenScore(b"\xa9", -0.25, ((b"z", -0.1),))]
    stream = CompletionStream(HEAD, False, scored=True)
    body = stream.events(0, ["a", "", "é"], [(score,) for score in scores])
    parts = [json.loads(event)["choices"][0]["logprobs"] for event in read_events(body)]
    whole = json.loads(completion_body(HEAD, [TextChoice(["aé"], [scores], "stop")], USAGE, TIMINGS))
    joined = {name: [item for part in parts for item in part[name]] for name in parts[0]}
    assert joined == whole["choices"][0]["logprobs"]


def test_an_empty_model_name_does_not_disturb_the_events():
    stream = plain_stream(evolve(HEAD, model=""), include_usage=True)
    assert [json.loads(event) for event in read_events(stream.events(0, ["a"], ()))] == [
        {**chunk("a"), "model": "", "usage": None}
    ]


@pytest.mark.parametrize("scored", [True, False])
def test_no_pieces_are_no_events(scored):
    assert CompletionStream(HEAD, False, scored).events(0, [], []) == b""


@given(st.lists(st.text(st.characters(codec=None))), st.booleans(), st.booleans())
def test_any_text_is_one_ascii_event_and_comes_back_as_it_was(pieces, include_usage, scored):
    stream = CompletionStream(HEAD, include_usage, scored)
    scores = [(TokenScore(b"x", -1.0),) for _ in pieces] if scored else []
    body = stream.events(0, pieces, scores)
    assert body.isascii()
    assert [json.loads(event)["choices"][0]["text"] for event in read_events(body)] == pieces
