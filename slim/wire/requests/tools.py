"""The functions that a model may call, and whether it must. Knows no endpoint, no template and no schema."""

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from attrs import frozen

from ..convert import BadValue, Fault, Reader, read_mapping, valid_text

MAX_TOOLS = 128  # OpenAI's

_NAME = re.compile("[a-zA-Z0-9_-]{1,64}")
_WORDS = ("none", "auto", "required")


def _name(value: Any) -> str:
    if not _NAME.fullmatch(valid_text(value)):
        raise BadValue("must have 1 to 64 letters, digits, underscores and dashes")
    return str(value)


def _tool_choice(value: Any) -> str:
    """One of the words, or `=` and the name of the one function."""
    if value in _WORDS:
        return str(value)
    match value:
        case {"type": "function", "function": {"name": str(name)}}:
            return f"={valid_text(name)}"
    raise BadValue('must be none, auto, required or {"type": "function", "function": {"name": "..."}}')


NAME = Reader(_name, {"type": "string", "pattern": "^[a-zA-Z0-9_-]{1,64}$"})
PARAMETERS = Reader(read_mapping, {"type": "object"})
TOOL_CHOICE = Reader(
    _tool_choice,
    {
        "anyOf": [
            {"enum": list(_WORDS)},
            {
                "type": "object",
                "properties": {
                    "type": {"const": "function"},
                    "function": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
                },
                "required": ["type", "function"],
            },
        ]
    },
)


@frozen(kw_only=True)
class Function:
    """What the model is told of a function."""

    name: Annotated[str, NAME]
    description: str | None = None
    parameters: Annotated[Mapping[str, Any] | None, PARAMETERS, "A JSON Schema of the arguments object."] = None
    strict: Annotated[bool | None, "The schema holds either way."] = None


@frozen(kw_only=True)
class Tool:
    """Only functions."""

    type: Literal["function"]
    function: Function


def tool_faults(tools: tuple[Tool, ...], choice: str | None) -> Iterator[Fault]:
    """What is wrong between the tools and the choice among them."""
    names: set[str] = set()
    for place, tool in enumerate(tools):
        if tool.function.name in names:
            yield Fault(f"tools[{place}].function.name", "is the name of an earlier tool too")
        names.add(tool.function.name)
        if not _takes_object(tool.function.parameters or {}):
            yield Fault(f"tools[{place}].function.parameters", "must be the schema of an object: arguments have names")
    if choice == "required" and not tools:
        yield Fault("tool_choice", "required is only allowed together with tools")
    if choice is not None and choice.startswith("=") and choice[1:] not in names:
        yield Fault("tool_choice", "must name one of tools")


def _takes_object(schema: Mapping[str, Any]) -> bool:
    kind = schema.get("type", "object")
    return kind == "object" or (isinstance(kind, list) and "object" in kind)


def template_tool(tool: Tool) -> Mapping[str, Any]:
    """The tool in OpenAI's shape, without the keys that were not sent."""
    function = tool.function
    plain: dict[str, Any] = {"name": function.name}
    for name in ("description", "parameters", "strict"):
        value = getattr(function, name)
        if value is not None:
            plain[name] = value
    return {"type": "function", "function": plain}
