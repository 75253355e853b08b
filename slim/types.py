"""The vocabulary that every layer shares: frozen records that pickle. Knows no JSON, no trio and no engine.

Times are seconds on one monotonic clock (the scheduler's), durations are seconds, lengths are tokens.
"""

from enum import StrEnum

from attrs import field, frozen


class FinishReason(StrEnum):
    """Why a generation ended by itself (OpenAI's words)."""

    STOP = "stop"
    """An end-of-generation token or a stop string was reached."""
    LENGTH = "length"
    """The token limit or the context was reached."""


class Outcome(StrEnum):
    """How a job ended. Every job ends with exactly one; these are the label values of `slm_requests_total`."""

    OK = "ok"
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    ENGINE_ERROR = "engine_error"
    SHUTDOWN = "shutdown"


@frozen
class Sampling:
    """How the next token is chosen from the model's distribution."""

    temperature: float = 1.0
    """0 is greedy."""
    top_p: float = 1.0
    seed: int | None = None
    """None: a fresh seed for each job."""


@frozen
class Usage:
    """What a request cost, in tokens as the model counts them (never chunks)."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    """Prompt tokens that a prefix cache saved."""


@frozen
class Segment:
    """A piece of prompt text and whether control tokens written in it are parsed as such."""

    text: str
    parse_special: bool


@frozen
class Generation:
    """One validated request for text, before its prompt is tokenized."""

    prompt: tuple[Segment, ...]
    max_tokens: int
    """Upper bound of new tokens, at least 1; the context may cut it."""
    sampling: Sampling = field(factory=Sampling)
    stop: tuple[str, ...] = ()


@frozen
class EngineJob:
    """What an engine needs to know of a job."""

    id: str
    tokens: tuple[int, ...]
    """The prompt, at least one token."""
    max_tokens: int
    """New tokens to make at most; prompt and these fit in `EngineInfo.context`."""
    sampling: Sampling = field(factory=Sampling)
    stop: tuple[str, ...] = ()
    """Read by the replica's text assembly; engines know nothing of stop strings."""
    tenant: str = ""
    """The key's name, empty when there are no keys."""


@frozen
class EngineInfo:
    """What a loaded engine says of itself."""

    slots: int
    """Jobs that can run together."""
    context: int
    """Tokens that one job may hold, prompt and output together."""
    kv_tokens: int
    """Tokens that all slots together can hold."""
    description: str = ""
    """One line for the log: model, quantisation, threads."""


# What one engine step reports, keyed by job.


@frozen
class Progress:
    """Prefill went on: `done` of `total` prompt tokens are in the KV cache; `cached` of them cost nothing."""

    job_id: str
    done: int
    total: int
    cached: int = 0


@frozen
class Token:
    """One new token. `data` is its exact bytes: maybe none, maybe a part of a UTF-8 sequence."""

    job_id: str
    token_id: int
    data: bytes


@frozen
class Finished:
    """The job ended by itself and its slot is free. An end-of-generation token makes no Token event."""

    job_id: str
    reason: FinishReason


@frozen
class Failed:
    """The job alone failed and its slot is free."""

    job_id: str
    error: str


EngineEvent = Progress | Token | Finished | Failed


@frozen
class JobRecord:
    """What is left of a job when it has ended: metrics and log lines are made from it."""

    request_id: str
    tenant: str
    outcome: Outcome
    reason: FinishReason | None
    usage: Usage
    duration: float
    """Seconds from its submission to its end."""
    queue_wait: float | None
    """Seconds until it had a slot; None when it never had one."""
    prefill: float | None
    """Seconds from its slot to its first token."""
    first_token: float | None
    """Seconds from its submission to its first token."""
    decode_rate: float | None
    """Tokens per second after the first; None with fewer than two tokens."""


@frozen
class Statistics:
    """The state of the whole system at one moment."""

    queued: int
    """Jobs without a slot: reserved, waiting, or posted to a replica ahead of time."""
    running: int
    replicas_ready: int
    kv_used: int
    kv_tokens: int
