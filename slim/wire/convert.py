"""From body bytes to frozen records, strictly, with every bad field named. Knows no endpoint.

Nothing is coerced: `"5"` and `true` are no numbers, `5` is no string, `1.0` is no whole number. A null field counts as
absent. Texts of errors never repeat a string that the client sent.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from math import isfinite
from typing import Annotated, Any, Literal, NoReturn, TypeVar, get_args, get_origin

import attrs
from attrs import frozen
from cattrs import Converter, IterableValidationNote
from cattrs.errors import ClassValidationError, IterableValidationError
from cattrs.gen import make_dict_structure_fn

from ..errors import InvalidRequest

T = TypeVar("T")
Hook = Callable[[Any, Any], Any]

MAX_DEPTH = 100
"""Levels of a JSON value that is handed on as it is. Python's own readers and writers end near a thousand."""

INT32 = 2**31 - 1
"""Token ids and lengths are 32 bits wide in llama.cpp."""

MOST_FAULTS = 20
"""Named in one refusal, and looked for in one list: a body may hold hundreds of thousands."""


class BadValue(ValueError):
    """Raised by a hook. The text says what would be right; the field's path is added to it.

    `at` is the rest of the path inside the field, such as `[1]`.
    """

    def __init__(self, text: str, at: str = "") -> None:
        super().__init__(text)
        self.at = at


@frozen
class Fault:
    """A bad field: its path, such as `stop[1]`, and what is wrong with it."""

    path: str
    text: str


@frozen
class Range:
    """Inclusive bounds of a number, for `Annotated`. A number without them has 64 bits, so all are safe for C."""

    low: float = -(2**63)
    high: float = 2**63 - 1


@frozen
class Items:
    """Inclusive bounds of the length of a list, for `Annotated`. Seen to before any item is looked at."""

    low: int
    high: int


@frozen(eq=False)
class Reader:
    """For `Annotated`: how a field is read that no type describes, and the JSON Schema of what it takes."""

    read: Callable[[Any], Any]
    """Raises BadValue. Null never comes."""
    schema: Mapping[str, Any]


ID_LIST: Mapping[str, Any] = {"type": "array", "items": {"type": "integer", "minimum": 0}}
"""JSON Schema of what `read_ids` takes."""

TEXT_LIST: Mapping[str, Any] = {"type": "array", "items": {"type": "string", "minLength": 1}}
"""JSON Schema of what `read_texts` takes."""


def read_object(body: bytes) -> dict[str, Any]:
    """The JSON object (RFC 8259) in a request body. Of duplicate keys the last one counts.

    Raises InvalidRequest for anything else, a byte order mark, NaN and infinities included.
    """
    try:
        value = json.loads(body.decode("utf-8"), parse_constant=_refuse_constant)
    except UnicodeDecodeError:
        raise InvalidRequest("The body is not valid UTF-8.") from None
    except json.JSONDecodeError as error:
        raise InvalidRequest(f"The body is not valid JSON: {error}.") from None
    except ValueError:  # Python's limit on the digits of an integer
        raise InvalidRequest("The body holds a number with too many digits.") from None
    except RecursionError:
        raise InvalidRequest("The body is nested too deeply.") from None
    if not isinstance(value, dict):
        raise InvalidRequest("The body must be a JSON object.")
    return value


def structure(converter: Converter, fields: dict[str, Any], cls: type[T], also: Iterable[Fault] = ()) -> T:
    """The record of type `cls` in `fields`; names that `cls` doesn't have are ignored.

    Raises InvalidRequest that names every bad field, those that the caller found (`also`) included.
    """
    try:
        record = converter.structure(fields, cls)
        faults = list(also)
    except ClassValidationError as error:
        faults = [*_faults(error), *also]
    refuse(faults)
    return record


def refuse(faults: Iterable[Fault]) -> None:
    """Raises InvalidRequest that names every fault, if there is any."""
    found = list(faults)
    if found:
        parts = [f"{fault.path}: {fault.text}" for fault in found[:MOST_FAULTS]]
        if len(found) > MOST_FAULTS:
            parts.append("and more")
        raise InvalidRequest("; ".join(parts), param=found[0].path)


