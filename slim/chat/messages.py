"""A conversation put into the form that a chat template takes. Knows no Jinja.

Templates that render tools get them as the model makers' tools do, with a call's arguments as an object. For all
others calls, results and the list of functions are written as text here, in the plain JSON form.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..types import ChatPrompt

Message = dict[str, Any]

SHORT_ID = re.compile(r"[a-zA-Z0-9]{9}")
"""The only call ids that Mistral's templates take."""

INSTRUCTIONS = """\
You can call functions. To call one, answer with one JSON object and nothing else: \
{"name": "<function>", "arguments": {<its arguments>}}
If no function is needed, answer in plain text. The functions, one in each line:
"""


def native(prompt: ChatPrompt, *, short_ids: bool) -> list[Message]:
    """Messages for a template that knows tools. With `short_ids` each call id has nine letters or digits."""
    messages = [dict(message) for message in prompt.messages]
    for message in messages:
        if calls := message.get("tool_calls"):
            message["tool_calls"] = [_native_call(call, short_ids) for call in calls]
        if short_ids and "tool_call_id" in message:
            message["tool_call_id"] = _short_id(message["tool_call_id"])
    return messages


def plain(prompt: ChatPrompt, *, takes_system: bool) -> list[Message]:
    """Messages for a template that knows no tools.

    A call becomes the assistant's text, results become one message of the user. The functions are described in the
    first system message; in the first message of the user where the template knows no system role.
    """
    messages: list[Message] = []
    results: Message | None = None
    names: dict[str, str] = {}
    for source in prompt.messages:
        message = dict(source)
        if message["role"] == "tool":
            if results is None:
                results = {"role": "user", "content": _result(message, names)}
                messages.append(results)
            else:
                results["content"] += "\n" + _result(message, names)
            continue
        results = None
        calls = message.pop("tool_calls", ())
        names |= {call["id"]: call["function"]["name"] for call in calls if "id" in call}
        message["content"] = "\n".join(filter(None, (message["content"], *map(_call_text, calls))))
        messages.append(message)
    if prompt.tools:
        _describe(messages, prompt.tools, "system" if takes_system else "user")
    return messages


def parameters(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema of a function's arguments; one without parameters takes none."""
    given = tool["function"].get("parameters")
    return given if given is not None else {"type": "object", "properties": {}, "additionalProperties": False}


def _native_call(call: Mapping[str, Any], short_ids: bool) -> Message:
    function = dict(call["function"])
    function["arguments"] = _parsed(function.get("arguments", ""))
    copy = {**call, "function": function}
    if short_ids and "id" in copy:
        copy["id"] = _short_id(copy["id"])
    return copy


def _parsed(arguments: Any) -> Any:
    """An object where the text is one; blank text is one without members. Other text is given as it is."""
    if not isinstance(arguments, str):
        return arguments
    if not arguments.strip():
        return {}
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    return value if isinstance(value, dict) else arguments


def _short_id(text: str) -> str:
    if SHORT_ID.fullmatch(text):
        return text
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:9]


def _call_text(call: Mapping[str, Any]) -> str:
    function = call["function"]
    return _line({"name": function["name"], "arguments": _parsed(function.get("arguments", ""))})


def _result(message: Message, names: Mapping[str, str]) -> str:
    name = message.get("name") or names.get(message.get("tool_call_id", ""), "")
    return f"Result of {name or 'the call'}: {message['content']}"


def _describe(messages: list[Message], tools: Sequence[Mapping[str, Any]], role: str) -> None:
    text = INSTRUCTIONS + "\n".join(_line(entry) for entry in _functions(tools))
    for message in messages:
        if message["role"] == role:
            parts = (message["content"], text) if role == "system" else (text, message["content"])
            message["content"] = "\n\n".join(filter(None, parts))
            return
    messages.insert(0, {"role": role, "content": text})


def _functions(tools: Iterable[Mapping[str, Any]]) -> Iterable[Message]:
    for tool in tools:
        function = tool["function"]
        described = {key: function[key] for key in ("name", "description") if function.get(key)}
        yield {**described, "parameters": parameters(tool)}


def _line(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
