"""Log-probabilities as clients read them, in OpenAI's two shapes."""

import json
import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slim.types import TokenScore
from slim.wire.render import compact
from slim.wire.scores import TextLogprobs, chat_logprobs


def score(data, logprob=-0.5, *top):
    return TokenScore(data, logprob, top)


def unseen(data):
    return TokenScore(data, -0.5, is_text=False)


def text_part(text, *scores):
    return TextLogprobs().part(text, scores)


def test_a_chat_token_carries_its_bytes_and_its_rivals():
    assert chat_logprobs([score("é".encode(), -0.25, ("é".encode(), -0.25), (b"e", -1.5)), score(b"!")]) == {
        "content": [
            {
                "token": "é",
                "logprob": -0.25,
                "bytes": [195, 169],
                "top_logprobs": [
                    {"token": "é", "logprob": -0.25, "bytes": [195, 169]},
                    {"token": "e", "logprob": -1.5, "bytes": [101]},
                ],
            },
            {"token": "!", "logprob": -0.5, "bytes": [33], "top_logprobs": []},
        ],
        "refusal": None,
    }


def test_the_bytes_of_a_split_character_join_to_it():
    content = chat_logprobs([score(b"\xf0\x9f"), score(b"\x98\x80")])["content"]
    assert bytes(content[0]["bytes"] + content[1]["bytes"]).decode() == "😀"
    assert content[0]["token"] == "\ufffd"


def test_a_text_token_is_in_four_parallel_lists():
    part = text_part("Hi you", score(b"Hi", -0.25, (b"Ho", -0.125), (b"Hi", -0.25)), score(b" you", -1.0))
    assert part == {
        "tokens": ["Hi", " you"],
        "token_logprobs": [-0.25, -1.0],
        "top_logprobs": [{"Ho": -0.125, "Hi": -0.25}, {" you": -1.0}],
        "text_offset": [0, 2],
    }


def test_the_first_token_of_a_prompt_has_no_numbers():
    part = text_part("ab", score(b"a", None), score(b"b"))
    assert part["token_logprobs"] == [None, -0.5]
    assert part["top_logprobs"] == [None, {"b": -0.5}]


def test_the_chosen_token_is_among_the_likeliest_with_the_very_same_number():
    number = -1 / 3
    part = text_part("b", score(b"b", number, (b"a", -0.1)))
    assert part["top_logprobs"] == [{"a": -0.1, "b": number}]
    assert part["token_logprobs"] == [number]


def test_of_two_tokens_with_one_text_the_likelier_counts():
    part = text_part("a", score(b"a", -3.0, (b"a", -0.1), (b"a", -2.0)))
    assert part["top_logprobs"] == [{"a": -0.1}]


def test_bytes_that_are_no_text_are_written_as_bytes():
    assert text_part("", score(b"\xf0\x9f", -1.0, (b"\xff", -2.0)))["tokens"] == ["bytes:\\xf0\\x9f"]
    assert text_part("", score(b"\xf0", -1.0, (b"\xff", -2.0)))["top_logprobs"] == [
        {"bytes:\\xff": -2.0, "bytes:\\xf0": -1.0}
    ]


@pytest.mark.parametrize("number", [-math.inf, math.nan, -1e300, -10000.0])
def test_what_json_cannot_say_is_very_unlikely(number):
    for made in (
        chat_logprobs([score(b"a", number, (b"b", number))]),
        text_part("a", score(b"a", number, (b"b", number))),
    ):
        assert json.loads(compact(made)) == made
        assert str(number) not in compact(made)
        assert "-9999.0" in compact(made)


def test_offsets_are_characters_and_go_on_from_piece_to_piece():
    logprobs = TextLogprobs()
    assert logprobs.part("né", [score(b"n"), score("é".encode())])["text_offset"] == [0, 1]
    assert logprobs.part("", [score(b"\xf0\x9f")])["text_offset"] == [2]
    assert logprobs.part("😀", [score(b"\x98\x80")])["text_offset"] == [2]
    assert logprobs.part("!", [score(b"!")])["text_offset"] == [3]


def test_offsets_know_of_text_that_a_stop_string_held_back():
    logprobs = TextLogprobs()
    assert logprobs.part("a", [score(b"ab")])["text_offset"] == [0]
    assert logprobs.part("", [score(b"cd")])["text_offset"] == [2]
    assert logprobs.part("bcdx", [score(b"x")])["text_offset"] == [4]
    assert logprobs.part("y", [score(b"y")])["text_offset"] == [5]


def test_a_control_token_takes_no_room():
    logprobs = TextLogprobs()
    begin, end = score(b"<s>"), score(b"</s>")
    assert logprobs.part("Hi you", [begin, score(b"Hi"), score(b" you")])["text_offset"] == [0, 0, 2]
    assert logprobs.part("!", [score(b"!")])["text_offset"] == [6]
    assert logprobs.part("", [end])["text_offset"] == [7]
    assert logprobs.part("x", [score(b"x")])["text_offset"] == [7]


def test_new_control_tokens_take_no_room_where_the_text_is_used_up():
    control = unseen(b"<|im_start|>")
    assert text_part("A b", score(b"A"), score(b" b"), control, control, control)["text_offset"] == [0, 1, 3, 3, 3]
    logprobs = TextLogprobs()
    assert logprobs.part("A", [score(b"A")])["text_offset"] == [0]
    assert logprobs.part("", [control])["text_offset"] == [1]
    assert logprobs.part("", [control, control])["text_offset"] == [1, 1]
    assert logprobs.part("b", [score(b"b")])["text_offset"] == [1]


def test_a_new_control_token_takes_no_room_though_the_text_spells_its_name():
    assert text_part("<s>a", unseen(b"<s>"), score(b"<s>"), score(b"a"))["text_offset"] == [0, 0, 3]


def test_a_control_token_that_is_shown_takes_room():
    assert text_part("<tool>a", score(b"<tool>"), score(b"a"))["text_offset"] == [0, 6]


def test_a_control_token_within_a_split_character_does_not_disturb_it():
    scores = [score(b"\xf0\x9f"), unseen(b"<s>"), score(b"\x98\x80"), score(b"!")]
    assert text_part("😀!", *scores)["text_offset"] == [0, 0, 0, 1]


@given(st.text(max_size=30), st.lists(st.integers(0, 120), max_size=8))
def test_each_token_begins_where_its_text_does(text, cuts):
    """However the text is cut into tokens, inside of characters too, and the tokens into pieces."""
    data = text.encode()
    places = sorted({0, *(cut for cut in cuts if cut < len(data)), len(data)})
    tokens = [data[begin:end] for begin, end in pairwise(places)]
    starts = [len(data[:begin].decode(errors="ignore")) for begin in places[:-1]]
    assert text_part(text, *map(score, tokens))["text_offset"] == starts
    logprobs, offsets, done = TextLogprobs(), [], 0
    for token, end in zip(tokens, places[1:], strict=True):
        known = len(data[:end].decode(errors="ignore"))
        offsets += logprobs.part(text[done:known], [score(token)])["text_offset"]
        done = known
    assert offsets == starts
