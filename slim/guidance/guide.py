"""Compiles grammars for one model's vocabulary, with llguidance, and follows one answer token by token.

The only module that calls llguidance's matcher. Its tokens are the engine's: a mask is one bit for each of their ids.
"""

import re
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from ..engines.base import Tokenizer
from ..errors import InvalidRequest, Unanswerable
from ..types import Grammar, Segment
from . import texts
from .places import Place
from .schema import honoured

SPACING = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
    "json_allowed_escapes": 'nrbtf\\"',
}
"""One way to write each value. Free blanks let a small model write them for ever; with `\\u` escapes a property's name
could be written so that llguidance takes it for another one."""

FREE_TOKENS = '\n%llguidance {"no_forcing": true}\n'
"""The model cuts the text into tokens itself. Else llguidance asks the tokenizer for every text that the grammar leaves
no choice about, which holds Python's lock: 130 µs for a mask in place of 25 µs."""

CONTROL_MARK = b"\xff"
"""How llguidance tells control tokens from text, in which this byte never is."""
ONLY_ANSWER = "start: @answer"

COMMON: dict[str, Any] = {
    "step_lexer_fuel": 70_000,
    "step_max_items": 10_000,
    "max_lexer_states": 100_000,
    "verbose_errors": False,
}
SCHEMA_LIMITS = LLParserLimits(initial_lexer_fuel=200_000, max_items_in_row=2_000, **COMMON)
TEXT_LIMITS = LLParserLimits(initial_lexer_fuel=50_000, max_items_in_row=200, **COMMON)
"""For clients' Lark and GBNF. An ambiguous grammar costs the square of the items in a row: at 200 a mask takes up to
1.6 ms. Sample grammars of llama.cpp need fewer than 50."""

REASONS = {
    "oneOf constraints are not supported": "oneOf can be honoured only where its options differ in type, or in the "
    "constant value of a property that they require. Write anyOf",
    "initial lexer configuration": "it is too large",
    "grammar.symbols.len()": "it is too large",
    "lexer precomputation failed": "a regular expression in it is too complex",
    "NoExtensionBias": "no text can satisfy it",
    "lookarounds not supported": "a regular expression in it has a word boundary, or ^ or $ within",
    "Unable to determine if regex is empty": "the regular expressions that hold together are too complex",
    "schema too large": "it is too large",
    "stack level exceeded": "definitions that refer to themselves can't be merged",
    "Too many items": "it is too ambiguous, or its lexemes are too short",
}
"""What llguidance says, and how a client reads it."""
LONGEST_REASON = 300


class Guided:
    """The Constraint of one answer. It can't be pickled: an answer that moves to another process compiles again."""

    def __init__(self, start: LLMatcher) -> None:
        self._start = start
        self._matcher = start.deep_copy()

    def copy(self) -> "Guided":
        """Another answer to the same grammar, from its beginning."""
        return Guided(self._start)

    def mask(self) -> bytes:
        """The tokens that may come next: one bit per id, lowest first. Raises Unanswerable when a limit is hit."""
        bits = self._matcher.compute_bitmask()
        if self._matcher.is_error():
            raise Unanswerable(f"The grammar can't go on: {_reason(self._matcher)}.")
        return bits

    def accept(self, token_id: int) -> None:
        """The token was chosen. Raises Unanswerable when the mask doesn't have it, and when a limit is hit."""
        if not self._matcher.consume_token(token_id):
            raise Unanswerable(f"The grammar can't take token {token_id}: {_reason(self._matcher)}.")

    @property
    def complete(self) -> bool:
        """Nothing may follow."""
        return self._matcher.is_stopped() and not self._matcher.is_error()


