"""The strict converter: nothing is coerced, every bad field is named, numbers are bounded."""

from typing import Annotated, Literal

import pytest
from attrs import frozen

from slim.errors import InvalidRequest
from slim.wire.convert import BadValue, Fault, Items, Range, Reader, json_size, read_object, strict_converter, structure


@frozen
class Inner:
    flag: bool = False


@frozen
class Record:
    name: str
    count: int = 3
    ratio: Annotated[float, Range(0, 2)] = 1.0
    small: Annotated[int, Range(1, 9)] | None = None
    words: tuple[str, ...] = ()
    inner: Inner = Inner()
    any_number: float = 0.0


def build(also=(), **fields):
    return structure(strict_converter(), {"name": "x", **fields}, Record, also)


def refusal(**fields):
    with pytest.raises(InvalidRequest) as caught:
        build(**fields)
    return caught.value


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", 5),
        ("name", ["x"]),
        ("name", "\ud83d"),
        ("count", "5"),
        ("count", True),
        ("count", 1.0),
        ("count", 2**63),
        ("count", -(2**63) - 1),
        ("ratio", "1"),
        ("ratio", False),
        ("ratio", 2.1),
        ("ratio", -0.1),
        ("ratio", float("nan")),
        ("ratio", float("inf")),
        ("ratio", 10**400),
        ("any_number", float("inf")),
        ("small", 0),
        ("small", 10),
        ("small", "5"),
        ("words", 5),
        ("inner", []),
        ("inner", "x"),
    ],
)
def test_a_value_of_the_wrong_kind_or_size_is_refused_by_name(field, value):
    error = refusal(**{field: value})
    assert error.param == field
    assert str(error).startswith(f"{field}: must")


def test_a_string_is_no_list_of_strings():
    assert refusal(words="ab").param == "words"


def test_no_word_is_a_boolean():
    assert refusal(inner={"flag": "no"}).param == "inner.flag"
    assert refusal(inner={"flag": 1}).param == "inner.flag"


def test_values_at_the_bounds_are_taken():
    assert build(count=2**63 - 1).count == 2**63 - 1
    assert build(count=-(2**63)).count == -(2**63)
    assert build(ratio=2, small=9) == Record("x", ratio=2.0, small=9)
    assert build(ratio=0, small=1) == Record("x", ratio=0.0, small=1)


def test_a_whole_number_is_a_number():
    assert type(build(ratio=1).ratio) is float


def test_null_is_absent_at_every_depth():
    nulls = dict.fromkeys(("count", "ratio", "small", "words", "inner"))
    assert build(**nulls) == Record("x")
    assert build(inner={"flag": None}) == Record("x")


def test_a_required_field_is_asked_for():
    assert str(refusal(name=None)) == "name: is required"


def test_unknown_names_are_ignored():
    assert build(inner={"flag": True, "more": 1}, other="\ud83d") == Record("x", inner=Inner(flag=True))


def test_every_bad_field_is_named_with_its_path():
    error = refusal(count="1", ratio=3, words=["a", 1, None], inner={"flag": 0}, also=[Fault("extra", "is odd")])
    assert [part.split(":")[0] for part in str(error).split("; ")] == [
        "count",
        "ratio",
        "words[1]",
        "words[2]",
        "inner.flag",
        "extra",
    ]
    assert error.param == "count"


def test_faults_of_the_caller_alone_refuse_too():
    assert refusal(also=[Fault("extra", "is odd")]).param == "extra"


