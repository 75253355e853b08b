"""What a reader gets of a generation: the words between the scheduler, the chat parser and the wire. Pure records."""

from attrs import frozen


@frozen
class Content:
    """More text of the answer."""

    text: str


@frozen
class Reasoning:
    """More text of what the model thought before the answer."""

    text: str


@frozen
class CallStart:
    """A tool call begins. Its arguments follow."""

    index: int
    """Place among the calls of this answer, from 0."""
    id: str
    name: str


@frozen
class CallArguments:
    """More of a call's arguments: joined they are one JSON text."""

    index: int
    text: str


Delta = Content | Reasoning | CallStart | CallArguments


@frozen
class PromptProgress:
    """How far the prompt of one choice is, in tokens; `seconds` since its request came."""

    total: int
    cached: int
    done: int
    seconds: float
    queue_position: int | None = None
    """Jobs before it in the queue; None once it has a slot."""


@frozen
class Timings:
    """Where the time of a request went, in seconds, and for how many tokens."""

    queue: float
    prompt: float
    decode: float
    prompt_tokens: int
    """Computed, so without those that a cache saved."""
    cached_tokens: int
    new_tokens: int
