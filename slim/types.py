"""The vocabulary that every layer shares: frozen records that pickle, but for a constraint.

Knows no JSON, no trio and no engine.

Times are seconds on one monotonic clock (the scheduler's), durations are seconds, lengths are tokens.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Literal, Protocol

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
    UNANSWERABLE = "unanswerable"
    SHUTDOWN = "shutdown"


@frozen
class Dry:
    """llama.cpp's DRY sampler: a repeated sequence of tokens becomes less likely the longer it is."""

    multiplier: float
    base: float = 1.75
    allowed_length: int = 2
    """Tokens that may repeat unpunished."""
    last_n: int = -1
    """Tokens it looks back; -1: all."""
    breakers: tuple[str, ...] = ("\n", ":", '"', "*")
    """Texts that end a sequence."""


@frozen
class Xtc:
    """llama.cpp's XTC sampler: by chance, drop every likely token but the least likely of them."""

    probability: float
    threshold: float = 0.1


@frozen
class Mirostat:
    """Mirostat (Basu et al. 2021): keep the surprise of the text near `tau`. It replaces the other cuts."""

    version: Literal[1, 2]
    tau: float = 5.0
    eta: float = 0.1


@frozen
class Sampling:
    """How the next token is chosen from the model's distribution.

    In this order: penalties, `logit_bias`, temperature, `top_k`, `typical_p`, `top_p`, `min_p`, one draw. Defaults
    change nothing.
    """

    temperature: float = 1.0
    """0 is greedy."""
    top_p: float = 1.0
    top_k: int = 0
    """0: all tokens."""
    min_p: float = 0.0
    typical_p: float = 1.0
    presence_penalty: float = 0.0
    """Subtracted once from the logit of each token of the output."""
    frequency_penalty: float = 0.0
    """Subtracted as often as the token is in the output."""
    repeat_penalty: float = 1.0
    """Divides positive logits of tokens of prompt and output, and multiplies negative ones."""
    repeat_last_n: int = -1
    """Tokens that `repeat_penalty` looks back; -1: all."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    """Token id and what is added to its logit."""
    seed: int | None = None
    """None: a fresh seed for each job."""
    dry: Dry | None = None
    xtc: Xtc | None = None
    mirostat: Mirostat | None = None


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
class ChatPrompt:
    """A conversation, as the model's chat template takes it: JSON values throughout."""

    messages: tuple[Mapping[str, Any], ...]
    """With `role`, `content` (a string, "" for null), and `tool_calls`, `tool_call_id`, `name` where they were sent."""
    tools: tuple[Mapping[str, Any], ...] = ()
    """OpenAI's `{"type": "function", "function": {...}}`; empty too when `tool_choice` is none."""
    tool_choice: str = "auto"
    """none, auto, required, or `=` and the name of the one function that must be called."""
    parallel_tool_calls: bool = True
    template_kwargs: Mapping[str, Any] = field(factory=dict)
    continue_final: bool = False
    """The answer goes on with the last message, which is the assistant's, instead of beginning a new one."""
    split_reasoning: bool = True
    """Reasoning is told apart from the answer; else it stays in the answer's text."""


@frozen
class Grammar:
    """The form that the whole answer must have."""

    kind: Literal["json_schema", "json_object", "lark", "gbnf", "regex", "choice"]
    source: Any
    """json_schema: the schema as a JSON value; json_object: None; choice: a tuple of strings; else text."""
    param: str
    """The request's field that it came from, for errors."""


Prompt = tuple[Segment, ...] | tuple[int, ...] | ChatPrompt
"""Text, ids that are used as they are, or a conversation. Never an empty tuple."""


@frozen
class Generation:
    """One validated prompt and what is wanted of it, before it is tokenized."""

    prompt: Prompt
    max_tokens: int
    """Upper bound of new tokens; the context may cut it. 0 only computes the prompt."""
    sampling: Sampling = field(factory=Sampling)
    stop: tuple[str, ...] = ()
    choices: int = 1
    """Answers to make. A given seed is raised by one for each further one."""
    min_tokens: int = 0
    """No end-of-generation token comes before so many."""
    ignore_eos: bool = False
    stop_token_ids: frozenset[int] = frozenset()
    """End a generation like the model's own end tokens."""
    logprobs: int | None = None
    """Score each new token, and so many of the likeliest in its place. None: no scores."""
    echo: bool = False
    """The prompt's text comes first; with `logprobs` its tokens are scored too."""
    grammar: Grammar | None = None
    progress: bool = False
    """Updates tell of the place in the queue and of the prompt's progress."""
    cache_prompt: bool = True
    """May begin with what earlier requests have computed, and leave its own to later ones."""
    param: str = "prompt"
    """The request's field that the prompt came from, for errors."""