def test_a_refusal_does_not_repeat_the_clients_text():
    assert "secret" not in str(refusal(count="secret", inner="secret"))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{{{",
        b"[]",
        b"42",
        b"null",
        b'"x"',
        b'\xef\xbb\xbf{"a":1}',
        b'{"a":"\xff"}',
        '{"a":1}'.encode("utf-16"),
        '{"a":1}'.encode("utf-16-le"),
        b'{"a":NaN}',
        b'{"a":-Infinity}',
        b'{"a":' + b"1" * 10_000 + b"}",
        b'{"a":' * 100_000,
        b"[" * 100_000 + b"]" * 100_000,
    ],
    ids=lambda body: repr(body[:12]),
)
def test_a_body_that_is_no_json_object_is_refused(body):
    with pytest.raises(InvalidRequest) as caught:
        read_object(body)
    assert caught.value.param is None
    assert str(caught.value).isascii()
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("body", "word"),
    [
        (b'{"a":"\xff"}', "UTF-8"),
        (b'{"a":NaN}', "NaN"),
        (b'{"a":' + b"1" * 10_000 + b"}", "digits"),
        (b"[" * 100_000, "deeply"),
        (b"{{{", "JSON"),
        (b"[]", "object"),
    ],
    ids=lambda value: repr(value[:12]),
)
def test_a_refused_body_is_told_why(body, word):
    with pytest.raises(InvalidRequest, match=word):
        read_object(body)


def test_of_duplicate_keys_the_last_one_counts():
    assert read_object(b'{"a":1,"a":2}') == {"a": 2}


@frozen
class Marked:
    word: Literal["a", "b"] | None = None
    version: Literal[1, 2] = 1
    bounded: Annotated[int | None, Range(1, 9), "A described number."] = None
    few: Annotated[tuple[Inner, ...], Items(1, 3), "A described list."] = ()
    described: Annotated[bool, "A described flag."] = False
    own: Annotated[str, Reader(lambda value: read_own(value), {"type": "string"})] = ""


def read_own(value):
    if value == "bad":
        raise BadValue("is bad inside", "[2].x")
    return f"read {value}"


def marked(**fields):
    return structure(strict_converter(), fields, Marked)


def test_a_field_with_a_reader_of_its_own_is_read_by_it():
    assert marked(own="x").own == "read x"
    with pytest.raises(InvalidRequest) as caught:
        marked(own="bad")
    assert caught.value.param == "own[2].x"
    assert str(caught.value) == "own[2].x: is bad inside"


def test_descriptions_change_nothing():
    made = marked(word="b", version=2, bounded=9, described=True, few=[{}])
    assert made == Marked("b", 2, 9, (Inner(),), True)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("word", "c"), ("word", 1), ("word", ["a"])),
        *(("version", True), ("version", 1.0), ("version", "1"), ("version", 3)),
        *(("bounded", 0), ("bounded", 10), ("described", 1)),
        *(("few", []), ("few", [{}] * 4), ("few", [5] * 4), ("few", {})),
    ],
)
def test_only_the_listed_values_of_their_kind_are_taken(field, value):
    with pytest.raises(InvalidRequest) as caught:
        marked(**{field: value})
    assert caught.value.param == field


def test_a_refusal_names_no_more_than_twenty_fields():
    error = refusal(words=[1] * 1000)
    assert error.param == "words[0]"
    assert "words[19]" in str(error)
    assert "words[20]" not in str(error)
    assert str(error).endswith("; and more")


def test_a_list_of_a_million_bad_items_is_given_up_early():
    seen = []

    def read(value):
        seen.append(value)
        raise BadValue("is bad")

    @frozen
    class Long:
        items: tuple[Annotated[str, Reader(read, {})], ...] = ()

    with pytest.raises(InvalidRequest):
        structure(strict_converter(), {"items": [1] * 1_000_000}, Long)
    assert len(seen) == 21


@pytest.mark.parametrize(
    ("value", "size"),
    [(None, 1), ("abc", 4), ([1, True, "a"], 5), ({"key": {"k": ""}}, 7), ([], 1)],
)
def test_the_size_of_a_json_value_is_its_characters_and_values(value, size):
    assert json_size(value) == size


def nested(depth):
    value = []
    for _ in range(depth - 1):
        value = {"a": value}
    return value


def test_a_json_value_may_have_a_hundred_levels():
    assert json_size(nested(100))
    for depth in (101, 5000):
        with pytest.raises(BadValue, match="100 levels"):
            json_size(nested(depth))


@pytest.mark.parametrize("value", [["\ud83d"], {"\udcf0": 1}, {"a": [float("inf")]}, float("nan")])
def test_a_json_value_that_others_would_refuse_is_refused(value):
    with pytest.raises(BadValue):
        json_size(value)
