"""How the next token is chosen: the fields of every endpoint that makes text, their bounds and their other names."""

import json

import pytest

from slim.errors import InvalidRequest
from slim.types import Dry, Mirostat, Sampling, Xtc
from slim.wire.requests import RequestLimits, parse_chat, parse_completion

LIMITS = RequestLimits(max_tokens=100, max_prompt_chars=50, places=8)
START = {"prompt": "hi", "messages": [{"role": "user", "content": "hi"}]}
ENDPOINTS = [(parse_completion, "prompt"), (parse_chat, "messages")]


def parse(raw="", **fields):
    """The sampling of both endpoints, which must be the same. `raw` is JSON text of one more field."""
    found = []
    for parse_body, start in ENDPOINTS:
        body = json.dumps({start: START[start], **fields})
        body = body if not raw else f"{body[:-1]},{raw}}}"
        (generation,) = parse_body(body.encode(), LIMITS).generations
        found.append(generation.sampling)
    assert found[0] == found[1]
    return found[0]


def refusal(raw="", **fields):
    errors = []
    for parse_body, start in ENDPOINTS:
        body = json.dumps({start: START[start], **fields})
        body = body if not raw else f"{body[:-1]},{raw}}}"
        with pytest.raises(InvalidRequest) as caught:
            parse_body(body.encode(), LIMITS)
        errors.append(caught.value)
    assert str(errors[0]) == str(errors[1])
    return errors[0]


def test_defaults_change_nothing():
    assert parse() == Sampling()


def test_every_field_arrives():
    assert parse(
        temperature=0.5,
        top_p=0.9,
        top_k=40,
        min_p=0.05,
        typical_p=0.8,
        presence_penalty=1,
        frequency_penalty=-1,
        repeat_penalty=1.1,
        repeat_last_n=64,
        logit_bias={"5": 1, "7": -100},
        seed=3,
    ) == Sampling(
        temperature=0.5,
        top_p=0.9,
        top_k=40,
        min_p=0.05,
        typical_p=0.8,
        presence_penalty=1.0,
        frequency_penalty=-1.0,
        repeat_penalty=1.1,
        repeat_last_n=64,
        logit_bias=((5, 1.0), (7, -100.0)),
        seed=3,
    )


@pytest.mark.parametrize(
    ("field", "low", "high"),
    [
        ("temperature", 0, 2),
        ("top_p", 0, 1),
        ("top_k", -1, 2**31 - 1),
        ("min_p", 0, 1),
        ("typical_p", 0, 1),
        ("presence_penalty", -2, 2),
        ("frequency_penalty", -2, 2),
        ("repeat_penalty", 0.01, 10),
        ("repetition_penalty", 0.01, 10),
        ("repeat_last_n", -1, 2**31 - 1),
        ("seed", -(2**63), 2**63 - 1),
        ("dry_multiplier", 0, 100),
        ("dry_base", 1, 100),
        ("dry_allowed_length", 0, 2**31 - 1),
        ("dry_penalty_last_n", -1, 2**31 - 1),
        ("xtc_probability", 0, 1),
        ("xtc_threshold", 0, 1),
        ("mirostat", 0, 2),
        ("mirostat_mode", 0, 2),
        ("mirostat_tau", 0, 100),
        ("mirostat_eta", 0, 1),
    ],
)
def test_numbers_have_bounds(field, low, high):
    for good in (low, high):
        parse(**{field: good})
    for bad in (low - 1, high + 1, str(low), True, [low], {}):
        assert refusal(**{field: bad}).param == field
    for bad in ("1e999", "-1e999"):
        assert refusal(f'"{field}":{bad}').param == field


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity"])
def test_json_has_no_nan(number):
    assert number.strip("-") in str(refusal(f'"temperature":{number}'))


@pytest.mark.parametrize("value", [0, -1])
def test_zero_and_minus_one_keep_all_tokens(value):
    assert parse(top_k=value).top_k == 0


