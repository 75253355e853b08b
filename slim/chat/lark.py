"""Writing of Lark grammars in llguidance's dialect. Knows no call format.

Control tokens can't be matched as text: where one stands in a text, its id is written instead.
"""

import json
import re
from collections.abc import Mapping

ANY = "(?s:.*)"
BLANKS = r"[ \t\r\n]*"
_SYNTAX = re.compile(r"[\\.+*?()|\[\]{}^$#&~/-]")


def escaped(text: str) -> str:
    """A regular expression that matches the text."""
    return _SYNTAX.sub(r"\\\g<0>", text).replace("\n", r"\n")


def quoted(text: str) -> str:
    """A string literal; nothing for an empty text."""
    return json.dumps(text, ensure_ascii=False) if text else ""


def controls(text: str, control: Mapping[str, int]) -> list[str]:
    """The control tokens that are written in a text, in its order, the longest of those that begin together."""
    known = sorted((name for name in control if name and name in text), key=len, reverse=True)
    return re.findall("|".join(map(re.escape, known)), text) if known else []


def sequence(text: str, control: Mapping[str, int]) -> str:
    """A text as the body of a rule: literals and control tokens."""
    parts = []
    for mark in controls(text, control):
        before, _, text = text.partition(mark)
        parts += [quoted(before), f"<[{control[mark]}]>"]
    return " ".join(filter(None, [*parts, quoted(text)]))


def without(*marks: str) -> str:
    """What is added to a terminal so that none of the texts is in it."""
    return "".join(f" & ~/{ANY}{escaped(mark)}{ANY}/" for mark in marks if mark)


def not_beginning(*expressions: str) -> str:
    """What is added to a terminal so that it doesn't begin with what one of the regular expressions matches."""
    return "".join(f" & ~/{BLANKS}{expression}{ANY}/" for expression in expressions)
