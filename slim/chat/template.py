"""From a conversation to the segments of a prompt, through the model's chat template. Knows no token ids."""

from collections.abc import Collection, Mapping
from functools import cached_property
from typing import Any

from jinja2 import Template, TemplateError, TemplateSyntaxError, meta

from ..engines.base import Tokenizer
from ..errors import InvalidRequest
from ..types import ChatPrompt, Segment
from .calls import CallFormat, format_of
from .environment import OUTPUT_CHARS, ChatEnvironment
from .marking import ControlTexts, Marking
from .messages import native, plain

ERROR_CHARS = 300
RESERVED = frozenset(
    {"messages", "tools", "bos_token", "eos_token", "add_generation_prompt", "raise_exception", "strftime_now"}
)
"""Names that a template gets from us, and that `template_kwargs` may not set."""


def check_syntax(source: str) -> None:
    """Raises ValueError with one line when the source isn't valid Jinja."""
    _compile(source)


def _compile(source: str) -> tuple[Template, Collection[str]]:
    """The template and the names that it takes from outside."""
    environment = ChatEnvironment()
    try:
        return environment.from_string(source), meta.find_undeclared_variables(environment.parse(source))
    except TemplateSyntaxError as error:
        raise ValueError(f"not valid Jinja: line {error.lineno}: {_one_line(error)}") from None
    except (TemplateError, RecursionError) as error:
        raise ValueError(f"not valid Jinja: {_one_line(error)}") from None


class ChatTemplate:
    """A model's chat template, compiled once. Any thread may render with it.

    Raises ValueError with one line when the source isn't valid Jinja.
    """

    def __init__(self, source: str, tokenizer: Tokenizer) -> None:
        self.source = source
        self._template, names = _compile(source)
        self.native_format: CallFormat | None = format_of(source) if "tools" in names else None
        """The form of calls that the template teaches, where it renders tools itself; None where that is not known."""
        self._tokens = {"bos_token": tokenizer.bos, "eos_token": tokenizer.eos}
        self._controls = ControlTexts(tokenizer.control)

    def render(self, prompt: ChatPrompt) -> tuple[Segment, ...]:
        """The prompt's text, one segment unless control tokens are written in the conversation.

        Raises InvalidRequest: `messages` for whatever goes wrong in the template, with its own text;
        `chat_template_kwargs.…` for a name that is not free; `continue_final_message` when nothing can be continued.
        """
        for name in prompt.template_kwargs:
            if name in RESERVED:
                raise InvalidRequest(f"{name} is set by the server.", param=f"chat_template_kwargs.{name}")
        marking = Marking(self._controls)
        try:
            text = self._run(self._variables(prompt, marking))
        except InvalidRequest:
            raise
        except Exception as error:  # templates can raise anything
            raise InvalidRequest(_one_line(error), param="messages") from None
        if prompt.continue_final:
            text = _before(text, marking.end)
        return marking.segments(text)

    def _variables(self, prompt: ChatPrompt, marking: Marking) -> dict[str, Any]:
        if self.native_format:
            messages = native(prompt, short_ids=self.native_format.short_ids)
        else:
            messages = plain(prompt, takes_system=not prompt.tools or self._takes_system)
        messages = marking.guard(messages)
        if prompt.continue_final:
            if not messages or messages[-1].get("role") != "assistant":
                raise InvalidRequest("The last message must be the assistant's.", param="continue_final_message")
            messages[-1]["content"] += marking.end
        return {
            "documents": None,
            **marking.guard(dict(prompt.template_kwargs)),
            **self._tokens,
            "messages": messages,
            "tools": marking.guard(list(prompt.tools)) or None if self.native_format else None,
            "add_generation_prompt": not prompt.continue_final,
        }

    def _run(self, variables: Mapping[str, Any]) -> str:
        pieces = []
        size = 0
        for piece in self._template.generate(**variables):
            pieces.append(piece)
            size += len(piece)
            if size > OUTPUT_CHARS:
                raise InvalidRequest("The chat template makes a prompt without end of these messages.", "messages")
        return "".join(pieces)

    @cached_property
    def _takes_system(self) -> bool:
        """Found by trial: some templates refuse the system role, and some leave its text out."""
        text = "0123456789"
        messages = [{"role": "system", "content": text}, {"role": "user", "content": "."}]
        try:
            return text in self._run({**self._tokens, "messages": messages, "add_generation_prompt": True})
        except Exception:  # templates can raise anything
            return False


def _before(text: str, end: str) -> str:
    place = text.rfind(end)
    if place < 0:
        raise InvalidRequest(
            "The model's chat template leaves the last message out, so it can't be continued.",
            param="continue_final_message",
        )
    return text[:place]


def _one_line(error: BaseException) -> str:
    if isinstance(error, RecursionError):
        return "The conversation is nested too deeply for the chat template."
    if isinstance(error, MemoryError):
        return "The chat template makes too much text of these messages."
    lines = str(error).strip().splitlines()
    return lines[0][:ERROR_CHARS] if lines else f"The chat template failed ({type(error).__name__})."
