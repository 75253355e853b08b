"""Grammars and schemas that are too much, or known to end a process that compiles them without a look."""

from slim.errors import InvalidRequest
from slim.guidance import Guide
from slim.types import Grammar

from .schemas import TEXT, closed
from .vocabulary import ByteTokenizer


def nested(depth, wrap, inside=True):
    """A schema or value that is wrapped so often."""
    for _ in range(depth):
        inside = wrap(inside)
    return inside


def chain(length, link):
    """Definitions that refer each to the next."""
    links = {f"a{number}": link({"$ref": f"#/$defs/a{number + 1}"}) for number in range(length)}
    return {"$ref": "#/$defs/a0", "$defs": {**links, f"a{length}": {"type": "null"}}}


def doubled(length):
    """Definitions that merge the next one twice, which makes 2**length schemas."""
    links = {}
    for number in range(length):
        merged = {"allOf": [{"$ref": f"#/$defs/a{number + 1}"}, {"minProperties": 1}]}
        links[f"a{number}"] = {"properties": {"l": merged, "r": merged}}
    return {"$ref": "#/$defs/a0", "$defs": {**links, f"a{length}": {"properties": {"e": TEXT}}}}


TOO_MUCH = {
    "1,000 properties inside each other": nested(1_000, lambda inner: {"properties": {"a": inner}}),
    "65 properties inside each other": nested(64, lambda inner: {"properties": {"a": inner}}),
    "1,000 anyOf inside each other": nested(1_000, lambda inner: {"anyOf": [inner, {"type": "null"}]}),
    "1,000 items inside each other": nested(1_000, lambda inner: {"items": inner}),
    "a constant of 1,000 lists": {"const": nested(1_000, lambda inner: [inner], 1)},
    "a chain of 5,000 references": chain(5_000, lambda reference: reference),
    "a chain of 700 references through properties": chain(700, lambda reference: {"properties": {"a": reference}}),
    "references that double": doubled(20),
    "5,000 properties": {"properties": {f"name {number}": {"type": "string"} for number in range(5_000)}},
    "401 optional properties": closed([], **{f"p{number}": {"type": "null"} for number in range(401)}),
    "an enum of 5,000 numbers": {"enum": list(range(5_000))},
    "an enum of 1 MB": {"enum": [f"value number {number:06}" for number in range(50_000)]},
    "a name of 1 MB": {"properties": {"n" * 1_000_000: {}}},
    "20,000 parentheses": {"pattern": "(" * 20_000 + ")" * 20_000},
    "60 parentheses": {"pattern": "(" * 60 + ")" * 60},
    "a pattern of 2,001 characters": {"pattern": "a" * 2_001},
    "31 patterns": {"patternProperties": {f"^{number}-": {} for number in range(31)}},
}
"""Schemas to be refused before a compiler sees them."""

WITHIN_LIMITS = {
    "64 properties inside each other": nested(63, lambda inner: {"properties": {"a": inner}}),
    "a chain of 290 references": chain(290, lambda reference: reference),
    "400 optional properties": closed([], **{f"p{number}": {"type": "null"} for number in range(400)}),
    "an enum of 1,000": {"enum": [f"value {number}" for number in range(1_000)]},
    "a long number": {"type": "string", "pattern": "^\\d{1,100000}$"},
    "long strings": closed(a={"type": "array", "items": {"type": "string", "maxLength": 3_000}, "maxItems": 2_000}),
    "a name with everything": closed(**{'q"\n\u2028\u0000😀': {"type": "null"}}),
    "unanchored not blank": {"type": "string", "pattern": "\\S"},
}
"""Schemas that look like too much, and are honoured."""


def rules(name, count, left="", right=""):
    """A Lark grammar whose rules refer each to the next."""
    lines = [f'{name}{number}: {left}{name}{number + 1} "x"{right}' for number in range(count)]
    return "\n".join([f"start: {name}0", *lines, f'{name}{count}: "a"'])


def texts():
    """Kind and source of what is no schema."""
    for regex in ("(" * 1_900 + ")" * 1_900, "(a{1,1000000}){1,1000000}", "a{4294967296}", "x" + "*" * 3_000, "a\x00b"):
        yield "regex", regex
    yield "regex", "\\p{L}{1,100000}"
    yield "regex", "a?" * 1_999
    yield "lark", rules("r", 900)
    yield "lark", rules("R", 900)
    yield "lark", rules("r", 2_500)
    yield "lark", rules("R", 2_500)
    yield "lark", rules("r", 400, "(" * 25, ")" * 25)
    yield "lark", 'start: A\nA: "x" A'
    yield "lark", "start: start start | start"
    yield "lark", "start: A\nA: " + "~" * 5_000 + '"a"'
    yield "lark", "start: " + "(" * 5_000 + '"a"' + ")" * 5_000
    yield "lark", "start: " + "[" * 5_000
    yield "lark", "start: " + "%lark { start: " * 900
    yield "lark", "start: /" + "(" * 3_900
    yield "lark", "start: " + '"a"?' * 8_000
    yield "lark", "start: " + " | ".join(f'"w{number}"' for number in range(3_000))
    yield "lark", 'start: a{1000000000}\na: b{1000000000}\nb: "c"?'
    yield "lark", 'start: A\nA: %regex {"substring_chars": "' + "ab" * 5_000 + '"}'
    yield "lark", "/\\" * 10_000
    yield "lark", 'start: "\x00" /\x00/'
    yield "lark", '%llguidance {"no_forcing": 3}\nstart: "a"'
    yield "lark", '%ignore / */\nstart: "a"*\n%ignore "b"?'
    yield "gbnf", "(" * 20_000
    yield "gbnf", "root ::= " + "(" * 5_000 + '"a"' + ")" * 5_000
    yield "gbnf", "root ::= root"
    yield "gbnf", "root ::= [" + "a" * 30_000
    yield "gbnf", "root ::= \x00"
    yield "gbnf", "::=" * 400
    yield "gbnf", "".join(f'r{number} ::= r{number + 1} "x"\n' for number in range(400)) + "root ::= r0"


def schemas():
    """Schemas beyond those above, most of them wrong."""
    yield {"$ref": "#"}
    yield {"$ref": "#/$ref"}
    yield {"$ref": "#/$defs"}
    yield {"allOf": [{"$ref": "#"}, {"$ref": "#"}]}
    yield {"properties": {"a": {"$ref": "#", "type": "object"}}}
    trees = {name: {"properties": {"c": {"$ref": f"#/$defs/{name}"}}} for name in ("t", "u")}
    yield {"$defs": trees, "allOf": [{"$ref": "#/$defs/t"}, {"$ref": "#/$defs/u"}]}
    yield {"const": 1e308}
    yield {"minLength": 2**31 - 1}
    yield {"minItems": 2**31 - 1, "items": {"type": "null"}}
    yield {"allOf": [{"anyOf": [{"minLength": number}, {"maxLength": number}]} for number in range(30)]}
    yield {"allOf": [{"pattern": word} for word in ("ab", "cd", "ef", "gh", "ij", "kl", "mn", "op", "qr", "st", "uv")]}


def compile_all():
    """Compile everything, and say how often it was refused; run it in a process that may end."""
    guide = Guide(ByteTokenizer())
    cases = [
        *texts(),
        *(("json_schema", schema) for schema in (*schemas(), *TOO_MUCH.values(), *WITHIN_LIMITS.values())),
    ]
    refused = 0
    for kind, source in cases:
        try:
            guide.compile(Grammar(kind, source, "p")).mask()
        except InvalidRequest:
            refused += 1
    print(f"alive: {len(cases)} cases, {refused} refused")
