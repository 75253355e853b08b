"""The strict converter: nothing is coerced, every bad field is named, numbers are bounded."""

from typing import Annotated

import pytest
from attrs import frozen

from slim.errors import InvalidRequest
from slim.wire.convert import Fault, Range, read_object, strict_converter, structure


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
