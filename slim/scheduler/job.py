"""One job's state, and the reader's side of a request's jobs. Knows nothing of the queue and the replicas.

A request is k = prompts x choices jobs under one ticket. The reader gets one merged update of each job per wake-up: a
slow reader costs nothing but the text that its `max_tokens` allows.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import trio
from attrs import define, field, frozen

from ..answer import PromptProgress, Timings
from ..errors import EngineFailed, InvalidRequest, SlimError
from ..policy import Place
from ..preparation import Prepared
from ..types import EngineJob, FinishReason, Generation, JobRecord, Outcome, TokenScore, Usage

Item = TypeVar("Item")
Channel = tuple[trio.MemorySendChannel[Item], trio.MemoryReceiveChannel[Item]]
open_channel: Any = trio.open_memory_channel
"""Without its subscript, which costs more at every call than the channel."""


@frozen
class Update:
    """What is new of one choice. In its last one exactly one of `reason` and `error` is set."""

    index: int
    """prompt x choices + choice, as OpenAI counts."""
    pieces: Sequence[str]
    """Text, one string per token that made text certain; before them the prompt's where it is echoed."""
    scores: Sequence[tuple[TokenScore, ...]]
    """Those that belong to each piece; empty when they weren't asked for."""
    reason: FinishReason | None
    error: SlimError | None
    progress: PromptProgress | None = None
    """The newest, where it was asked for."""
    vector: tuple[float, ...] | None = None
    """The embedding."""
    end_score: TokenScore | None = None
    """Of the token that ended the text and is no part of it, where scores were asked for."""

    @property
    def scored(self) -> int:
        """Tokens with scores in it."""
        return sum(map(len, self.scores))


@define(eq=False)
class Bell:
    """Wakes the one reader of a ticket and says which of its jobs have news."""

    _news: "dict[Job, None]" = field(factory=dict)
    _rings: bool = False
    _channel: Channel[None] = field(factory=lambda: open_channel(1))

    def ring(self, job: "Job | None") -> None:
        if job is not None:
            self._news[job] = None
        if not self._rings:
            self._rings = True
            self._channel[0].send_nowait(None)

    async def wait(self) -> "Sequence[Job]":
        """The jobs with news, in order of it; none when the reader was only woken."""
        await self._channel[1].receive()
        self._rings = False
        news, self._news = self._news, {}
        return tuple(news)


@define(eq=False)
class PromptState:
    """One prompt of a request, and what its choices share."""

    id: str
    """Empty where only one choice asks: then nothing is shared."""
    request: Generation
    prepared: Prepared | None = None
    error: InvalidRequest | EngineFailed | None = None
    """Why it could not be prepared."""
    done: trio.Event | None = None
    """Set when it is prepared or has failed; None where only one choice asks."""
    scores: tuple[TokenScore, ...] = ()
    """Of its tokens, once one choice has them all: a choice that takes over a computed prompt gets none itself."""

    @property
    def tokens(self) -> int:
        return 0 if self.prepared is None else len(self.prepared.tokens)


