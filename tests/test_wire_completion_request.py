"""Bodies of `/v1/completions`: what is accepted, what is refused and how."""

import json

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from slim.errors import InvalidRequest
from slim.types import Generation, Grammar, Sampling, Segment
from slim.wire.requests import Call, RequestLimits, parse_completion
from slim.wire.requests.unbuilt import COMPLETION_FIELDS

LIMITS = RequestLimits(max_tokens=100, max_prompt_chars=50, places=8)
PLAIN = Generation(prompt=(Segment("hi", parse_special=True),), max_tokens=16)
OPTIONAL = {
    *(
        "model",
        "max_tokens",
        "max_completion_tokens",
        "n_predict",
        "min_tokens",
        "ignore_eos",
        "stop",
        "stop_token_ids",
    ),
    *("n", "echo", "logprobs", "stream", "stream_options", "return_progress", "temperature", "top_p", "top_k", "min_p"),
    *("typical_p", "presence_penalty", "frequency_penalty", "repeat_penalty", "repetition_penalty", "repeat_last_n"),
    *("logit_bias", "seed", "dry_multiplier", "dry_base", "dry_allowed_length", "dry_penalty_last_n"),
    *("dry_sequence_breakers", "xtc_probability", "xtc_threshold", "mirostat", "mirostat_mode", "mirostat_tau"),
    *("mirostat_eta", "response_format", "json_schema", "grammar", "regex", "structured_outputs", "guided_json"),
    *("guided_regex", "guided_choice", "guided_grammar", "cache_prompt"),
}


def parse(limits=LIMITS, **fields):
    return parse_completion(json.dumps({"prompt": "hi", **fields}).encode(), limits)


def only(**fields):
    """The generation of a request with one prompt."""
    (generation,) = parse(**fields).generations
    return generation


def refusal(**fields):
    with pytest.raises(InvalidRequest) as caught:
        parse(**fields)
    return caught.value


def named(error):
    """The paths of all fields that a refusal names."""
    return [part.split(":")[0] for part in str(error).split("; ")]


def test_a_prompt_alone_gets_openais_defaults():
    assert parse() == Call((PLAIN,))


@pytest.mark.parametrize(
    ("prompt", "params"),
    [
        ("a", ["prompt"]),
        (["a"], ["prompt"]),
        ([1, 2], ["prompt"]),
        (["a", "b"], ["prompt[0]", "prompt[1]"]),
        ([[1], [2]], ["prompt[0]", "prompt[1]"]),
    ],
)
def test_a_prompt_knows_which_one_it_is(prompt, params):
    assert [generation.param for generation in parse(prompt=prompt).generations] == params


def test_every_honoured_field_arrives():
    call = parse(
        model="any",
        max_tokens=100,
        temperature=0,
        top_p=0.5,
        seed=-7,
        stop=["a", "b"],
        stop_token_ids=[7, 7, 0],
        min_tokens=100,
        ignore_eos=True,
        n=8,
        logprobs=20,
        echo=True,
        stream=True,
        stream_options={"include_usage": True},
        return_progress=True,
        cache_prompt=False,
        regex="a+",
    )
    wanted = evolve(
        PLAIN,
        max_tokens=100,
        sampling=Sampling(temperature=0.0, top_p=0.5, seed=-7),
        stop=("a", "b"),
        stop_token_ids=frozenset({0, 7}),
        min_tokens=100,
        ignore_eos=True,
        choices=8,
        logprobs=20,
        echo=True,
        progress=True,
        cache_prompt=False,
        grammar=Grammar("regex", "a+", "regex"),
    )
    assert call == Call((wanted,), stream=True, include_usage=True, scored=True)


def test_null_is_absent_for_every_optional_field():
    assert parse(**dict.fromkeys([*OPTIONAL, *COMPLETION_FIELDS])) == parse()
    for name in OPTIONAL:
        assert parse(**{name: None}) == parse()


@pytest.mark.parametrize("body", [b"{}", b'{"prompt":null}'])
def test_the_prompt_is_required(body):
    with pytest.raises(InvalidRequest, match="prompt: is required") as caught:
        parse_completion(body, LIMITS)
    assert caught.value.param == "prompt"


# The prompt


def prompts(value):
    return [generation.prompt for generation in parse(prompt=value).generations]


def test_texts_keep_their_control_tokens_and_ids_are_used_as_they_are():
    assert prompts("a") == [(Segment("a", parse_special=True),)]
    assert prompts(["a"]) == prompts("a")
    assert prompts(["a", ""]) == [(Segment("a", parse_special=True),), (Segment("", parse_special=True),)]
    assert prompts([1, 0, 2**31 - 1]) == [(1, 0, 2**31 - 1)]
    assert prompts([[1, 2], [3]]) == [(1, 2), (3,)]


def test_each_prompt_gets_all_choices_and_the_same_settings():
    call = parse(prompt=["a", "b"], n=3, logprobs=0, max_tokens=5)
    assert [generation.choices for generation in call.generations] == [3, 3]
    assert [generation.max_tokens for generation in call.generations] == [5, 5]
    assert [generation.logprobs for generation in call.generations] == [0, 0]


