"""A request as the server goes on with it, and what the server's settings allow one. Knows no JSON."""

from attrs import frozen

from ...types import Generation


@frozen
class RequestLimits:
    """What the server's settings allow one request."""

    max_tokens: int
    """New tokens of each answer."""
    max_prompt_chars: int
    """Characters of one prompt; a token id counts as one."""
    places: int
    """Answers that the whole server can hold at one time, so the most that one request may ask for."""


@frozen
class Call:
    """A valid request and how its answer is to be sent."""

    generations: tuple[Generation, ...]
    """One for each prompt, each with all its `choices`."""
    stream: bool = False
    include_usage: bool = False
    """The stream ends with a usage chunk."""
    scored: bool = False
    """The answer carries log-probabilities."""
