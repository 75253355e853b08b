"""Structured output: answers that follow a JSON Schema, a grammar, a regular expression or a list of choices.

`check` refuses what can be refused without a model; a `Guide` compiles the rest for one model's vocabulary. The masks
are llguidance's. Knows no JSON text, no HTTP, no engine and no trio.
"""

from .guide import Guide, Guided, check

__all__ = ["Guide", "Guided", "check"]