@define(eq=False)
class Job:
    """Times are seconds on trio's clock."""

    id: str
    request_id: str
    index: int
    prompt: PromptState
    choice: int
    """Its number among those of its prompt."""
    tenant: str
    place: Place
    submitted: float
    scope: trio.CancelScope
    """Carries the deadline; the job's task lives under it."""
    bell: Bell
    offer: "Channel[Job]" = field(factory=lambda: open_channel(0))
    """Waiting, the job's task is blocked in `send` here; the dispatcher takes it with `receive_nowait`."""
    engine_job: EngineJob | None = None
    new_tokens: int = 0
    cached: int = 0
    started: float | None = None
    first_token: float | None = None
    ended: float | None = None
    last_token: float = math.nan
    end_score: TokenScore | None = None
    _pieces: list[str] = field(factory=list)
    _scores: list[tuple[TokenScore, ...]] = field(factory=list)
    _prompt_scores: list[TokenScore] = field(factory=list)
    _echoes: bool = field(init=False)
    """The prompt is still to come out."""
    _progress: PromptProgress | None = None
    _queue_position: int | None = None
    _vector: tuple[float, ...] | None = None
    _reason: FinishReason | None = None
    _error: SlimError | None = None

    def __attrs_post_init__(self) -> None:
        self._echoes = self.request.echo

    @property
    def request(self) -> Generation:
        return self.prompt.request

    @property
    def usage(self) -> Usage:
        return Usage(self.prompt.tokens, self.new_tokens, self.cached)

    @property
    def timings(self) -> Timings:
        """So far."""
        started, first = self.started, self.first_token
        prompt_done = self.ended if first is None else first
        return Timings(
            queue=0.0 if started is None else started - self.submitted,
            prompt=0.0 if started is None or prompt_done is None else prompt_done - started,
            decode=0.0 if first is None else self.last_token - first,
            prompt_tokens=self.prompt.tokens - self.cached,
            cached_tokens=self.cached,
            new_tokens=self.new_tokens,
        )

    def count_token(self, at: float) -> float | None:
        """Count a token that was made at `at`; seconds since the one before, None for the first."""
        gap = None if self.first_token is None else at - self.last_token
        if self.first_token is None:
            self.first_token = at
        self.last_token = at
        self.new_tokens += 1
        return gap

    def add_text(self, text: str, scores: tuple[TokenScore, ...] = ()) -> None:
        if self._echoes:
            self._add_echo()
        if text or scores:
            self._add(text, scores)

    def _add_echo(self) -> None:
        """The prompt's text comes before the answer's, with all its scores at once."""
        self._echoes = False
        if self.prompt.prepared is not None:
            self._add(self.prompt.prepared.echo, self.prompt.scores)

    def _add(self, text: str, scores: tuple[TokenScore, ...]) -> None:
        self._pieces.append(text)
        if self.request.logprobs is not None:
            self._scores.append(scores)
        self.bell.ring(self)

    def add_prompt_scores(self, scores: tuple[TokenScore, ...]) -> None:
        self._prompt_scores += scores
        if len(self._prompt_scores) == self.prompt.tokens:
            self.prompt.scores = tuple(self._prompt_scores)

    def add_vector(self, vector: tuple[float, ...]) -> None:
        self._vector = vector

    def tell_progress(self, now: float, done: int) -> None:
        """So many tokens of the prompt are computed."""
        if self.request.progress:
            self._queue_position = None
            self._progress = PromptProgress(self.prompt.tokens, self.cached, done, now - self.submitted)
            self.bell.ring(self)

    def tell_position(self, now: float, position: int) -> None:
        """So many jobs are before it in the queue."""
        if position != self._queue_position:
            self._queue_position = position
            self._progress = PromptProgress(self.prompt.tokens, 0, 0, now - self.submitted, position)
            self.bell.ring(self)

    def finish(self, now: float, reason: FinishReason | None, error: SlimError | None) -> None:
        self.ended, self._reason, self._error = now, reason, error
        self.bell.ring(self)
        self.scope.cancel()

    def take_update(self) -> Update:
        pieces, self._pieces = self._pieces, []
        scores, self._scores = self._scores, []
        progress, self._progress = self._progress, None
        return Update(self.index, pieces, scores, self._reason, self._error, progress, self._vector, self.end_score)

    def record(self, outcome: Outcome, now: float) -> JobRecord:
        """What is left of the job when it ends at `now`."""
        started, first = self.started, self.first_token
        decoding = self.last_token - first if first is not None else 0.0
        return JobRecord(
            request_id=self.request_id,
            tenant=self.tenant,
            outcome=outcome,
            reason=self._reason,
            usage=self.usage,
            duration=now - self.submitted,
            queue_wait=None if started is None else started - self.submitted,
            prefill=None if started is None or first is None else first - started,
            first_token=None if first is None else first - self.submitted,
            decode_rate=(self.new_tokens - 1) / decoding if decoding > 0 else None,
        )


@frozen(eq=False)
class Ticket:
    """The reader's side of a request. Leaving the `with` block abandons the jobs that have not ended."""

    id: str
    """Unique to this request."""
    _jobs: Sequence[Job]
    _bell: Bell
    _abandon: Callable[[Job], None]

    async def receive(self) -> list[Update]:
        """Wait for news of any choice. After an update with a reason or an error that choice has no more.

        Empty when `nudge` was called and nothing else has happened.
        """
        return [job.take_update() for job in await self._bell.wait()]

    def nudge(self) -> None:
        """Let `receive` return."""
        self._bell.ring(None)

    def cancel(self) -> None:
        """Nobody waits for the answer any more. Safe at any time and more than once."""
        for job in self._jobs:
            self._abandon(job)

    @property
    def size(self) -> int:
        """How many choices there are in all."""
        return len(self._jobs)

    @property
    def usage(self) -> Usage:
        """Of all choices so far. A prompt counts once, however many choices it has."""
        prompts = {job.prompt: job.cached for job in reversed(self._jobs)}  # the first choice of each is left
        return Usage(
            sum(prompt.tokens for prompt in prompts),
            sum(job.new_tokens for job in self._jobs),
            sum(prompts.values()),
        )

    def timings(self, index: int) -> Timings:
        return self._jobs[index].timings

    def prepared(self, index: int) -> Prepared | None:
        """How the prompt of a choice was read; None before that, so never once its text has begun."""
        return self._jobs[index].prompt.prepared

    def __enter__(self) -> "Ticket":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.cancel()
