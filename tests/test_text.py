"""Text: the same result however the bytes are cut, and nothing held back without need."""

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slim.text import StopMatcher, TextAssembler, Utf8Joiner
from slim.types import TokenScore

SMALL = st.text("abc", max_size=12)
STOPS = st.lists(st.text("abc", min_size=1, max_size=4), max_size=4).map(tuple)


def cut(data, points):
    """`data` in pieces, cut at `points` (any integers)."""
    edges = sorted({0, len(data), *(point % (len(data) + 1) for point in points)})
    return [data[a:b] for a, b in pairwise(edges)]


CUTS = st.lists(st.integers(0, 100), max_size=8)
BYTES = st.one_of(
    st.binary(max_size=12),
    st.text(max_size=6).map(lambda text: text.encode()),
    st.lists(st.sampled_from([b"\xf0\x9f\x98\x80", b"\xf0", b"\x9f", b"\xed\xa0\x80", b"\xe6\xbc", b"a", b"\xc3"])).map(
        b"".join
    ),
)


def first_stop(text, stops):
    """The oracle: read one character at a time and look whether a stop ends here."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            return text[: end - max(map(len, ending))], True
    return text, False


def run(assembler, pieces):
    return "".join([*map(assembler.feed, pieces), assembler.finish()])


def test_an_emoji_in_three_pieces_comes_out_whole():
    joiner = Utf8Joiner()
    assert [joiner.feed(piece) for piece in (b"\xf0\x9f", b"\x98", b"\x80", b"!")] == ["", "", "😀", "!"]
    assert joiner.flush() == ""


@pytest.mark.parametrize(
    ("pieces", "texts"),
    [
        ((b"\xff", b"\xfe", b"A"), ["\ufffd", "\ufffd", "A"]),
        ((b"\xc3", b"("), ["", "\ufffd("]),
        ((b"\xc3", b"", b"\xa9"), ["", "", "é"]),
    ],
)
def test_invalid_bytes_become_replacement_characters_at_once(pieces, texts):
    joiner = Utf8Joiner()
    assert [joiner.feed(piece) for piece in pieces] == texts


def test_a_cut_character_at_the_end_becomes_one_replacement_character():
    joiner = Utf8Joiner()
    assert joiner.feed(b"ok\xe6\xbc") == "ok"
    assert joiner.flush() == "\ufffd"
    assert joiner.flush() == ""


@given(BYTES, CUTS)
def test_joined_pieces_equal_the_whole_decoded_at_once(data, points):
    joiner = Utf8Joiner()
    text = "".join(joiner.feed(piece) for piece in cut(data, points))
    assert text + joiner.flush() == data.decode("utf-8", "replace")


@given(BYTES, CUTS)
def test_at_most_three_bytes_are_held_back(data, points):
    joiner, fed, out = Utf8Joiner(), b"", ""
    for piece in cut(data, points):
        fed += piece
        out += joiner.feed(piece)
        assert any(out == fed[: len(fed) - held].decode("utf-8", "replace") for held in range(4))


def test_a_stop_over_several_tokens_is_seen():
    assembler = TextAssembler(("beta gamma",))
    assert [assembler.feed(token) for token in (b"alpha ", b"be", b"ta ga")] == ["alpha ", "", ""]
    assert not assembler.stopped
    assert assembler.feed(b"mma and more") == ""
    assert assembler.stopped


def test_no_part_of_a_stop_comes_out_before_it_is_complete():
    assembler = TextAssembler(("own fox",))
    assert assembler.feed(b"brown") == "br"
    assert assembler.feed(b" fox") == ""
    assert assembler.stopped


def test_after_the_stop_nothing_comes_out():
    assembler = TextAssembler(("X",))
    assert assembler.feed(b"aXb") == "a"
    assert assembler.feed(b"c X d") == ""
    assert assembler.finish() == ""


def test_what_only_looked_like_a_stop_comes_out():
    assembler = TextAssembler(("</end>",))
    assert assembler.feed(b"a</e") == "a"
    assert assembler.feed(b"m></") == "</em>"
    assert assembler.finish() == "</"
    assert assembler.finish() == ""
    assert not assembler.stopped


def test_the_stop_that_is_complete_first_wins():
    assembler = TextAssembler(("bcdef", "cd"))
    assert assembler.feed(b"abcdef") == "ab"


def test_of_stops_that_end_together_the_longest_wins():
    assembler = TextAssembler(("c", "bc"))
    assert assembler.feed(b"abc") == "a"


def test_the_bytes_left_at_the_end_can_complete_a_stop():
    assembler = TextAssembler(("a\ufffd",))
    assert assembler.feed(b"xa\xc3") == "x"
    assert assembler.finish() == ""
    assert assembler.stopped


def test_a_stop_may_be_cut_inside_a_character():
    assembler = TextAssembler(("漢",))
    assert [assembler.feed(piece) for piece in (b"a\xe6", b"\xbc", b"\xa2b")] == ["a", "", ""]
    assert assembler.stopped


@given(SMALL, STOPS, CUTS)
def test_any_cut_gives_the_text_of_one_character_at_a_time(text, stops, points):
    assembler = TextAssembler(stops)
    out = run(assembler, cut(text.encode(), points))
    assert (out, assembler.stopped) == first_stop(text, stops)


@given(SMALL, STOPS, CUTS)
def test_only_the_longest_possible_beginning_of_a_stop_is_held_back(text, stops, points):
    matcher, fed, out = StopMatcher(stops), "", ""
    for piece in cut(text, points):
        fed += piece
        out += matcher.feed(piece)
        if not matcher.stopped:
            beginnings = {stop[:size] for stop in stops for size in range(len(stop))}
            held = max((size for size in range(len(fed) + 1) if fed[len(fed) - size :] in beginnings), default=0)
            assert out == fed[: len(fed) - held]


@given(BYTES, CUTS)
def test_without_stops_every_byte_comes_out(data, points):
    assert run(TextAssembler(()), cut(data, points)) == data.decode("utf-8", "replace")


def score(data: bytes) -> TokenScore:
    return TokenScore(data, -1.0)


def scored(tokens: Sequence[bytes], stops: Sequence[str] = ()) -> list[tuple[str, bytes]]:
    """The text of each token and of the end, with the bytes of the tokens whose scores came with it."""
    assembler = TextAssembler(stops)
    out = []
    for data in tokens:
        text = assembler.feed(data, score(data))
        out.append((text, b"|".join(one.data for one in assembler.take_scores())))
    text = "" if assembler.stopped else assembler.finish()
    out.append((text, b"|".join(one.data for one in assembler.take_scores())))
    return out


def test_a_score_comes_with_the_text_of_its_token() -> None:
    assert scored([b"one", b" two"]) == [("one", b"one"), (" two", b" two"), ("", b"")]


def test_scores_of_a_split_character_come_together_with_it() -> None:
    assert scored([b"\xf0\x9f", b"\x98", b"\x80!"]) == [
        ("", b""),
        ("", b""),
        ("\U0001f600!", b"\xf0\x9f|\x98|\x80!"),
        ("", b""),
    ]


def test_scores_of_held_back_text_wait_with_it() -> None:
    assert scored([b"a<", b"e", b"x"], ["<end>"]) == [("a", b"a<"), ("", b""), ("<ex", b"e|x"), ("", b"")]


def test_what_a_stop_string_swallowed_has_no_score() -> None:
    assert scored([b"a", b"b<", b"end", b">"], ["<end>"]) == [
        ("a", b"a"),
        ("b", b"b<"),
        ("", b""),
        ("", b""),
        ("", b""),
    ]


def test_at_the_end_every_token_has_its_score() -> None:
    assert scored([b"a", b"", b"<e"], ["<end>"]) == [("a", b"a"), ("", b""), ("", b""), ("<e", b"|<e")]
