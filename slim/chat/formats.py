"""How a request's output is made and read: chosen once, when its prompt has been rendered."""

from collections.abc import Mapping

from attrs import frozen

from ..engines.base import Tokenizer
from ..types import ChatPrompt, Grammar, Segment
from .calls import PLAIN, CallFormat
from .grammar import Calling, GrammarWriter, Rest, Thinking
from .lark import controls
from .messages import parameters
from .output import OutputFormat
from .reasoning import marks_of
from .template import ChatTemplate


@frozen
class ChatPlan:
    """How one request's output is made and read."""

    output: OutputFormat
    main: str | None
    """A Lark grammar that refers to the parts, and to `@answer` where there is one. None: the answer alone counts."""
    parts: Mapping[str, Grammar]
    """Schemas of the functions' arguments. Each may give way to a `json_object` where it can't be compiled."""
    shown: frozenset[int]
    """Control tokens that are marks of calls or reasoning: the output must have their text."""


def plan(
    template: ChatTemplate,
    prompt: ChatPrompt,
    rendered: tuple[Segment, ...],
    answer: Grammar | None,
    tokenizer: Tokenizer,
) -> ChatPlan:
    """The plan for a prompt that `template` rendered. `answer` is the form of an answer without calls."""
    thinking = _thinking(template, prompt, rendered)
    form = template.native_format or PLAIN
    tools = _callable(prompt)
    parts = {} if form.arguments else {_rule(number): _part(number, schema) for number, _, schema in tools}
    main = None
    if tools or (answer and thinking.marks):
        calling = _calling(form, tools, prompt.parallel_tool_calls, tokenizer.control) if tools else None
        main = GrammarWriter(thinking, calling, _rest(prompt, answer), tokenizer.control).write()
    output = OutputFormat(
        reasoning=thinking.marks,
        inside=thinking.inside,
        split=prompt.split_reasoning,
        calls=form if tools else None,
        names=frozenset(name for _, name, _ in tools),
    )
    return ChatPlan(output, main, parts, _shown(output, tokenizer.control))


Tool = tuple[int, str, Mapping[str, object]]
"""Place in the request, name, and schema of the arguments."""


def _callable(prompt: ChatPrompt) -> list[Tool]:
    """The functions that `tool_choice` allows."""
    return [
        (number, tool["function"]["name"], parameters(tool))
        for number, tool in enumerate(prompt.tools)
        if prompt.tool_choice in ("auto", "required", f"={tool['function']['name']}")
    ]


def _rule(number: int) -> str:
    return f"tool_{number}"


def _part(number: int, schema: Mapping[str, object]) -> Grammar:
    return Grammar("json_schema", schema, f"tools[{number}].function.parameters")


def _calling(form: CallFormat, tools: list[Tool], several: bool, control: Mapping[str, int]) -> Calling:
    if form.arguments is None:
        return Calling(form, [(name, f"@{_rule(number)}") for number, name, _ in tools], several)
    rules = [rule for number, _, schema in tools for rule in form.arguments(schema, _rule(number), control)]
    return Calling(form, [(name, _rule(number)) for number, name, _ in tools], several, rules)


def _rest(prompt: ChatPrompt, answer: Grammar | None) -> Rest:
    if prompt.tools and prompt.tool_choice not in ("auto", "none"):
        return Rest.NOTHING
    return Rest.ANSWER if answer else Rest.TEXT


def _thinking(template: ChatTemplate, prompt: ChatPrompt, rendered: tuple[Segment, ...]) -> Thinking:
    marks = marks_of(template.source)
    if marks is None:
        return Thinking(None)
    if prompt.continue_final and (begun := prompt.messages[-1].get("content")):
        inside = begun.rfind(marks.open) > begun.rfind(marks.close)
        return Thinking(marks if inside else None, inside)
    prompt_end = "".join(segment.text for segment in rendered).rstrip()
    if prompt_end.endswith(marks.close):
        return Thinking(None)
    return Thinking(marks, prompt_end.endswith(marks.open))


def _shown(output: OutputFormat, control: Mapping[str, int]) -> frozenset[int]:
    texts = (output.reasoning.open, output.reasoning.close) if output.reasoning else ()
    calls = (output.calls.texts,) if output.calls else ()
    return frozenset(control[text] for text in controls("\n".join((*texts, *calls)), control))