def strict_converter() -> Converter:
    """A converter of one's own, to which an endpoint adds hooks."""
    converter = Converter()
    converter.register_structure_hook(str, lambda value, _: valid_text(value))
    converter.register_structure_hook(bool, lambda value, _: _flag(value))
    converter.register_structure_hook(int, _number_hook(int, Range()))
    converter.register_structure_hook(float, _number_hook(float, Range()))
    converter.register_structure_hook_factory(_is_ranged, _range_hook)
    converter.register_structure_hook_factory(_is_read, _reader_hook)
    converter.register_structure_hook_factory(_is_counted, _items_hook)
    converter.register_structure_hook_factory(_is_literal, _literal_hook)
    converter.register_structure_hook_factory(_is_tuple, _list_hook)
    converter.register_structure_hook_factory(attrs.has, _object_hook)
    return converter


def valid_text(value: object) -> str:
    """A string that can be written as UTF-8. Raises BadValue."""
    if not isinstance(value, str):
        raise BadValue("must be a string")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise BadValue("must not hold half of a surrogate pair") from None
    return value


def is_text(value: object) -> bool:
    """A string that can be written as UTF-8 and is not empty."""
    try:
        return bool(valid_text(value))
    except BadValue:
        return False


def json_size(value: Any) -> int:
    """Characters and values in a JSON value that is handed on as it is, such as a schema: a bound of its text's length.

    Raises BadValue when other JSON readers would refuse it: infinities (`1e999`), half surrogate pairs, too deep.
    """
    size, depth, level = 0, 0, [value]
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            raise BadValue(f"must not be nested deeper than {MAX_DEPTH} levels")
        below: list[Any] = []
        for item in level:
            if isinstance(item, str):
                size += len(valid_text(item))
            elif isinstance(item, dict):
                size += sum(len(valid_text(key)) for key in item)
                below.extend(item.values())
            elif isinstance(item, list):
                below.extend(item)
            elif isinstance(item, float) and not isfinite(item):
                raise BadValue("must not hold a number beyond any float")
        size += len(level)
        level = below
    return size


def length_faults(path: str, size: int, limit: int, unit: str = "characters") -> Iterator[Fault]:
    """A fault where a part of the request has more of a unit than the server's settings allow."""
    if size > limit:
        yield Fault(path, f"has {size} {unit}, more than this server's limit of {limit}")


def is_token_id(value: object) -> bool:
    """A whole number that may be a token's; whether the model has it isn't known here."""
    return type(value) is int and 0 <= value <= INT32


def read_ids(values: list[Any], at: str = "") -> tuple[int, ...]:
    """Token ids. `at` is the list's path inside the field. Raises BadValue."""
    # Not by a type: a body may hold half a million of them, and this runs on the event loop.
    for place, token in enumerate(values):
        if not is_token_id(token):
            raise BadValue("must be a token id, a whole number from 0 up", f"{at}[{place}]")
    return tuple(values)


def read_texts(values: list[Any]) -> tuple[str, ...]:
    """Texts of which none is empty. Raises BadValue."""
    for place, text in enumerate(values):
        if not is_text(text):
            raise BadValue("must be a string that is not empty, without half a surrogate pair", f"[{place}]")
    return tuple(values)


def read_mapping(value: Any) -> dict[str, Any]:
    """A JSON object that is handed on as it is. Raises BadValue."""
    if not isinstance(value, dict):
        raise BadValue("must be an object")
    json_size(value)
    return value


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise BadValue("must be true or false")
    return value


def marks(wanted: Any, kind: type[T]) -> list[T]:
    """The annotations of that kind on an `Annotated` type."""
    return [mark for mark in get_args(wanted)[1:] if isinstance(mark, kind)] if get_origin(wanted) is Annotated else []


def without_none(wanted: Any) -> Any:
    """`X` for `X | None`: a null field counts as absent and never reaches a hook."""
    kinds = [kind for kind in get_args(wanted) if kind is not type(None)]
    return kinds[0] if type(None) in get_args(wanted) else wanted


