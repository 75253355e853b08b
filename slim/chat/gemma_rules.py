"""Grammar rules for FunctionGemma's arguments. Knows no reader.

A schema becomes rules with keys in alphabetical order, which is how the model's template shows them. The rules obey
types, `properties`, `required`, `items`, `enum`, `const` and alternatives. Other keywords have no counterpart in this
form and are not enforced.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from .gemma import ESCAPE
from .lark import ANY, escaped, quoted, sequence, without

DEPTH = 16
"""Schemas are followed so deep; what lies deeper is any value."""
INTEGER = "/-?(0|[1-9][0-9]{0,17})/"
NUMBER = r"/-?(0|[1-9][0-9]{0,17})(\.[0-9]{1,17})?/"
KEY = r"/[^:,{}\[\]<> \t\r\n]{1,64}/"


def argument_rules(schema: Mapping[str, Any], name: str, control: Mapping[str, int]) -> list[str]:
    """Lark rules for arguments that obey the schema. The one to begin with is called `name`."""
    writer = _Writer(name, control)
    writer.lines.insert(0, f"{name}: {writer.typed({**schema, 'type': 'object'}, 0)}")
    return writer.lines


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


class _Writer:
    """Collects rules; its methods return what may stand in the body of one."""

    def __init__(self, prefix: str, control: Mapping[str, int]) -> None:
        self._prefix = prefix
        self._mark = sequence(ESCAPE, control)
        any_value = f"{prefix}_any"
        pairs = f'{KEY} ":" {any_value} ("," {KEY} ":" {any_value})*'
        self.lines = [
            f'{prefix}_object: "{{" ({pairs})? "}}"',
            f'{prefix}_array: "[" ({any_value} ("," {any_value})*)? "]"',
            f'{any_value}: {prefix}_text | {NUMBER} | "true" | "false" | "null" | {prefix}_object | {prefix}_array',
        ]
        if ESCAPE in control:
            self.lines += [
                f"{prefix}_text: {self._mark} {prefix.upper()}_TEXT? {self._mark}",
                f"{prefix.upper()}_TEXT: /(?s:.+)/{without(ESCAPE)}",
            ]
        else:
            self.lines += [
                f"{prefix}_text: {self._mark} {prefix}_rest",
                f"{prefix}_rest[lazy]: /{ANY}{escaped(ESCAPE)}/",
            ]

    def value(self, schema: Any, depth: int) -> str:
        if not isinstance(schema, Mapping) or depth > DEPTH:
            return f"{self._prefix}_any"
        for key in ("anyOf", "oneOf"):
            if options := _list(schema.get(key)):
                return self._either([self.value(option, depth + 1) for option in options])
        if "const" in schema:
            return self._constant(schema["const"])
        if options := _list(schema.get("enum")):
            return self._either([self._constant(option) for option in options])
        if kinds := _list(schema.get("type")):
            return self._either([self.typed({**schema, "type": kind}, depth) for kind in kinds])
        return self.typed(schema, depth)

    def typed(self, schema: Mapping[str, Any], depth: int) -> str:
        match schema.get("type"):
            case "string":
                return f"{self._prefix}_text"
            case "integer":
                return INTEGER
            case "number":
                return NUMBER
            case "boolean":
                return '("true" | "false")'
            case "null":
                return '"null"'
            case "array":
                item = self._rule(self.value(schema.get("items"), depth + 1))
                return f'"[" ({item} ("," {item})*)? "]"'
            case "object":
                properties = schema.get("properties")
                if isinstance(properties, Mapping) or schema.get("additionalProperties") is False:
                    return self._members(properties or {}, _list(schema.get("required")), depth)
                return f"{self._prefix}_object"
        return f"{self._prefix}_any"

    def _members(self, properties: Mapping[str, Any], required: Sequence[str], depth: int) -> str:
        """Written from the last member to the first: what may follow when none came before, and when one did."""
        first = later = ""
        for key in sorted(properties, key=lambda text: (text.lower(), text), reverse=True):
            pair = self._rule(f"{quoted(f'{key}:')} {self.value(properties[key], depth + 1)}")
            must = key in required
            begun = f"{pair} {later}".strip()
            first = self._rule(begun if must or not first else f"{begun} | {first}") if must or first else f"({begun})?"
            later = self._rule(f'"," {pair} {later}' if must else f'("," {pair})? {later}')
        return f'"{{" {first} "}}"'

    def _constant(self, value: Any) -> str:
        if isinstance(value, str):
            return " ".join(filter(None, (self._mark, quoted(value), self._mark)))
        if value is None or isinstance(value, bool | int | float):
            return quoted(json.dumps(value))
        return f"{self._prefix}_any"

    def _either(self, bodies: Sequence[str]) -> str:
        return "(" + " | ".join(bodies) + ")"

    def _rule(self, body: str) -> str:
        name = f"{self._prefix}_{len(self.lines)}"
        self.lines.append(f"{name}: {body}")
        return name
