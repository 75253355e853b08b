"""The messages of a conversation: which roles, which contents, and what a chat template gets of them.

Knows no endpoint and no template.
"""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from attrs import frozen

from ..convert import BadValue, Fault, Items, Reader, json_size, read_mapping, valid_text

MAX_MESSAGES = 10_000
MAX_CALLS = 1000  # of one message

_ROLES = {"developer": "system"}
"""OpenAI's newer word for the same; templates know the older one."""


def _content(value: Any) -> str:
    """A text, or parts that are all texts: joined by line breaks, as llama.cpp's server and vLLM do."""
    if isinstance(value, str):
        return valid_text(value)
    if not isinstance(value, list) or not value:
        raise BadValue("must be a string or a list of text parts")
    return "\n".join(_part(part, f"[{place}]") for place, part in enumerate(value))


def _part(part: Any, at: str) -> str:
    if not isinstance(part, dict) or not isinstance(part.get("type"), str):
        raise BadValue('must be an object such as {"type": "text", "text": "..."}', at)
    if part["type"] != "text":
        raise BadValue("has another type than text: this model takes text only", at)
    try:
        return valid_text(part.get("text"))
    except BadValue as error:
        raise BadValue(str(error), f"{at}.text") from None


def _arguments(value: Any) -> str | Mapping[str, Any]:
    """The text of a JSON object, as the model wrote it, so maybe none; or the object itself."""
    return valid_text(value) if isinstance(value, str) else read_mapping(value)


CONTENT = Reader(
    _content,
    {
        "anyOf": [
            {"type": "string"},
            {
                "type": "array",
                "minItems": 1,
                "items": {
                    "type": "object",
                    "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
                    "required": ["type", "text"],
                },
            },
        ]
    },
)
ARGUMENTS = Reader(_arguments, {"type": ["string", "object"]})


@frozen(kw_only=True)
class CalledFunction:
    """Which function the model called, and with what."""

    name: str
    arguments: Annotated[str | Mapping[str, Any], ARGUMENTS, "The text of a JSON object, or one."] = "{}"


@frozen(kw_only=True)
class ToolCall:
    """A call that an earlier answer made."""

    id: str | None = None
    type: Literal["function"] = "function"
    function: CalledFunction


@frozen(kw_only=True)
class Message:
    """One message. `content` may be null only beside `tool_calls`."""

    role: Annotated[
        Literal["system", "developer", "user", "assistant", "tool"],
        "`developer` reaches the template as `system`.",
    ]
    content: Annotated[str | None, CONTENT, "Text, or parts of type text, which are joined by line breaks."] = None
    name: str | None = None
    tool_calls: Annotated[tuple[ToolCall, ...], Items(0, MAX_CALLS), "Calls of an assistant's message."] = ()
    tool_call_id: Annotated[str | None, "Which call a tool's message answers; required there."] = None
    reasoning_content: Annotated[str | None, "What the assistant thought before; the template decides."] = None
    reasoning: Annotated[str | None, "Another name of `reasoning_content`."] = None


def message_faults(messages: tuple[Message, ...]) -> Iterator[Fault]:
    """What is wrong between the fields of each message."""
    for place, message in enumerate(messages):
        path = f"messages[{place}]"
        if message.content is None and not message.tool_calls:
            yield Fault(f"{path}.content", "is required; only an assistant's message with tool_calls may be without")
        if message.tool_calls and message.role != "assistant":
            yield Fault(f"{path}.tool_calls", "is only allowed in an assistant's message")
        if message.role == "tool" and message.tool_call_id is None:
            yield Fault(f"{path}.tool_call_id", "is required in a tool's message")
        if message.role != "tool" and message.tool_call_id is not None:
            yield Fault(f"{path}.tool_call_id", "is only allowed in a tool's message")
        yield from _reasoning_faults(path, message)


def _reasoning_faults(path: str, message: Message) -> Iterator[Fault]:
    for name in ("reasoning_content", "reasoning"):
        if getattr(message, name) and message.role != "assistant":
            yield Fault(f"{path}.{name}", "is only allowed in an assistant's message")
    if message.reasoning_content and message.reasoning not in (None, "", message.reasoning_content):
        yield Fault(f"{path}.reasoning", "is another name of reasoning_content, and the two differ: send one of them")


def messages_size(messages: tuple[Message, ...]) -> int:
    """Characters that a template may write of them."""
    return sum(
        len(message.content or "")
        + len(message.name or "")
        + len(message.tool_call_id or "")
        + len(message.reasoning_content or message.reasoning or "")
        + sum(_call_size(call) for call in message.tool_calls)
        for message in messages
    )


def _call_size(call: ToolCall) -> int:
    arguments = call.function.arguments
    size = len(arguments) if isinstance(arguments, str) else json_size(arguments)
    return len(call.id or "") + len(call.function.name) + size


def template_message(message: Message) -> Mapping[str, Any]:
    """The message as a chat template takes it: without the keys that were not sent, `content` a text."""
    plain: dict[str, Any] = {"role": _ROLES.get(message.role, message.role), "content": message.content or ""}
    if message.name is not None:
        plain["name"] = message.name
    if message.tool_calls:
        plain["tool_calls"] = [_template_call(call) for call in message.tool_calls]
    if message.tool_call_id is not None:
        plain["tool_call_id"] = message.tool_call_id
    reasoning = message.reasoning_content or message.reasoning
    if reasoning and message.role == "assistant":
        plain["reasoning_content"] = reasoning
    return plain


def _template_call(call: ToolCall) -> dict[str, Any]:
    plain: dict[str, Any] = {} if call.id is None else {"id": call.id}
    function = {"name": call.function.name, "arguments": call.function.arguments}
    return {**plain, "type": call.type, "function": function}
