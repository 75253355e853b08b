"""`/v1/completions` on the wire: what is accepted, what is refused and how, what is answered."""

import json

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from slim.errors import InvalidRequest
from slim.types import FinishReason, Generation, Sampling, Segment, Usage
from slim.wire.completions import (
    CompletionCall,
    CompletionHead,
    CompletionStream,
    RequestLimits,
    completion_body,
    parse_completion,
)
from slim.wire.unbuilt import COMPLETION_FIELDS
from support.sse import read_chunks, read_events

LIMITS = RequestLimits(max_tokens=100, max_prompt_chars=50)
PLAIN = Generation(prompt=(Segment("hi", parse_special=True),), max_tokens=16)
HEAD = CompletionHead(id="cmpl-1", created=1700000000, model='tiny "" é')
USAGE = Usage(prompt_tokens=5, completion_tokens=3, cached_tokens=2)


def parse(limits=LIMITS, **fields):
    return parse_completion(json.dumps({"prompt": "hi", **fields}).encode(), limits)


def refusal(**fields):
    with pytest.raises(InvalidRequest) as caught:
        parse(**fields)
    return caught.value


def named(error):
    """The paths of all fields that a refusal names."""
    return [part.split(":")[0] for part in str(error).split("; ")]


def test_a_prompt_alone_gets_openais_defaults():
    assert parse() == CompletionCall(PLAIN, stream=False, include_usage=False)


def test_every_honoured_field_arrives():
    call = parse(
        model="any",
        max_tokens=100,
        temperature=0,
        top_p=0.5,
        seed=-7,
        stop=["a", "b"],
        stream=True,
        stream_options={"include_usage": True},
        n=1,
    )
    sampling = Sampling(temperature=0.0, top_p=0.5, seed=-7)
    wanted = evolve(PLAIN, max_tokens=100, sampling=sampling, stop=("a", "b"))
    assert call == CompletionCall(wanted, stream=True, include_usage=True)


def test_null_is_absent_for_every_optional_field():
    names = ["model", "max_tokens", "temperature", "top_p", "seed", "stop", "stream", "stream_options"]
    assert parse(**dict.fromkeys([*names, *COMPLETION_FIELDS])) == parse()
    for name in names:
        assert parse(**{name: None}) == parse()


@pytest.mark.parametrize("body", [b"{}", b'{"prompt":null}'])
def test_the_prompt_is_required(body):
    with pytest.raises(InvalidRequest, match="prompt: is required") as caught:
        parse_completion(body, LIMITS)
    assert caught.value.param == "prompt"


@pytest.mark.parametrize("prompt", [["a"], ["a", "b"], [1, 2], [[1], [2]], [], [1, "a"]])
def test_lists_of_prompts_and_token_ids_are_not_supported_yet(prompt):
    error = refusal(prompt=prompt)
    assert error.param == "prompt"
    assert "one string" in str(error)


def test_an_empty_prompt_is_a_prompt():
    assert parse(prompt="").generation.prompt == (Segment("", parse_special=True),)


def test_a_prompt_that_is_too_long_is_refused_with_both_numbers():
    assert parse(prompt="é" * 50)
    error = refusal(prompt="é" * 51)
    assert error.param == "prompt"
    assert "51" in str(error)
    assert "50" in str(error)


@pytest.mark.parametrize("value", [0, -1, -2])
def test_no_tokens_or_unlimited_tokens_get_advice(value):
    error = refusal(max_tokens=value)
    assert error.param == "max_tokens"
    assert "omit the field" in str(error)


def test_too_many_tokens_are_refused_with_both_numbers():
    error = refusal(max_tokens=101)
    assert error.param == "max_tokens"
    assert "101" in str(error)
    assert "100" in str(error)


@pytest.mark.parametrize("value", [2**31, 2**63, 10**4000, 1.0, 1.5, "10", True, [], {}])
def test_odd_max_tokens_are_refused_in_few_words(value):
    error = refusal(max_tokens=value)
    assert named(error) == ["max_tokens"]
    assert len(str(error)) < 200


def test_the_default_of_max_tokens_keeps_within_a_small_limit():
    assert parse(RequestLimits(max_tokens=4, max_prompt_chars=50)).generation.max_tokens == 4


def test_limits_of_one_server_are_not_those_of_another():
    assert parse(RequestLimits(max_tokens=1000, max_prompt_chars=50), max_tokens=1000)
    assert refusal(max_tokens=1000)


