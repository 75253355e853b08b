"""The Jinja that chat templates are written for: sandboxed, with the names and filters that model makers rely on.

The sandbox bounds `range` to 100,000 and keeps templates from Python's inner parts; `*` and `**` are bounded here. A
template is the operator's choice like the model itself, so what is left is trusted: nested loops without output take
their time, and `~` can double a string until memory ends.
"""

import json
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import TemplateRuntimeError, Undefined
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import Node
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

OUTPUT_CHARS = 32 * 2**20
"""No prompt is longer: a rendering that reaches it has run away."""
NUMBER_BITS = 4096


class Generation(Extension):
    """`{% generation %}`: training tools read from it which text is the assistant's. Here it is only its content."""

    tags = {"generation"}  # noqa: RUF012 - Jinja's own way to declare it

    def parse(self, parser: Parser) -> Node | list[Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """Settings as transformers has them: templates are written and tested against those."""

    intercepted_binops = frozenset({"*", "**"})

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, Generation])
        self.filters["tojson"] = to_json
        self.globals["raise_exception"] = raise_exception
        self.globals["strftime_now"] = strftime_now

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        size = _bits(left) * _number(right) if operator == "**" else _bits(left) + _bits(right)
        repeated = max(_length(left) * _number(right), _length(right) * _number(left)) if operator == "*" else 0
        if size > NUMBER_BITS or repeated > OUTPUT_CHARS:
            raise TemplateRuntimeError(f"The result of {operator} is too large.")
        return super().call_binop(context, operator, left, right)


def _bits(value: Any) -> int:
    return value.bit_length() if isinstance(value, int) else 0


def _number(value: Any) -> int:
    return abs(value) if isinstance(value, int) else 0


def _length(value: Any) -> int:
    return len(value) if isinstance(value, str | list | tuple) else 0


def to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as transformers writes it in templates: `<` and `'` stay as they are, unlike Jinja's own filter."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys, default=_no_json
    )


def _no_json(value: Any) -> NoReturn:
    if isinstance(value, Undefined):
        raise TemplateRuntimeError("A value that is not defined can't be written as JSON.")
    raise TypeError(f"A {type(value).__name__} can't be written as JSON.")


def raise_exception(message: object) -> NoReturn:
    """How a template refuses a conversation."""
    raise TemplateRuntimeError(str(message))


def strftime_now(form: str) -> str:
    """The local date and time, as `datetime.strftime` writes it."""
    return datetime.now().strftime(form)