class Constraint(Protocol):
    """What one job's output may still be. Belongs to the engine's thread from `Engine.add` on."""

    def mask(self) -> bytes:
        """The tokens that may come next: one bit per id, lowest first. Raises Unanswerable when a limit is hit."""
        ...

    def accept(self, token_id: int) -> None:
        """The token was chosen. Raises Unanswerable when the mask doesn't have it."""
        ...

    @property
    def complete(self) -> bool:
        """Nothing may follow."""
        ...


@frozen
class EngineJob:
    """What an engine needs to know of a job."""

    id: str
    tokens: tuple[int, ...]
    """The prompt, at least one token."""
    max_tokens: int
    """New tokens to make at most; prompt and these fit in `EngineInfo.context`. 0 only computes the prompt."""
    sampling: Sampling = field(factory=Sampling)
    stop: tuple[str, ...] = ()
    """Read by the replica's text assembly; engines know nothing of stop strings."""
    tenant: str = ""
    """The key's name, empty when there are no keys."""
    min_tokens: int = 0
    ignore_eos: bool = False
    stop_token_ids: frozenset[int] = frozenset()
    logprobs: int | None = None
    """Score each new token, and so many of the likeliest in its place. None: no scores."""
    score_prompt: bool = False
    """Score the prompt's tokens too, as `logprobs` says."""
    constraint: Constraint | None = None
    shown: frozenset[int] = frozenset()
    """Control tokens whose text belongs to the output: the marks of tool calls and reasoning."""
    prompt_id: str = ""
    """Choices of one prompt have the same one, and the prompt's scores are told once. Empty: there is one choice."""
    cache_prompt: bool = True
    """May begin with what other jobs have computed, and leave its own to them."""


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
    chat_template: str | None = None
    """The model's own, in Jinja."""
    samplers: frozenset[str] = frozenset()
    """Which of `dry`, `xtc` and `mirostat` it has."""
    embedding_size: int | None = None
    """Numbers of one embedding; None: the engine generates text, and else it only embeds."""


# What one engine step reports, keyed by job.


@frozen
class Progress:
    """Prefill went on: `done` of `total` prompt tokens are in the KV cache; `cached` of them cost nothing."""

    job_id: str
    done: int
    total: int
    cached: int = 0


@frozen
class TokenScore:
    """How likely one token was, and what else might have come."""

    data: bytes
    """The token's bytes; for a control token its name."""
    logprob: float | None
    """Natural logarithm, by the model's own distribution at temperature 1; None for the first token of a prompt."""
    top: tuple[tuple[bytes, float], ...] = ()
    """The likeliest tokens in its place, likeliest first."""
    is_text: bool = True
    """Its bytes are part of the text. Not those of a new control token that isn't shown, nor of the end token."""


@frozen
class Token:
    """One new token. `data` is its exact bytes: maybe none, maybe a part of a UTF-8 sequence."""

    job_id: str
    token_id: int
    data: bytes
    score: TokenScore | None = None
    """Where the job asked for it."""


@frozen
class PromptScores:
    """Scores of the next tokens of the prompt, in order. All have come before the job's first Token or its end."""

    job_id: str
    scores: tuple[TokenScore, ...]


@frozen
class Embedding:
    """The vector of the job's whole prompt, of length 1. Its Finished follows."""

    job_id: str
    vector: tuple[float, ...]


@frozen
class Finished:
    """The job ended by itself and its slot is free. An end-of-generation token makes no Token event."""

    job_id: str
    reason: FinishReason
    score: TokenScore | None = None
    """Of the token that ended it, where there is one and the job asked for scores."""


@frozen
class Failed:
    """The job alone failed and its slot is free."""

    job_id: str
    error: str
    unanswerable: bool = False
    """The request is at fault, and `error` is for its client to read; else the engine is."""


EngineEvent = Progress | Token | PromptScores | Embedding | Finished | Failed


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