@pytest.mark.parametrize(
    ("field", "low", "high"), [("temperature", 0, 2), ("top_p", 0, 1), ("seed", -(2**63), 2**63 - 1)]
)
def test_numbers_have_bounds(field, low, high):
    for good in (low, high):
        assert getattr(parse(**{field: good}).generation.sampling, field) == good
    for bad in (low - 1, high + 1, str(low), True, [low]):
        assert named(refusal(**{field: bad})) == [field]


@pytest.mark.parametrize("number", ["1e999", "-1e999"])
@pytest.mark.parametrize("field", ["temperature", "top_p", "seed", "max_tokens"])
def test_numbers_beyond_any_float_are_refused(field, number):
    with pytest.raises(InvalidRequest) as caught:
        parse_completion(f'{{"prompt":"hi","{field}":{number}}}'.encode(), LIMITS)
    assert caught.value.param == field


@pytest.mark.parametrize("stop", ["", [], None])
def test_a_blank_stop_is_absent(stop):
    assert parse(stop=stop).generation.stop == ()


def test_one_stop_may_be_a_string():
    assert parse(stop="\n\n").generation.stop == ("\n\n",)


def test_an_empty_string_in_a_list_of_stops_is_refused_by_its_place():
    error = refusal(stop=["a", ""])
    assert error.param == "stop[1]"


@pytest.mark.parametrize(
    ("stop", "path"), [(5, "stop"), ({}, "stop"), (["a", 5], "stop[1]"), ([None], "stop[0]"), ([["a"]], "stop[0]")]
)
def test_stops_are_strings(stop, path):
    assert named(refusal(stop=stop)) == [path]


def test_there_are_at_most_sixteen_stops():
    assert len(parse(stop=[str(i) for i in range(16)]).generation.stop) == 16
    assert named(refusal(stop=["x"] * 17)) == ["stop"]


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"prompt": "\ud83d"}, "prompt"),
        ({"model": "\udcf0"}, "model"),
        ({"stop": "\ud83d"}, "stop"),
        ({"stop": ["a", "\ud83d"]}, "stop[1]"),
    ],
)
def test_half_a_surrogate_pair_is_refused_by_name(fields, path):
    error = refusal(**fields)
    assert error.param == path
    assert str(error).isascii()


def test_a_whole_surrogate_pair_is_one_character():
    assert parse_completion(b'{"prompt":"\\ud83d\\ude00"}', LIMITS).generation.prompt[0].text == "😀"


@pytest.mark.parametrize("stream", [{}, {"stream": False}, {"stream": None}])
def test_stream_options_need_a_stream(stream):
    assert refusal(stream_options={"include_usage": True}, **stream).param == "stream_options"


def test_stream_options_may_be_empty():
    assert not parse(stream=True, stream_options={}).include_usage


@pytest.mark.parametrize("options", [True, [], "x"])
def test_stream_options_are_an_object(options):
    assert named(refusal(stream=True, stream_options=options)) == ["stream_options"]


@pytest.mark.parametrize(
    ("name", "neutral"), [(name, value) for name, values in COMPLETION_FIELDS.items() for value in values]
)
def test_a_value_that_asks_for_nothing_is_taken(name, neutral):
    assert parse(**{name: neutral}) == parse()


@pytest.mark.parametrize("name", COMPLETION_FIELDS)
def test_a_field_that_is_not_built_is_refused_by_name(name):
    error = refusal(**{name: [{"asks": "for something"}]})
    assert named(error) == [name]
    assert error.param == name


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n", 2),
        ("n", True),
        ("n", 1.0),
        ("n", "1"),
        ("best_of", 2),
        ("echo", True),
        ("echo", 0),
        ("logprobs", 0),
        ("suffix", "end"),
        ("logit_bias", {"5": 1}),
        ("presence_penalty", 0.5),
        ("presence_penalty", False),
        ("repeat_penalty", 1.1),
        ("top_k", 40),
        ("min_tokens", 1),
        ("response_format", {"type": "json_object"}),
        ("json_schema", {}),
        ("prompt_logprobs", 0),
        ("max_completion_tokens", 5),
        ("n_predict", -1),
        ("ignore_eos", True),
    ],
)
def test_near_misses_of_neutral_values_are_refused(name, value):
    assert named(refusal(**{name: value})) == [name]


def test_a_whole_zero_is_as_neutral_as_zero_point_zero():
    assert parse(presence_penalty=0, frequency_penalty=0.0, repeat_penalty=1) == parse()


