"""The forms in which models write tool calls: which template teaches which, how it is read, and how it is enforced.

One table, one entry per family. Texts of an entry may hold control tokens; they are told apart by the vocabulary.
Qwen3-Coder's and GLM's XML forms are not known: templates that teach them get the plain form, taught by us.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attrs import frozen

from . import gemma
from .gemma_rules import argument_rules
from .lark import BLANKS, escaped, quoted, sequence
from .reading import Malformed, Reader, Reading, read_call, read_value


@frozen
class CallFormat:
    """How one family writes calls: `mark`, `opening`, calls with `separator` between them, `closing`."""

    read: Callable[[Reading], Reader]
    """Reads on from behind the mark; from the `{` where a call begins the answer without a mark."""
    mark: str = ""
    """Begins calls anywhere in the answer."""
    bare: bool = False
    """A call may also be the whole answer, without the mark."""
    opening: str = ""
    head: str = ""
    """Before the function's name."""
    middle: str = ""
    """Between name and arguments."""
    tail: str = ""
    """After the arguments."""
    separator: str | None = None
    """Between two calls of one answer. None: there is never a second."""
    closing: str = ""
    key: str = "arguments"
    """What a bare call names its arguments."""
    short_ids: bool = False
    """Templates take only call ids of nine letters or digits."""
    arguments: Callable[[Mapping[str, Any], str, Mapping[str, int]], list[str]] | None = None
    """Rules for arguments that are no JSON: from schema, name of the rule and control tokens."""
    extra: str = ""
    """A fixed text within such arguments."""

    @property
    def texts(self) -> str:
        """All fixed texts, to look for control tokens in."""
        written = (self.mark, self.opening, self.head, self.middle, self.tail, self.separator or "", self.closing)
        return "\n".join((*written, self.extra))


def _read_hermes(reading: Reading) -> Reader:
    yield from reading.next()
    yield from reading.space()
    yield from read_call(reading)
    yield from reading.space()
    return (yield from reading.eat("</tool_call>"))


def _read_object(reading: Reading) -> Reader:
    yield from reading.next()
    yield from reading.space()
    yield from read_call(reading, strict=True)
    return ""


def _read_array(reading: Reading) -> Reader:
    """Mistral's `[{…}, {…}]`, and the newer `name[ARGS]{…}`; some versions have `[CALL_ID]…` before the arguments."""
    yield from reading.next()
    yield from reading.space()
    if reading.char != "[":
        return (yield from _read_named(reading))
    while True:
        yield from reading.next()
        yield from reading.space()
        yield from read_call(reading)
        yield from reading.space()
        if reading.char != ",":
            return (yield from reading.eat("]"))


def _read_named(reading: Reading) -> Reader:
    name = yield from reading.name()
    yield from reading.need("[")
    if reading.char == "C":
        yield from reading.need("CALL_ID]")
        while reading.char != "[":
            yield from reading.next()
        yield from reading.next()
    yield from reading.need("ARGS]")
    yield from reading.space()
    if reading.char != "{":
        raise Malformed
    reading.begin(name)
    yield from read_value(reading, reading.argue)
    reading.end()
    return ""


PLAIN = CallFormat(read=_read_object, bare=True, head='{"name": "', middle='", "arguments": ', tail="}")
"""Taught by our own instructions where a template teaches none."""

HERMES = CallFormat(
    read=_read_hermes,
    mark="<tool_call>",
    head='\n{"name": "',
    middle='", "arguments": ',
    tail="}\n</tool_call>",
    separator="\n<tool_call>",
)
LLAMA = CallFormat(
    read=_read_object,
    mark="<|python_tag|>",
    bare=True,
    head='{"name": "',
    middle='", "parameters": ',
    tail="}",
    key="parameters",
)
MISTRAL = CallFormat(
    read=_read_array,
    mark="[TOOL_CALLS]",
    opening="[",
    head='{"name": "',
    middle='", "arguments": ',
    tail="}",
    separator=", ",
    closing="]",
    short_ids=True,
)
MISTRAL_NAMED = CallFormat(
    read=_read_array, mark="[TOOL_CALLS]", middle="[ARGS]", separator="[TOOL_CALLS]", short_ids=True
)
GEMMA = CallFormat(
    read=gemma.read,
    mark=gemma.MARK,
    head="call:",
    tail=gemma.END,
    separator=gemma.MARK,
    arguments=argument_rules,
    extra=gemma.ESCAPE,
)

_BY_MARKS: tuple[tuple[tuple[str, ...], tuple[str, ...], CallFormat], ...] = (
    ((gemma.MARK,), (), GEMMA),
    (("[TOOL_CALLS]", "[ARGS]"), (), MISTRAL_NAMED),
    (("[TOOL_CALLS]",), (), MISTRAL),
    (("<tool_call>",), ("<function=", "<arg_key>"), HERMES),
    (("<|python_tag|>",), (), LLAMA),
    (("<|start_header_id|>", '"parameters"'), (), LLAMA),
)
"""Texts that a template holds, texts that it doesn't hold, and the form it then teaches. The first that fits counts."""


def format_of(source: str) -> CallFormat | None:
    """The form of calls that a template teaches; None when it is not known."""
    for present, absent, form in _BY_MARKS:
        if all(text in source for text in present) and not any(text in source for text in absent):
            return form
    return None


def call_rules(
    form: CallFormat, tools: Sequence[tuple[str, str]], control: Mapping[str, int], *, several: bool
) -> list[str]:
    """Rules `group` (what follows the mark) and `calls` (with it). `tools`: function names and rules of arguments."""
    named = [
        " ".join(filter(None, (sequence(form.head + name + form.middle, control), rule, sequence(form.tail, control))))
        for name, rule in tools
    ]
    more = f" ({sequence(form.separator, control)} call)*" if several and form.separator is not None else ""
    opening, closing = sequence(form.opening, control), sequence(form.closing, control)
    group = " ".join(filter(None, (opening, f"call{more}", closing)))
    return [
        "call: " + " | ".join(named),
        f"group: {group}",
        f"calls: {sequence(form.mark, control)} group",
    ]


def bare_rules(form: CallFormat, tools: Sequence[tuple[str, str]]) -> list[str]:
    """Rule `bare`: a call as the whole answer, in JSON's own lexemes so that it can stand beside a JSON answer."""
    calls = [
        f'"{{" {quoted(quoted("name"))} ": " {quoted(quoted(name))} ", " {quoted(quoted(form.key))} ": " {rule} "}}"'
        for name, rule in tools
    ]
    return ["bare: " + " | ".join(calls)]


def spaced_rules(form: CallFormat, tools: Sequence[tuple[str, str]]) -> list[str]:
    """Rule `spaced`: a call as the whole answer where free text is possible too, with the white space a model likes."""
    few = BLANKS.replace("*", "{0,4}")
    rules = ["spaced: " + " | ".join(f'HEAD_{i} {rule} "}}"' for i, (_, rule) in enumerate(tools))]
    for i, (name, _) in enumerate(tools):
        words = (r"\{", '"name"', ":", f'"{escaped(name)}"', ",", f'"{form.key}"', ":")
        rules.append(f"HEAD_{i}: /{few}{few.join(words)} ?/")
    return rules


def bare_beginning(names: Sequence[str]) -> str:
    """A regular expression for how a bare call of one of the functions begins."""
    return BLANKS.join((r"\{", '"name"', ":", f'"({"|".join(map(escaped, names))})"'))