@pytest.mark.parametrize(
    ("prompt", "path"),
    [
        ([], "prompt"),
        ([[]], "prompt[0]"),
        ([[1], []], "prompt[1]"),
        ([1, "a"], "prompt[1]"),
        (["a", 1], "prompt[1]"),
        (["a", [1]], "prompt[1]"),
        ([[1], "a"], "prompt[1]"),
        ([[1], 2], "prompt[1]"),
        ([-1], "prompt[0]"),
        ([1, 2**31], "prompt[1]"),
        ([1, 1.5], "prompt[1]"),
        ([1.5], "prompt[0]"),
        ([1, 2.0], "prompt[1]"),
        ([True], "prompt[0]"),
        ([1, True], "prompt[1]"),
        ([None], "prompt[0]"),
        ([[1, -1]], "prompt[0][1]"),
        (5, "prompt"),
        ({}, "prompt"),
        (["a", "\ud83d"], "prompt[1]"),
    ],
)
def test_a_prompt_that_is_neither_text_nor_ids_is_refused_by_its_place(prompt, path):
    assert named(refusal(prompt=prompt)) == [path]


def test_an_empty_text_is_a_prompt():
    assert only(prompt="").prompt == (Segment("", parse_special=True),)


def test_a_prompt_that_is_too_long_is_refused_with_both_numbers():
    assert parse(prompt="é" * 50)
    error = refusal(prompt="é" * 51)
    assert error.param == "prompt"
    assert "51" in str(error)
    assert "50" in str(error)
    assert parse(prompt=[1] * 50)
    assert refusal(prompt=[1] * 51).param == "prompt"
    assert parse(prompt=["x" * 50] * 2)
    assert refusal(prompt=["a", "x" * 51]).param == "prompt[1]"


def test_answers_beyond_the_places_are_refused_by_the_field_that_is_too_large():
    assert parse(prompt=["a", "b"], n=4)
    assert refusal(n=9).param == "n"
    assert refusal(n=5, prompt=["a", "b"]).param == "n"
    assert refusal(prompt=["a"] * 9).param == "prompt"
    assert "8" in str(refusal(n=9))


@pytest.mark.parametrize("value", [0, -1, True, "1", 1.0, 2**31])
def test_n_is_a_whole_number_from_one(value):
    assert named(refusal(n=value)) == ["n"]


# Lengths


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens", "n_predict"])
def test_three_names_say_how_many_tokens(name):
    assert only(**{name: 5}).max_tokens == 5
    assert refusal(**{name: 101}).param == name


def test_two_names_for_the_length_must_agree():
    assert only(max_tokens=5, n_predict=5).max_tokens == 5
    assert named(refusal(max_tokens=5, max_completion_tokens=6)) == ["max_completion_tokens"]


@pytest.mark.parametrize("value", [0, -1, -2])
@pytest.mark.parametrize("name", ["max_tokens", "n_predict"])
def test_no_tokens_or_unlimited_tokens_get_advice(name, value):
    error = refusal(**{name: value})
    assert error.param == name
    assert "omit the field" in str(error)


def test_no_new_tokens_are_fine_to_have_the_prompt_scored():
    assert only(max_tokens=0, echo=True, logprobs=1).max_tokens == 0


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
    assert parse(RequestLimits(max_tokens=4, max_prompt_chars=50, places=1)).generations[0].max_tokens == 4


def test_limits_of_one_server_are_not_those_of_another():
    assert parse(RequestLimits(max_tokens=1000, max_prompt_chars=50, places=1), max_tokens=1000)
    assert refusal(max_tokens=1000)


def test_min_tokens_are_at_most_max_tokens():
    assert only(min_tokens=16).min_tokens == 16
    assert refusal(min_tokens=17).param == "min_tokens"
    assert refusal(min_tokens=6, n_predict=5).param == "min_tokens"
    assert refusal(min_tokens=-1).param == "min_tokens"


# Ends


@pytest.mark.parametrize("stop", ["", [], None])
def test_a_blank_stop_is_absent(stop):
    assert only(stop=stop).stop == ()


def test_one_stop_may_be_a_string():
    assert only(stop="\n\n").stop == ("\n\n",)


@pytest.mark.parametrize(
    ("stop", "path"),
    [
        (5, "stop"),
        ({}, "stop"),
        (["a", 5], "stop[1]"),
        ([None], "stop[0]"),
        ([["a"]], "stop[0]"),
        (["a", ""], "stop[1]"),
        ("a" * 1001, "stop"),
        (["a", "a" * 1001], "stop[1]"),
    ],
)
def test_stops_are_strings_with_text(stop, path):
    assert named(refusal(stop=stop)) == [path]


def test_there_are_at_most_sixteen_stops():
    assert len(only(stop=[str(i) for i in range(16)]).stop) == 16
    assert named(refusal(stop=["x"] * 17)) == ["stop"]


