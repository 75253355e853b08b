"""Where in a request something is wrong: the path of a field, built only when an error needs it."""

import re

from attrs import evolve, frozen

from ..errors import InvalidRequest

_PLAIN = re.compile(r"[\w$-]+")
_LONGEST = 60
"""Characters of one name in a path."""


@frozen
class Place:
    """A path into the request, such as `response_format.json_schema.schema.properties.a`."""

    param: str
    """The request's field."""
    above: "Place | None" = None
    key: str | int = ""
    embedded: bool = False
    """Below a schema with its own `$id`, where `$ref` would start from that schema."""

    def at(self, key: str | int) -> "Place":
        """The place of one member."""
        return Place(self.param, self, key, self.embedded)

    def embed(self) -> "Place":
        """The same place, with an `$id` of its own."""
        return evolve(self, embedded=True)

    def error(self, message: str) -> InvalidRequest:
        """An error about what is here."""
        return InvalidRequest(f"{self}: {message}.", param=str(self))

    def __str__(self) -> str:
        steps: list[str] = []
        place: Place = self
        while place.above is not None:
            steps.append(_step(place.key))
            place = place.above
        return self.param + "".join(reversed(steps))


def _step(key: str | int) -> str:
    if isinstance(key, int):
        return f"[{key}]"
    if _PLAIN.fullmatch(key):
        return f".{key[:_LONGEST]}"
    return f"[{key[:_LONGEST]!a}]"