def test_names_of_other_servers_for_max_tokens_get_advice():
    assert "max_tokens" in str(refusal(n_predict=5)).partition(":")[2]


def test_names_that_do_not_change_the_text_are_ignored():
    assert parse(user="u", metadata={"a": 1}, store=True, service_tier="auto", cache_prompt=True, nobody=[]) == parse()


def test_every_bad_field_is_named_at_once():
    error = refusal(
        prompt="x" * 51,
        max_tokens=101,
        temperature=3,
        stop=["", "a", 1],
        stream_options={"include_usage": "no"},
        n=2,
        echo=True,
    )
    wanted = ["prompt", "max_tokens", "temperature", "stop[0]", "stop[2]", "stream_options.include_usage"]
    assert named(error) == [*wanted, "stream_options", "n", "echo"]
    assert error.param == "prompt"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec=None), max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
NAMES = ["prompt", "model", "max_tokens", "temperature", "top_p", "seed", "stop", "stream", "stream_options", "n"]


def only_invalid_request(body):
    try:
        call = parse_completion(body, LIMITS)
    except InvalidRequest as error:
        str(error).encode("ascii")
    else:
        assert 1 <= call.generation.max_tokens <= LIMITS.max_tokens


@given(st.dictionaries(st.sampled_from([*NAMES, *COMPLETION_FIELDS]), JSON, max_size=8))
def test_any_object_is_taken_or_refused(fields):
    only_invalid_request(json.dumps(fields).encode())
    only_invalid_request(json.dumps({"prompt": "hi", **fields}).encode())


@given(JSON)
def test_any_json_is_taken_or_refused(value):
    only_invalid_request(json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass"))


@given(st.binary())
def test_any_bytes_are_taken_or_refused(body):
    only_invalid_request(body)
    only_invalid_request(b'{"prompt":' + body)
    only_invalid_request(b'{"prompt":"' + body + b'"}')


def test_the_whole_answer_has_openais_shape():
    assert json.loads(completion_body(HEAD, "héllo", FinishReason.LENGTH, USAGE)) == {
        "id": "cmpl-1",
        "object": "text_completion",
        "created": 1700000000,
        "model": 'tiny "" é',
        "choices": [{"index": 0, "text": "héllo", "logprobs": None, "finish_reason": "length"}],
        "usage": {
            "prompt_tokens": 5,
            "completion_tokens": 3,
            "total_tokens": 8,
            "prompt_tokens_details": {"cached_tokens": 2},
        },
    }


def chunk(text, reason=None):
    return {
        "id": "cmpl-1",
        "object": "text_completion",
        "created": 1700000000,
        "model": 'tiny "" é',
        "choices": [{"index": 0, "text": text, "logprobs": None, "finish_reason": reason}],
    }


def test_a_stream_is_text_then_one_finish_then_done():
    stream = CompletionStream(HEAD, include_usage=False)
    body = stream.events(["a"]) + stream.events(["b", "é"]) + stream.end(FinishReason.STOP, USAGE)
    assert read_chunks(body) == [chunk("a"), chunk("b"), chunk("é"), chunk("", "stop")]


def test_with_usage_all_chunks_have_null_and_a_last_one_has_numbers_and_no_choices():
    stream = CompletionStream(HEAD, include_usage=True)
    body = stream.events(["a"]) + stream.end(FinishReason.LENGTH, USAGE)
    numbers = json.loads(completion_body(HEAD, "", FinishReason.STOP, USAGE))["usage"]
    assert read_chunks(body) == [
        {**chunk("a"), "usage": None},
        {**chunk("", "length"), "usage": None},
        {**chunk(""), "choices": [], "usage": numbers},
    ]


def test_an_empty_model_name_does_not_disturb_the_events():
    stream = CompletionStream(evolve(HEAD, model=""), include_usage=True)
    assert [json.loads(event) for event in read_events(stream.events(["a"]))] == [
        {**chunk("a"), "model": "", "usage": None}
    ]


def test_no_pieces_are_no_events():
    assert CompletionStream(HEAD, include_usage=False).events([]) == b""


@given(st.lists(st.text(st.characters(codec=None))), st.booleans())
def test_any_text_is_one_ascii_event_and_comes_back_as_it_was(pieces, include_usage):
    stream = CompletionStream(HEAD, include_usage)
    body = stream.events(pieces)
    assert body == b"".join(stream.events([piece]) for piece in pieces)
    assert body.isascii()
    assert [json.loads(event)["choices"][0]["text"] for event in read_events(body)] == pieces
