"""Grammars that are text: Lark, GBNF, regular expressions and choices, all made into the Lark that llguidance reads.

Refuses what would end the process, or would do something else than shape the answer. Whether the rest is right is
said by llguidance, and whether they are strings at all, and not empty, by who reads the request. Knows no tokenizer.
"""

import re
from collections.abc import Sequence

from llguidance import regex_to_lark
from llguidance.gbnf_to_lark import gbnf_to_lark

from .places import Place

MAX_CHARACTERS = 32_768
MAX_LEVELS = 1_000
"""Rules and the parentheses in them, together: llguidance compiles rules inside each other. A level needs 2 to 3 kB of
stack, so that a thread's 8 MB end at 3,300."""
MAX_REGEX = 4_000
"""Characters of one regular expression."""
MAX_GBNF_RULES = 500
"""The converter goes over all rules as often as there are rules."""

_WORDS = re.compile(
    r"""(?:\#|//)[^\n]*
    | "(?:\\.|[^"\\\n])*"
    | (?P<regex>/(?:\\.|[^/\\])+/)
    | (?P<open_ended>["/])
    | (?P<nested>%(?:json|lark)\b)
    | (?P<control><[^<>\s]+>)
    | (?P<reference>@)
    | (?P<joint>&|~(?!\s*\d))
    | (?P<option>\b(?:temperature|stop|stop_capture)\s*=)
    | (?P<open>[(\[{])
    | (?P<close>[)\]}])
    | (?P<rule>:)
    | .""",
    re.VERBOSE | re.DOTALL,
)
_GBNF_ESCAPE = re.compile(r"\\(?:u(?P<short>[0-9a-fA-F]{4})|U(?P<long>[0-9a-fA-F]{8})|.)", re.DOTALL)
_REASONS = {
    "open_ended": "a string or regular expression does not end",
    "nested": "%json and %lark can't be honoured. Ask for the schema itself in place of the grammar",
    "control": "control tokens can't be written in a request's grammar",
    "reference": "@ refers to other grammars, and a request has only one",
    "joint": "& and ~ can't be honoured: such a grammar may compile for minutes",
    "option": "temperature, stop and stop_capture can't be honoured in a grammar",
}


def check_text(text: str, place: Place) -> None:
    """Raise InvalidRequest where it is too much, or where llguidance, which takes UTF-8, can't have it."""
    if len(text) > MAX_CHARACTERS:
        raise place.error(f"must have at most {MAX_CHARACTERS:,} characters in all")
    if any("\ud800" <= char <= "\udfff" for char in text):
        raise place.error("must not have a lone surrogate")


def check_lark(text: str, place: Place) -> None:
    """Raise InvalidRequest where llguidance must not get to see this Lark grammar."""
    levels = depth = deepest = 0
    for word in _WORDS.finditer(text):
        kind = word.lastgroup
        if kind in _REASONS:
            raise place.error(_REASONS[kind])
        if kind == "regex" and len(word[0]) > MAX_REGEX:
            raise place.error(f"a regular expression in it is longer than {MAX_REGEX:,} characters")
        depth += (kind == "open") - (kind == "close")
        deepest = max(deepest, depth)
        if kind == "rule":
            levels, deepest = levels + 1 + deepest, max(depth, 0)
        if levels + deepest > MAX_LEVELS:
            raise place.error(f"it has more than {MAX_LEVELS:,} rules and parentheses inside each other, together")


def lark_of_gbnf(text: str, place: Place) -> str:
    """The grammar in Lark. Raises InvalidRequest when the text isn't GBNF."""
    if text.count("::=") > MAX_GBNF_RULES:
        raise place.error(f"must have at most {MAX_GBNF_RULES} rules")
    try:
        return gbnf_to_lark(_GBNF_ESCAPE.sub(_plain, text))
    except RecursionError:
        raise place.error("it is nested too deeply") from None
    except Exception as error:  # whatever its parser trips over is the text's fault
        raise place.error(f"not a GBNF grammar that can be read: {error}") from None


def lark_of_regex(text: str, place: Place) -> str:
    r"""A grammar of exactly the texts that the whole expression matches. `\d` and `\w` are ASCII, as in a schema."""
    if len(text) > MAX_REGEX:
        raise place.error(f"must have at most {MAX_REGEX:,} characters")
    if _ends_in_escape(text):
        raise place.error("ends with a single backslash")
    return f"start: /{regex_to_lark(text, 'dw')}/\n"


def lark_of_choices(choices: Sequence[str], place: Place) -> str:
    """A grammar of exactly these texts."""
    check_text("".join(choices), place)
    return "start: CHOICE\nCHOICE: " + " | ".join(map(_quoted, choices)) + "\n"


def _plain(escape: re.Match[str]) -> str:
    """An escape that the converter keeps, in place of the ones whose leading zeros it drops."""
    code = int(escape["short"] or escape["long"] or "110000", 16)
    if code > 0x10FFFF or 0xD800 <= code <= 0xDFFF:
        return escape[0]
    return f"\\x{code:02x}" if code < 0x80 else chr(code)


def _ends_in_escape(text: str) -> bool:
    return (len(text) - len(text.rstrip("\\"))) % 2 == 1


def _quoted(text: str) -> str:
    """A string of Lark's, which is written like one of JSON's."""
    return '"' + re.sub(r'[\x00-\x1f"\\\x7f]', lambda match: f"\\u{ord(match[0]):04x}", text) + '"'
