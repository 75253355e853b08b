"""The body of `POST /v1/chat/completions`, and the part of it that is the conversation. Knows no HTTP, no template."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

from attrs import frozen

from ...types import ChatPrompt
from ..convert import (
    Fault,
    Items,
    Range,
    Reader,
    json_size,
    length_faults,
    read_mapping,
    read_object,
    refuse,
    strict_converter,
    structure,
)
from .call import Call, RequestLimits
from .generation import GenerationFields, asked_length, generation, generation_faults
from .messages import MAX_MESSAGES, Message, message_faults, messages_size, template_message
from .tools import MAX_TOOLS, TOOL_CHOICE, Tool, template_tool, tool_faults
from .unbuilt import CHAT_FIELDS, unbuilt_faults

MAX_LOGPROBS = 20  # OpenAI's

KWARGS = Reader(read_mapping, {"type": "object"})


@frozen(kw_only=True, slots=False)
class ConversationFields:
    """The part of a body that becomes the prompt."""

    messages: Annotated[tuple[Message, ...], Items(1, MAX_MESSAGES), "The conversation so far."]
    tools: Annotated[tuple[Tool, ...], Items(0, MAX_TOOLS), "Functions that the model may call."] = ()
    tool_choice: Annotated[str | None, TOOL_CHOICE, "Whether it must. Without it: auto."] = None
    parallel_tool_calls: Annotated[bool, "Several calls in one answer are allowed."] = True
    chat_template_kwargs: Annotated[Mapping[str, Any] | None, KWARGS, "More variables of the chat template."] = None
    reasoning_effort: Annotated[str | None, "A variable of the chat template, where it knows it."] = None
    reasoning_format: Annotated[
        Literal["none", "auto", "deepseek"], "none leaves reasoning in the content; else it is `reasoning_content`."
    ] = "auto"
    continue_final_message: Annotated[bool, "Go on with the last message, which is the assistant's."] = False
    add_generation_prompt: Annotated[bool | None, "false only together with `continue_final_message`."] = None


@frozen(kw_only=True, slots=False)
class ChatBody(ConversationFields, GenerationFields):
    """The fields that are honoured. `max_tokens` above the server's limit is cut to it, and is it when absent."""

    logprobs: Annotated[bool, "Score each token."] = False
    top_logprobs: Annotated[int, Range(0, MAX_LOGPROBS), "So many of the likeliest too. Needs `logprobs`."] = 0


_CONVERTER = strict_converter()


def parse_chat(body: bytes, limits: RequestLimits) -> Call:
    """Read a request body. Of duplicate keys the last one counts; `model` is ignored.

    Raises InvalidRequest that names every field which is wrong by itself or, when there is none, every one that is
    wrong beside the others or for this server; and nothing else, whatever the bytes are.
    """
    fields = read_object(body)
    asked = structure(_CONVERTER, fields, ChatBody, unbuilt_faults(fields, CHAT_FIELDS))
    wanted = asked_length(asked)[1]
    max_tokens = limits.max_tokens if wanted is None else min(wanted, limits.max_tokens)
    refuse(_chat_faults(asked, limits, max_tokens))
    logprobs = asked.top_logprobs if asked.logprobs else None
    return Call(
        generations=(generation(asked, _prompt(asked), "messages", max_tokens, logprobs, echo=False),),
        stream=asked.stream,
        include_usage=asked.stream_options.include_usage,
        scored=asked.logprobs,
    )


def conversation(asked: ConversationFields, limits: RequestLimits) -> ChatPrompt:
    """The conversation alone, for whoever wants its prompt and no answer.

    Raises InvalidRequest that names every field which is wrong beside the others or for this server.
    """
    refuse(_conversation_faults(asked, limits))
    return _prompt(asked)


def _chat_faults(asked: ChatBody, limits: RequestLimits, max_tokens: int) -> Iterator[Fault]:
    yield from _conversation_faults(asked, limits)
    if max_tokens == 0:
        yield Fault(asked_length(asked)[0], "must be a whole number from 1 up, or omit the field for the default")
    if asked.top_logprobs and not asked.logprobs:
        yield Fault("top_logprobs", "is only allowed together with logprobs: true")
    yield from generation_faults(asked, limits, max_tokens)


def _conversation_faults(asked: ConversationFields, limits: RequestLimits) -> Iterator[Fault]:
    yield from message_faults(asked.messages)
    yield from _size_faults(asked, limits.max_prompt_chars)
    yield from tool_faults(asked.tools, asked.tool_choice)
    if asked.continue_final_message and asked.add_generation_prompt:
        yield Fault("add_generation_prompt", "can't be true together with continue_final_message")
    if asked.continue_final_message and asked.messages[-1].role != "assistant":
        yield Fault("continue_final_message", "is only allowed when the last message is the assistant's")
    if asked.continue_final_message:
        yield from _final_message_faults(asked.messages)
    if asked.add_generation_prompt is False and not asked.continue_final_message:
        yield Fault("add_generation_prompt", "false is only allowed together with continue_final_message: true")
    kwargs = asked.chat_template_kwargs or {}
    if asked.reasoning_effort not in (None, kwargs.get("reasoning_effort", asked.reasoning_effort)):
        yield Fault("reasoning_effort", "differs from the one in chat_template_kwargs: send one of them")


def _final_message_faults(messages: Sequence[Message]) -> Iterator[Fault]:
    """What the answer can't go on with: after a call comes its result, and reasoning stands before the content."""
    for name in ("tool_calls", "reasoning_content", "reasoning"):
        if getattr(messages[-1], name):
            yield Fault(f"messages[{len(messages) - 1}].{name}", "can't be gone on with: only content can")


def _size_faults(asked: ConversationFields, limit: int) -> Iterator[Fault]:
    """All that the template may write counts together; the field is named with which it is too much."""
    kwargs = asked.chat_template_kwargs
    sizes = {
        "messages": messages_size(asked.messages),
        "tools": sum(json_size(template_tool(tool)) for tool in asked.tools),
        "chat_template_kwargs": json_size(kwargs) if kwargs else 0,
        "reasoning_effort": len(asked.reasoning_effort or ""),
    }
    total, unit = 0, "characters"
    for name, size in sizes.items():
        total += size
        if total > limit:
            yield from length_faults(name, total, limit, unit)
            return
        unit = "characters together with the messages"


def _prompt(asked: ConversationFields) -> ChatPrompt:
    choice = asked.tool_choice or "auto"
    kwargs = dict(asked.chat_template_kwargs or {})
    if asked.reasoning_effort is not None:
        kwargs["reasoning_effort"] = asked.reasoning_effort
    return ChatPrompt(
        messages=tuple(template_message(message) for message in asked.messages),
        tools=() if choice == "none" else tuple(template_tool(tool) for tool in asked.tools),
        tool_choice=choice,
        parallel_tool_calls=asked.parallel_tool_calls,
        template_kwargs=kwargs,
        continue_final=asked.continue_final_message,
        split_reasoning=asked.reasoning_format != "none",
    )
