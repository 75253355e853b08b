"""One job's state, and the reader's side of it. Knows nothing of the queue and the replicas.

The reader gets one merged update per wake-up: a slow reader costs nothing but the text that its `max_tokens` allows.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import trio
from attrs import define, field, frozen

from ..errors import SlimError
from ..policy import Place
from ..types import EngineJob, FinishReason, Generation, JobRecord, Outcome, Usage

Item = TypeVar("Item")
Channel = tuple[trio.MemorySendChannel[Item], trio.MemoryReceiveChannel[Item]]
open_channel: Any = trio.open_memory_channel
"""Without its subscript, which costs more at every call than the channel."""


@frozen
class Update:
    """What is new for the reader of an answer. In the last one exactly one of `reason` and `error` is set."""

    pieces: Sequence[str]
    """Text, one string per token that made text certain."""
    reason: FinishReason | None
    error: SlimError | None
    usage: Usage


@define(eq=False)
class Job:
    """Times are seconds on trio's clock."""

    id: str
    request_id: str
    request: Generation
    tenant: str
    place: Place
    submitted: float
    scope: trio.CancelScope
    """Carries the deadline; the job's task lives under it."""
    offer: "Channel[Job]" = field(factory=lambda: open_channel(0))
    """Waiting, the job's task is blocked in `send` here; the dispatcher takes it with `receive_nowait`."""
    engine_job: EngineJob | None = None
    prompt_tokens: int = 0
    new_tokens: int = 0
    cached: int = 0
    started: float | None = None
    first_token: float | None = None
    last_token: float = math.nan
    _pieces: list[str] = field(factory=list)
    _reason: FinishReason | None = None
    _error: SlimError | None = None
    _rings: bool = False
    _bell: Channel[None] = field(factory=lambda: open_channel(1))

    @property
    def usage(self) -> Usage:
        return Usage(self.prompt_tokens, self.new_tokens, self.cached)

    def count_token(self, at: float) -> float | None:
        """Count a token that was made at `at`; seconds since the one before, None for the first."""
        gap = None if self.first_token is None else at - self.last_token
        if self.first_token is None:
            self.first_token = at
        self.last_token = at
        self.new_tokens += 1
        return gap

    def add_text(self, text: str) -> None:
        if text:
            self._pieces.append(text)
            self._ring()

    def finish(self, reason: FinishReason | None, error: SlimError | None) -> None:
        self._reason, self._error = reason, error
        self._ring()
        self.scope.cancel()

    def _ring(self) -> None:
        if not self._rings:
            self._rings = True
            self._bell[0].send_nowait(None)

    async def next_update(self) -> Update:
        await self._bell[1].receive()
        self._rings = False
        pieces, self._pieces = self._pieces, []
        return Update(pieces, self._reason, self._error, self.usage)

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
    """The reader's side of a job. Leaving the `with` block abandons the job if it has not ended."""

    _job: Job
    _abandon: Callable[[Job], None]

    @property
    def id(self) -> str:
        """Unique to this job."""
        return self._job.id

    async def receive(self) -> Update:
        """Wait for the next update. After one with a reason or an error there are no more."""
        return await self._job.next_update()

    def cancel(self) -> None:
        """Nobody waits for the answer any more. Safe at any time and more than once."""
        self._abandon(self._job)

    def __enter__(self) -> "Ticket":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.cancel()
