"""From body bytes to frozen records, strictly, with every bad field named. Knows no endpoint.

Nothing is coerced: `"5"` and `true` are no numbers, `5` is no string, `1.0` is no whole number. A null field counts as
absent. Texts of errors never repeat a string that the client sent.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Annotated, Any, NoReturn, TypeVar, get_args, get_origin

import attrs
from attrs import frozen
from cattrs import Converter, IterableValidationNote
from cattrs.cols import homogenous_tuple_structure_factory
from cattrs.errors import ClassValidationError, IterableValidationError
from cattrs.gen import make_dict_structure_fn

from ..errors import InvalidRequest

T = TypeVar("T")
Hook = Callable[[Any, Any], Any]


class BadValue(ValueError):
    """Raised by a hook. The text says what would be right; the field's path is added to it."""


@frozen
class Fault:
    """A bad field: its path, such as `stop[1]`, and what is wrong with it."""

    path: str
    text: str


@frozen
class Range:
    """Inclusive bounds of a number, for `Annotated`. A number without them has 64 bits, so all are safe for C."""

    low: int = -(2**63)
    high: int = 2**63 - 1


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
    if faults:
        raise InvalidRequest("; ".join(f"{fault.path}: {fault.text}" for fault in faults), param=faults[0].path)
    return record


def strict_converter() -> Converter:
    """A converter of one's own, to which an endpoint adds hooks."""
    converter = Converter()
    converter.register_structure_hook(str, lambda value, _: valid_text(value))
    converter.register_structure_hook(bool, lambda value, _: _flag(value))
    converter.register_structure_hook(int, _number_hook(int, Range()))
    converter.register_structure_hook(float, _number_hook(float, Range()))
    converter.register_structure_hook_factory(_is_ranged, lambda wanted: _number_hook(*get_args(wanted)))
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


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise BadValue("must be true or false")
    return value


def _is_ranged(wanted: Any) -> bool:
    return get_origin(wanted) is Annotated and isinstance(get_args(wanted)[1], Range)


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
    build = homogenous_tuple_structure_factory(wanted, converter)

    def hook(value: Any, _: Any) -> Any:
        if not isinstance(value, list):
            raise BadValue("must be a list")
        return build(value, wanted)

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
            yield Fault(here, str(inner))
        elif isinstance(inner, KeyError):
            yield Fault(here, "is required")
        else:
            raise inner


def _refuse_constant(name: str) -> NoReturn:
    raise InvalidRequest(f"The body is not valid JSON: it has no {name}.")