def _is_ranged(wanted: Any) -> bool:
    return bool(marks(wanted, Range))


def _range_hook(wanted: Any) -> Hook:
    return _number_hook(without_none(get_args(wanted)[0]), marks(wanted, Range)[0])


def _is_read(wanted: Any) -> bool:
    return bool(marks(wanted, Reader))


def _reader_hook(wanted: Any) -> Hook:
    read = marks(wanted, Reader)[0].read
    return lambda value, _: read(value)


def _is_literal(wanted: Any) -> bool:
    return get_origin(wanted) is Literal


def _literal_hook(wanted: Any) -> Hook:
    options = get_args(wanted)
    words = ", ".join(map(str, options))

    def hook(value: Any, _: Any) -> Any:
        # By type too: to Python `true` is 1, and so is 1.0.
        if not any(type(value) is type(option) and value == option for option in options):
            raise BadValue(f"must be one of {words}" if len(options) > 1 else f"must be {words}")
        return value

    return hook


def _number_hook(base: type, bounds: Range) -> Hook:
    kinds, words = ((int,), "a whole number") if base is int else ((int, float), "a number")

    def hook(value: Any, _: Any) -> Any:
        # `not (low <= x <= high)` is also true of NaN. Compared before it is converted: a huge integer has no float.
        if type(value) not in kinds or not (bounds.low <= value <= bounds.high):
            raise BadValue(f"must be {words} from {bounds.low} to {bounds.high}")
        return base(value)

    return hook


def _is_tuple(wanted: Any) -> bool:
    return get_origin(wanted) is tuple


def _list_hook(wanted: Any, converter: Converter) -> Hook:
    kind = get_args(wanted)[0]
    build = converter.get_structure_hook(kind)

    def hook(value: Any, _: Any) -> Any:
        if not isinstance(value, list):
            raise BadValue("must be a list")
        items: list[Any] = []
        errors: list[Exception] = []
        for place, item in enumerate(value):
            try:
                items.append(build(item, kind))
            except (BadValue, ClassValidationError, IterableValidationError) as error:
                error.add_note(IterableValidationNote("", place, kind))
                errors.append(error)
                if len(errors) > MOST_FAULTS:
                    break
        if errors:
            raise IterableValidationError("", errors, wanted)
        return tuple(items)

    return hook


def _is_counted(wanted: Any) -> bool:
    return bool(marks(wanted, Items))


def _items_hook(wanted: Any, converter: Converter) -> Hook:
    bounds = marks(wanted, Items)[0]
    kind = get_args(wanted)[0]
    build = converter.get_structure_hook(kind)

    def hook(value: Any, _: Any) -> Any:
        if isinstance(value, list) and not bounds.low <= len(value) <= bounds.high:
            raise BadValue(f"must have {bounds.low} to {bounds.high} items")
        return build(value, kind)

    return hook


def _object_hook(cls: Any, converter: Converter) -> Hook:
    build = make_dict_structure_fn(cls, converter)

    def hook(value: Any, _: Any) -> Any:
        if not isinstance(value, dict):
            raise BadValue("must be an object")
        return build({name: item for name, item in value.items() if item is not None}, cls)

    return hook


def _faults(error: ClassValidationError | IterableValidationError, path: str = "") -> Iterator[Fault]:
    """The tree of cattrs' errors as a flat list. An exception that is no hook's verdict is a bug and goes on."""
    for inner, note in error.group_exceptions()[0]:
        if isinstance(note, IterableValidationNote):
            here = f"{path}[{note.index}]"
        else:
            here = f"{path}.{note.name}" if path else note.name
        if isinstance(inner, ClassValidationError | IterableValidationError):
            yield from _faults(inner, here)
        elif isinstance(inner, BadValue):
            yield Fault(here + inner.at, str(inner))
        elif isinstance(inner, KeyError):
            yield Fault(here, "is required")
        else:
            raise inner


def _refuse_constant(name: str) -> NoReturn:
    raise InvalidRequest(f"The body is not valid JSON: it has no {name}.")
