"""FunctionGemma's calls: `<start_function_call>call:name{key:<escape>text<escape>,n:5}<end_function_call>`.

The arguments are no JSON; they are read into JSON as they come. Bare text without the escape marks becomes a string, a
key without a value null.
"""

import json
from collections.abc import Callable
from typing import Any

from .reading import Malformed, Reader, Reading, Step
from .scanning import SPACE

MARK = "<start_function_call>"
END = "<end_function_call>"
ESCAPE = "<escape>"

Put = Callable[[str], None]


def read(reading: Reading) -> Reader:
    """One call, from behind the mark."""
    yield from reading.next()
    yield from reading.need("call:")
    name = yield from reading.name()
    if reading.char != "{":
        raise Malformed
    reading.begin(name)
    yield from _object(reading, reading.argue)
    reading.end()
    return (yield from reading.eat(END))


def _value(reading: Reading, put: Put) -> Step:
    yield from reading.space()
    if reading.char == "{":
        yield from _object(reading, put)
    elif reading.char == "[":
        yield from _array(reading, put)
    elif reading.char == "<":
        yield from _string(reading, put)
    else:
        yield from _bare(reading, put)
    yield from reading.space()


def _object(reading: Reading, put: Put) -> Step:
    put("{")
    yield from reading.next()
    yield from reading.space()
    while reading.char != "}":
        key: list[str] = []
        while reading.char not in (":", "}"):
            key.append(reading.char)
            yield from reading.next()
        put(f"{_json(''.join(key).strip(SPACE))}: ")
        if reading.char == ":":
            yield from reading.next()
            yield from _value(reading, put)
        else:
            put("null")
        if reading.char != ",":
            break
        put(", ")
        yield from reading.next()
        yield from reading.space()
    put("}")
    if reading.char == "}":
        yield from reading.next()


def _array(reading: Reading, put: Put) -> Step:
    put("[")
    yield from reading.next()
    yield from reading.space()
    while reading.char != "]":
        yield from _value(reading, put)
        if reading.char != ",":
            break
        put(", ")
        yield from reading.next()
    put("]")
    if reading.char == "]":
        yield from reading.next()


def _string(reading: Reading, put: Put) -> Step:
    """Text between two escape marks. Without the first one it is read as bare text."""
    eaten = yield from _mark(reading)
    if eaten != ESCAPE:
        yield from _bare(reading, put, eaten)
        return
    put('"')
    while True:
        eaten = yield from _mark(reading)
        if eaten == ESCAPE:
            break
        if eaten:
            put(_json(eaten)[1:-1])
        else:
            put(_json(reading.char)[1:-1])
            yield from reading.next()
    put('"')


def _mark(reading: Reading) -> Reader:
    """As much of the escape mark as comes."""
    for place, char in enumerate(ESCAPE):
        if reading.char != char:
            return ESCAPE[:place]
        yield from reading.next()
    return ESCAPE


def _bare(reading: Reading, put: Put, eaten: str = "") -> Step:
    """A number, true, false or null; anything else is text that lacks its marks."""
    chars = [eaten]
    while reading.char not in (",", "}", "]"):
        chars.append(reading.char)
        yield from reading.next()
    text = "".join(chars).strip(SPACE)
    put(text if _is_scalar(text) else _json(text))


def _is_scalar(text: str) -> bool:
    try:
        json.loads(text, parse_constant=_refuse)
    except ValueError:
        return False
    return not text.startswith('"')


def _refuse(text: str) -> Any:
    raise ValueError(text)


def _json(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