class Guide:
    """The grammars of one loaded model. Any thread may call it."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._lock = threading.Lock()
        self._vocabulary: LLTokenizer | None = None

    def compile(
        self, answer: Grammar | None, main: str | None = None, parts: Mapping[str, Grammar] | None = None
    ) -> Guided:
        """The constraint of an answer. Takes from 2 ms to 2 s: call it off the event loop.

        Without `main` the whole output is `answer`. Else `main` is our own Lark grammar, which refers to it as
        `@answer` and to the parts as `@name`; it alone may use control tokens. Raises InvalidRequest, whose `param` is
        that of the grammar at fault.
        """
        named = dict(parts or {}) | ({"answer": answer} if answer is not None else {})
        sources = {name: _source(grammar) for name, grammar in named.items()}
        theirs = any(grammar.kind in ("lark", "gbnf") for grammar in named.values())
        limits = TEXT_LIMITS if theirs else SCHEMA_LIMITS
        matcher = self._matcher(main or ONLY_ANSWER, sources, limits)
        if not matcher.is_error():
            return Guided(matcher)
        if not named:
            raise ValueError(_reason(matcher))
        param = list(named.values())[-1].param
        for name, source in sources.items():
            alone = self._matcher(ONLY_ANSWER, {"answer": source}, limits)
            if alone.is_error():
                matcher, param = alone, named[name].param
                break
        raise InvalidRequest(f"{param}: {_reason(matcher)}.", param=param)

    def _matcher(self, top: str, sources: Mapping[str, dict[str, Any]], limits: LLParserLimits) -> LLMatcher:
        """A matcher that is at the start, or in error: then also when no token can come first."""
        if top == ONLY_ANSWER and "lark_grammar" in sources["answer"]:
            grammars = [{"lark_grammar": sources["answer"]["lark_grammar"] + FREE_TOKENS}]
        else:
            grammars = [{"lark_grammar": top + FREE_TOKENS}]
            grammars += ({"name": name, **source} for name, source in sources.items())
        whole: Any = {"grammars": grammars}  # a JSON value does; the library's types know only its text
        matcher = LLMatcher(self._ready(), whole, log_level=0, limits=limits)
        trial = matcher.deep_copy()
        trial.compute_bitmask()
        return trial if trial.is_error() else matcher

    def _ready(self) -> LLTokenizer:
        with self._lock:
            if self._vocabulary is None:
                self._vocabulary = LLTokenizer(
                    TokenizerWrapper(_Words(self._tokenizer)), eos_token=sorted(self._tokenizer.end)
                )
            return self._vocabulary


class _Words:
    """The vocabulary in the form that llguidance takes."""

    bos_token_id = None
    special_token_ids: Sequence[int] = ()

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.eos_token_id = min(tokenizer.end)
        self.tokens = list(tokenizer.pieces)
        for text, token in tokenizer.control.items():
            self.tokens[token] = CONTROL_MARK + text.encode()

    def __call__(self, text: bytes) -> list[int]:
        """Asked for once, at the start; not while FREE_TOKENS is set."""
        return list(self._tokenizer.encode((Segment(text.decode(), False),), leading=False))


def _source(grammar: Grammar) -> dict[str, Any]:
    """The grammar in one of the two forms that llguidance reads."""
    place = Place(grammar.param)
    match grammar.kind:
        case "json_schema":
            return {"json_schema": honoured(grammar.source, grammar.param) | {"x-guidance": SPACING}}
        case "json_object":
            return {"json_schema": {"type": "object", "x-guidance": SPACING}}
        case "choice":
            return {"lark_grammar": texts.lark_of_choices(grammar.source, place)}
    text: str = grammar.source
    texts.check_text(text, place)
    match grammar.kind:
        case "regex":
            return {"lark_grammar": texts.lark_of_regex(text, place)}
        case "gbnf":
            text = texts.lark_of_gbnf(text, place)
    texts.check_lark(text, place)
    return {"lark_grammar": text}


def _reason(matcher: LLMatcher) -> str:
    """Why it is in error, in one short line."""
    text = matcher.get_error()
    for key, reason in REASONS.items():
        if key in text:
            return reason
    # What follows shows the place in a grammar that the client has not written so, or our own state.
    own = re.split(r"\n<|\n +\d+ \| ", text)[0]
    return " ".join(own.split())[:LONGEST_REASON].rstrip(".")