def test_the_penalty_on_repetition_has_two_names_that_must_agree():
    assert parse(repetition_penalty=1.3).repeat_penalty == 1.3
    assert parse(repetition_penalty=1.3, repeat_penalty=1.3).repeat_penalty == 1.3
    assert refusal(repetition_penalty=1.3, repeat_penalty=1.2).param == "repetition_penalty"


# Biases


def test_biases_may_be_a_list_of_pairs_where_false_bans():
    assert parse(logit_bias=[[5, 1.5], [7, False]]).logit_bias == ((5, 1.5), (7, -100.0))
    assert parse(logit_bias={"7": False}).logit_bias == ((7, -100.0),)


@pytest.mark.parametrize("nothing", [{}, [], None])
def test_no_biases_are_none(nothing):
    assert parse(logit_bias=nothing).logit_bias == ()


@pytest.mark.parametrize(
    "key", [" You", "-1", "1e3", "1.0", "05", "", " 5", "5 ", "٣", "²", "2147483648", "9" * 5000, "0x1", "+1", "1_0"]
)
def test_keys_of_biases_are_token_ids(key):
    error = refusal(logit_bias={key: 5})
    assert error.param == "logit_bias"
    assert "You should only be submitting non-negative integers" in str(error)
    assert len(str(error)) < 250


@pytest.mark.parametrize(
    "bias",
    [
        *({"5": 101}, {"5": -101}, {"5": "5"}, {"5": True}, {"5": None}, {"5": [1]}),
        *([[5]], [[5, 1, 2]], [5], [["5", 1]], [[" You", 1]], [[-1, 1]], [[1.0, 1]], [[True, 1]], [[2**31, 1]]),
        *([[5, 1], [5, 2]], [["5"], 1], "5", 5, True, {str(token): 1 for token in range(4097)}),
    ],
    ids=lambda bias: repr(bias)[:30],
)
def test_odd_biases_are_refused(bias):
    assert refusal(logit_bias=bias).param == "logit_bias"


def test_a_bias_beyond_any_float_is_refused():
    assert refusal('"logit_bias":{"5":1e999}').param == "logit_bias"


# llama.cpp's further samplers


def test_dry_is_asked_for_by_its_multiplier():
    assert parse(dry_base=2, dry_allowed_length=3).dry is None
    assert parse(dry_multiplier=0.8).dry == Dry(0.8)
    assert parse(
        dry_multiplier=0.8, dry_base=2, dry_allowed_length=3, dry_penalty_last_n=64, dry_sequence_breakers=["\n", "é"]
    ).dry == Dry(0.8, 2.0, 3, 64, ("\n", "é"))
    assert parse(dry_multiplier=0.8, dry_sequence_breakers=[]).dry == Dry(0.8, breakers=())


@pytest.mark.parametrize(
    ("breakers", "path"),
    [
        ("x", ""),
        (["a", ""], "[1]"),
        (["a\0b"], "[0]"),
        (["é" * 21], "[0]"),
        ([5], "[0]"),
        (["\ud83d"], "[0]"),
        (["x"] * 33, ""),
    ],
)
def test_breakers_are_short_texts(breakers, path):
    assert refusal(dry_sequence_breakers=breakers).param == f"dry_sequence_breakers{path}"


def test_xtc_is_asked_for_by_its_probability():
    assert parse(xtc_threshold=0.2).xtc is None
    assert parse(xtc_probability=0.5).xtc == Xtc(0.5)
    assert parse(xtc_probability=0.5, xtc_threshold=0.2).xtc == Xtc(0.5, 0.2)


def test_mirostat_has_two_names_that_must_agree():
    assert parse(mirostat=0, mirostat_tau=3).mirostat is None
    assert parse(mirostat=1).mirostat == Mirostat(1)
    assert parse(mirostat_mode=2, mirostat_tau=3, mirostat_eta=0.2).mirostat == Mirostat(2, 3.0, 0.2)
    assert refusal(mirostat=1, mirostat_mode=2).param == "mirostat_mode"
    assert refusal(mirostat=0, mirostat_mode=2).param == "mirostat_mode"
