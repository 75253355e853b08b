"""Structured output: answers that follow a JSON Schema, a grammar, a regular expression or a list of choices.

A `Guide` compiles them for one model's vocabulary, or refuses what can't be honoured. The masks are llguidance's. Knows
no JSON text, no HTTP, no engine and no trio.
"""

from .guide import Guide, Guided

__all__ = ["Guide", "Guided"]
