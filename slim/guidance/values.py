"""Checks the plain values in a schema, and how much of them there is. Knows no keyword but by its place."""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import lcm
from typing import Any

from .patterns import as_ecma, problem, unwritable
from .places import Place

MAX_NODES = 5_000
"""Schemas and values of a whole schema."""
MAX_CHARACTERS = 200_000
"""Of all names, values and patterns of a schema."""
MAX_VALUE_DEPTH = 64
EXACT = 2**53
"""llguidance holds numbers as 64-bit floats; above this they skip integers. An integer beyond 64 bits ends the process,
or becomes another one."""
MAX_COUNT = 2**31 - 1
MAX_DECIMALS = 15
MAX_MULTIPLE = 65_535
"""The least common multiple of all `multipleOf`, as integers of their smallest decimal place. llguidance's automaton
has a state for each remainder (100,003 took 1 s, 1,000,003 took 16 s), and multiplies two of them in 32 bits."""


class Budget:
    """What one schema has used of its limits. Each method raises InvalidRequest."""

    def __init__(self) -> None:
        self._nodes = 0
        self._characters = 0
        self._multiples: set[Fraction] = set()

    def node(self, place: Place) -> None:
        """One more schema or value."""
        self._nodes += 1
        if self._nodes > MAX_NODES:
            raise place.error(f"the whole schema has more than {MAX_NODES:,} schemas and values")

    def text(self, text: str, place: Place) -> None:
        """One more name, value or pattern."""
        self._characters += len(text)
        if self._characters > MAX_CHARACTERS:
            raise place.error(f"the whole schema has more than {MAX_CHARACTERS:,} characters")
        if not text.isascii() and any("\ud800" <= char <= "\udfff" for char in text):
            raise place.error("must not have a lone surrogate")

    def value(self, value: object, place: Place) -> None:
        """A value that answers may have: any JSON."""
        waiting: list[tuple[object, int]] = [(value, 1)]
        while waiting:
            inner, depth = waiting.pop()
            self.node(place)
            if depth > MAX_VALUE_DEPTH:
                raise place.error(f"values are nested deeper than {MAX_VALUE_DEPTH}")
            match inner:
                case str():
                    self.text(inner, place)
                    if unwritable(inner):
                        raise place.error("a control character that JSON must escape as \\u can't be honoured")
                case bool() | None:
                    pass
                case int() | float():
                    if abs(inner) > EXACT:
                        raise place.error("numbers beyond 2**53 can't be honoured exactly")
                case Mapping():
                    for name in inner:
                        self.text(name, place)
                    waiting += ((member, depth + 1) for member in inner.values())
                case Sequence():
                    waiting += ((member, depth + 1) for member in inner)

    def pattern(self, value: object, place: Place) -> str:
        """A regular expression that some text must match somewhere, in llguidance's words."""
        if not isinstance(value, str):
            raise place.error("must be a regular expression as a string")
        self.text(value, place)
        if reason := problem(value):
            raise place.error(f"the regular expression {reason}, which can't be honoured")
        return as_ecma(value)

    def multiple(self, value: object, place: Place) -> int | float:
        """A `multipleOf`."""
        number = bound(value, place)
        if number <= 0:
            raise place.error("must be a number above 0")
        self._multiples.add(Fraction(str(number)))
        scale = lcm(*(multiple.denominator for multiple in self._multiples))
        if lcm(*(int(multiple * scale) for multiple in self._multiples)) > MAX_MULTIPLE:
            raise place.error(
                f"multipleOf can't be honoured above {MAX_MULTIPLE:,}, counted as the least common multiple of all "
                "multipleOf of the schema, in units of their smallest decimal place"
            )
        return number


def count(value: object, place: Place) -> int:
    """A length: an integer from 0. JSON Schema takes 3.0 for one too."""
    whole = value.is_integer() if isinstance(value, float) else isinstance(value, int) and not isinstance(value, bool)
    if not whole or not isinstance(value, int | float) or not 0 <= value <= MAX_COUNT:
        raise place.error(f"must be an integer from 0 to {MAX_COUNT:,}")
    return int(value)


def bound(value: object, place: Place) -> int | float:
    """A bound of numbers."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise place.error("must be a number")
    if abs(value) > EXACT:
        raise place.error("numbers beyond 2**53 can't be honoured exactly")
    if value and abs(value) < 10.0**-MAX_DECIMALS:
        raise place.error(f"numbers closer to 0 than 1e-{MAX_DECIMALS} can't be honoured")
    return value


def write_exclusive_bounds(clean: dict[str, Any]) -> None:
    """Write exclusive bounds of numbers as bounds one billionth (1e-9, or that part of the bound) further in.

    llguidance lets an exclusive bound itself through where the other bound has the same integer part: `0` with
    exclusiveMinimum 0 and maximum 0.5. Integers are right.
    """
    if clean.get("type") == "integer":
        return
    for keyword, sign, nearer in (("minimum", 1, max), ("maximum", -1, min)):
        exclusive = clean.pop(f"exclusive{keyword.capitalize()}", None)
        if exclusive is not None:
            inner = exclusive + sign * 1e-9 * max(1.0, abs(exclusive))
            clean[keyword] = nearer(inner, clean.get(keyword, inner))
