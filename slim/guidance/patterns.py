"""Reads regular expressions for what would mean something else than JSON Schema says, or what is too much.

llguidance takes the syntax of Rust's regex crate. It says itself what it can't parse; here is rewritten or refused what
it would take in another sense than ECMA-262. Knows no schema and no grammar.
"""

import re

MAX_LENGTH = 2_000
"""Characters. A pattern of optional parts compiles in quadratic time and memory: 2,000 take 0.05 s, 20,000 take 7 s."""
MAX_NESTING = 50

_GROUP = re.compile(r"\(\?(?:P?<\w+>|[a-zA-Z-]*:|[a-zA-Z-]+\))")
_CLASS = re.compile(r"\[\^?\]?(?:\\.|[^\\\]])*\]", re.DOTALL)
_ESCAPE = re.compile(r"\\(?:x\{[0-9a-fA-F]+\}|u\{[0-9a-fA-F]+\}|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|.)", re.DOTALL)
_PIECE = re.compile(f"{_CLASS.pattern}|{_ESCAPE.pattern}|\\.", re.DOTALL)
_QUANTIFIER = re.compile(r"[*+?]|\{\d+(?:,\d*)?\}")
_SET_OPERATION = re.compile(r"\[|&&|--|~~")
_IN_RANGE = re.compile(r"(?:\\.[0-9a-fA-F{}]*|.)-(?:\\.[0-9a-fA-F{}]*|.)", re.DOTALL)
_LOOKING = ("(?=", "(?!", "(?<=", "(?<!")
_NAMED_CONTROLS = {"v": "\v", "a": "\a"}
_JSON_CONTROLS = "\b\t\n\f\r"


_DOT = r"[^\n\r\u{2028}\u{2029}]"
_SPACES = r"\t\n\x0b\f\r \u{a0}\u{1680}\u{2000}-\u{200a}\u{2028}\u{2029}\u{202f}\u{205f}\u{3000}\u{feff}"
"""What `.` and `\\s` are in ECMA-262 (22.2.2.7 and 22.2.2.9); Rust's let carriage returns pass and count U+0085."""


_NO_SPACE = f"[^{_SPACES}]"
_IN_CLASS = {r"\s": _SPACES, r"\S": _NO_SPACE}
_ALONE = {".": _DOT, r"\s": f"[{_SPACES}]", r"\S": _NO_SPACE}


def as_ecma(pattern: str) -> str:
    """The pattern, in which `problem` has found nothing, with the sense of ECMA-262 in Rust's syntax."""
    return re.sub(_PIECE, lambda piece: _ecma_piece(piece[0]), pattern)


def _ecma_piece(piece: str) -> str:
    if piece[0] == "[":
        return _ESCAPE.sub(lambda escape: _IN_CLASS.get(escape[0], escape[0]), piece)
    return _ALONE.get(piece, piece)


def unwritable(text: str) -> bool:
    """Whether the text has a character that a JSON answer can't hold here: it would need a `\\u` escape.

    Those are switched off, because an escaped spelling of a property's name would pass as another property.
    """
    return any((char < " " and char not in _JSON_CONTROLS) or char == "\x7f" for char in text)


def problem(pattern: str) -> str | None:
    """Why the pattern of a schema can't be honoured as it is meant, as a clause; None: no reason found."""
    if len(pattern) > MAX_LENGTH:
        return f"is longer than {MAX_LENGTH:,} characters"
    position = depth = 0
    repeatable = False
    while position < len(pattern):
        rest = pattern[position]
        if rest == "(":
            if pattern.startswith(_LOOKING, position):
                return "has a look-ahead or look-behind"
            depth += 1
            if depth > MAX_NESTING:
                return f"is nested deeper than {MAX_NESTING}"
            group = _GROUP.match(pattern, position)
            depth -= group is not None and group[0].endswith(")")
            position, repeatable = group.end() if group else position + 1, False
            continue
        quantifier = _QUANTIFIER.match(pattern, position)
        if quantifier and not repeatable:
            return f"has nothing to repeat before {quantifier[0]}"
        piece = quantifier or _CLASS.match(pattern, position) or _ESCAPE.match(pattern, position)
        text = piece[0] if piece else rest
        if reason := _piece_problem(text):
            return reason
        depth -= rest == ")"
        repeatable = text not in ("^", "$", "|")
        position += len(text)
    return None


def _piece_problem(piece: str) -> str | None:
    if piece == "\\":
        return "ends with a single backslash"
    if piece in ("\\b", "\\B"):
        return "has a word boundary"
    if piece[0] == "[" and len(piece) > 1:
        body = piece[1:-1]
        if _SET_OPERATION.search(_ESCAPE.sub("", body)):
            return "has [, &&, -- or ~~ in a class: put a backslash before each character of it"
        if body.startswith("^"):
            return None
        alone = _IN_RANGE.sub("", body)
        return _control_problem(_ESCAPE.sub(lambda escape: _meaning(escape[0]), alone))
    return _control_problem(_meaning(piece))


def _control_problem(text: str) -> str | None:
    return "has a control character that JSON must escape" if unwritable(text) else None


def _meaning(piece: str) -> str:
    """The character that an escape stands for, or what was given."""
    if piece[0] != "\\" or len(piece) < 2:
        return piece
    if piece[1] in "xu" and len(piece) > 3:
        code = int(piece[2:].strip("{}"), 16)
        return chr(code) if code <= 0x10FFFF else piece
    return _NAMED_CONTROLS.get(piece[1], piece)
