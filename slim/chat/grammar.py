"""The Lark grammar of an answer that may hold tool calls or reasoning. Knows no template and no request.

Free text goes up to the mark of a call. From there on the call's form and the function's schema hold, and after the
last call nothing follows. What is text here is what the reader of the output takes for text: a call that is written
otherwise can't be made.
"""

from collections.abc import Mapping, Sequence
from enum import Enum, auto

from attrs import define, field, frozen

from .calls import CallFormat, bare_beginning, bare_rules, call_rules, spaced_rules
from .lark import ANY, escaped, not_beginning, sequence, without
from .reasoning import Marks


class Rest(Enum):
    """What an answer may be instead of calls."""

    NOTHING = auto()
    TEXT = auto()
    ANSWER = auto()
    """What the grammar `@answer` says."""


@frozen
class Thinking:
    """What is known of reasoning before the output begins."""

    marks: Marks | None
    """None: there will be none."""
    inside: bool = False
    """The prompt has opened it."""


@frozen
class Calling:
    """The calls that are possible."""

    form: CallFormat
    tools: Sequence[tuple[str, str]]
    """A function's name, and the rule or the grammar (`@name`) of its arguments. At least one."""
    several: bool
    """One answer may hold more than one call."""
    rules: Sequence[str] = ()
    """Rules that those of the tools refer to."""


@define(eq=False)
class GrammarWriter:
    """Writes one main grammar."""

    thinking: Thinking
    calling: Calling | None
    rest: Rest
    control: Mapping[str, int]
    _lines: list[str] = field(factory=list, init=False)

    def write(self) -> str:
        """The grammar. It begins with the rule `start`."""
        options = {Rest.NOTHING: [], Rest.TEXT: ["TEXT?"], Rest.ANSWER: ["@answer"]}[self.rest]
        if self.calling:
            self._lines += self.calling.rules
            options += self._calls(self.calling)
        first = "reasoning " if self.thinking.marks else ""
        start = f"start: {first}({' | '.join(options)})"
        if self.thinking.marks:
            self._reasoning(self.thinking.marks)
        return "\n".join((start, *self._lines)) + "\n"

    def _calls(self, calling: Calling) -> list[str]:
        """Add the rules of calls; return the alternatives that they are for `start`."""
        form, free = calling.form, self.rest is Rest.TEXT
        options = []
        if free:
            self._lines.append(f"TEXT: /(?s:.+)/{without(form.mark)}{self._not_at_start(calling)}")
        if form.mark:
            self._lines += call_rules(form, calling.tools, self.control, several=calling.several)
            options.append(self._after_text(calling) if free else "calls")
        if form.bare:
            self._lines += (spaced_rules if free else bare_rules)(form, calling.tools)
            options.append("spaced" if free else "bare")
        return options

    def _after_text(self, calling: Calling) -> str:
        """Calls after free text."""
        mark = calling.form.mark
        if mark in self.control:
            return "TEXT? calls"
        # Lazy: the first mark ends the text.
        self._lines.append("trigger[lazy]: TRIGGER")
        self._lines.append(f"TRIGGER: /{ANY}{escaped(mark)}/{self._not_at_start(calling)}")
        return "trigger group"

    def _not_at_start(self, calling: Calling) -> str:
        """What is read as something else at the beginning of an answer can't begin a text."""
        begins = []
        if self.thinking.marks:
            begins.append(escaped(self.thinking.marks.open))
        if calling.form.bare:
            begins.append(bare_beginning([name for name, _ in calling.tools]))
        return not_beginning(*begins)

    def _reasoning(self, marks: Marks) -> None:
        closing = sequence(marks.close, self.control)
        if marks.close in self.control:
            self._lines.append(f"thought: THOUGHT? {closing}")
            self._lines.append(f"THOUGHT: /(?s:.+)/{without(marks.close)}")
        else:
            self._lines.append(f"thought[lazy]: /{ANY}{escaped(marks.close)}/")
        # Few line breaks, or a small model goes on with them.
        self._lines.append(r"AFTER: /\n{0,2}/")
        if self.thinking.inside:
            self._lines.append("reasoning: thought AFTER")
        else:
            self._lines.append(f"reasoning: ({sequence(marks.open, self.control)} thought AFTER)?")