@pytest.mark.parametrize(
    ("ids", "path"),
    [
        (5, "stop_token_ids"),
        ([-1], "stop_token_ids[0]"),
        ([1, True], "stop_token_ids[1]"),
        ([2**31], "stop_token_ids[0]"),
        (["5"], "stop_token_ids[0]"),
        ([1] * 257, "stop_token_ids"),
    ],
)
def test_stop_tokens_are_ids(ids, path):
    assert named(refusal(stop_token_ids=ids)) == [path]


# Scores and streams


@pytest.mark.parametrize("value", [-1, 21, True, "1", 1.0])
def test_logprobs_are_a_number_up_to_twenty(value):
    assert refusal(logprobs=value).param == "logprobs"
    assert refusal(logprobs=value, stream=True).param == "logprobs"


def test_logprobs_zero_scores_the_chosen_tokens():
    call = parse(logprobs=0)
    assert call.scored
    assert call.generations[0].logprobs == 0


@pytest.mark.parametrize("stream", [{}, {"stream": False}, {"stream": None}])
def test_what_a_stream_tells_needs_a_stream(stream):
    assert refusal(stream_options={"include_usage": True}, **stream).param == "stream_options"
    assert refusal(return_progress=True, **stream).param == "return_progress"


def test_stream_options_may_be_empty_or_unknown():
    assert not parse(stream=True, stream_options={}).include_usage
    assert parse(stream=True, stream_options={"include_obfuscation": True, "include_usage": True}).include_usage


def test_usage_in_every_chunk_is_not_supported():
    assert parse(stream=True, stream_options={"continuous_usage_stats": False})
    error = refusal(stream=True, stream_options={"continuous_usage_stats": True})
    assert error.param == "stream_options.continuous_usage_stats"


@pytest.mark.parametrize("options", [True, [], "x"])
def test_stream_options_are_an_object(options):
    assert named(refusal(stream=True, stream_options=options)) == ["stream_options"]


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"prompt": "\ud83d"}, "prompt"),
        ({"model": "\udcf0"}, "model"),
        ({"stop": "\ud83d"}, "stop"),
        ({"stop": ["a", "\ud83d"]}, "stop[1]"),
        ({"grammar": "root ::= \ud83d"}, "grammar"),
    ],
)
def test_half_a_surrogate_pair_is_refused_by_name(fields, path):
    error = refusal(**fields)
    assert error.param == path
    assert str(error).isascii()


def test_a_whole_surrogate_pair_is_one_character():
    (generation,) = parse_completion(b'{"prompt":"\\ud83d\\ude00"}', LIMITS).generations
    assert generation.prompt == (Segment("😀", parse_special=True),)


# What isn't built


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
        ("best_of", 2),
        ("best_of", True),
        ("best_of", 1.0),
        ("suffix", "end"),
        ("top_n_sigma", 1),
        ("prompt_logprobs", 0),
        ("timings_per_token", True),
        ("timings_per_token", 0),
        ("n_probs", 1),
        ("messages", [{"role": "user", "content": "hi"}]),
    ],
)
def test_near_misses_of_neutral_values_are_refused(name, value):
    assert named(refusal(**{name: value})) == [name]


def test_a_whole_zero_is_as_neutral_as_zero_point_zero():
    assert parse(top_n_sigma=-1, dynatemp_range=0, adaptive_target=-1.0) == parse()


def test_no_honoured_field_is_refused_as_unbuilt():
    assert set(COMPLETION_FIELDS) & (OPTIONAL | {"prompt"}) == set()


def test_names_that_do_not_change_the_text_are_ignored():
    ignored = {"user": "u", "metadata": {"a": 1}, "store": True, "service_tier": "auto"}
    assert parse(**ignored, num_ctx=5, keep_alive="5m", nobody=[]) == parse()


def test_every_field_that_is_wrong_by_itself_is_named_at_once():
    error = refusal(prompt=[1, "a"], temperature=3, stop=["", "a"], stream_options={"include_usage": "no"}, best_of=2)
    assert sorted(named(error)) == ["best_of", "prompt[1]", "stop[0]", "stream_options.include_usage", "temperature"]
    assert error.param == named(error)[0]


def test_every_field_that_is_wrong_beside_the_others_is_named_at_once():
    error = refusal(prompt="x" * 51, max_tokens=101, n=9, repeat_penalty=2, repetition_penalty=3, return_progress=True)
    assert named(error) == ["prompt", "max_tokens", "repetition_penalty", "n", "return_progress"]
    assert error.param == "prompt"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec=None), max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


def only_invalid_request(body):
    try:
        call = parse_completion(body, LIMITS)
    except InvalidRequest as error:
        str(error).encode("ascii")
    else:
        for generation in call.generations:
            assert generation.max_tokens <= LIMITS.max_tokens
            assert generation.prompt
        assert sum(generation.choices for generation in call.generations) <= LIMITS.places


@given(st.dictionaries(st.sampled_from(sorted({"prompt", *OPTIONAL, *COMPLETION_FIELDS})), JSON, max_size=8))
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
