"""The trio shell around `policy`: a job from its reservation to its one end.

Each job has a task of its own under a cancel scope that carries its deadline. Waiting, it is blocked in `send` on a
channel of capacity 0, and the dispatcher takes it with `receive_nowait`. So a job that is cancelled or expired leaves
the queue by itself and at once, and take against cancel is atomic. `policy` alone says who is next.

A job ends exactly once, in `_end`, whatever ended it: its place is given back, its record is written, and a replica
that still has it is told. Knows nothing of HTTP and JSON.
"""

import logging
import random
import secrets
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress

import trio
from attrs import frozen

from ..engines.replica import Ended, Replica, Started
from ..errors import (
    ContextLengthExceeded,
    DeadlineExceeded,
    Draining,
    EngineFailed,
    ModelFailed,
    ModelLoading,
    RequestCancelled,
    SlimError,
    Stalled,
    Unavailable,
)
from ..metrics import Metrics
from ..policy import JobState, Policy
from ..types import EngineJob, FinishReason, Generation, JobRecord, Outcome, Progress, Statistics
from .job import Job, Ticket
from .replicas import JobEvent, MakeReplicas, Readiness, ReplicaSet, drive_in_thread
from .tokenizing import Tokenizing

log = logging.getLogger("slim.generation")

RETRY_LOADING, RETRY_DRAINING, RETRY_STALLED = 2.0, 1.0, 5.0
"""Seconds. A small model loads in a few; behind a balancer another instance takes a drained client at once."""


@frozen
class SchedulerLimits:
    """Durations in seconds."""

    places: int
    """Jobs in the system at most: the slots of all replicas and the queue."""
    request_timeout: float
    stall: float


class Scheduler:
    """Admits jobs, hands them to replicas, ends them. All methods belong to the trio thread."""

    def __init__(
        self,
        make_replicas: MakeReplicas,
        limits: SchedulerLimits,
        metrics: Metrics,
        drive: Callable[[Replica], Awaitable[None]] = drive_in_thread,
        tokenizing: Tokenizing | None = None,
    ) -> None:
        """`drive` and `tokenizing` are the two ways to a thread; a test in virtual time has none."""
        self._limits = limits
        self._metrics = metrics
        self._replicas = ReplicaSet(
            make_replicas, limits.stall, self._on_tokens, self._on_event, metrics.step, self._wake, drive
        )
        self._policy = Policy(limits.places)
        self._jobs: dict[str, Job] = {}
        self._leaving: dict[str, float] = {}  # cancelled, but a replica still has it; since when
        self._wakeup = trio.open_memory_channel[None](1)
        self._tokenizing = tokenizing or Tokenizing()
        self._nursery: trio.Nursery | None = None
        self._draining = False
        self._emptied = trio.Event()

    # Life of the scheduler.

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Load the replicas in the background and serve until `stop`. Returns when every engine thread has."""
        async with trio.open_nursery() as threads:
            self._replicas.start(threads)
            try:
                async with trio.open_nursery() as self._nursery:
                    self._nursery.start_soon(self._dispatch)
                    task_status.started()
            finally:
                self._nursery = None
                self._shut_down(self._jobs.values())
                await self._tokenizing.finish()
                self._replicas.stop()

    def stop(self) -> None:
        """End what still runs, and let `run` return."""
        self.refuse()
        self._shut_down(self._jobs.values())
        if self._nursery is not None:
            self._nursery.cancel_scope.cancel()

    def refuse(self) -> None:
        """Admit nothing more."""
        self._draining = True

    async def drain(self, budget: float) -> None:
        """Refuse new work, end what waits, give what runs `budget` seconds, then end that too."""
        self.refuse()
        self._shut_down(job for job in self._jobs.values() if job.place.state is not JobState.RUNNING)
        self._emptied = trio.Event()
        with trio.move_on_after(budget):
            if self._jobs:
                await self._emptied.wait()
        self._shut_down(self._jobs.values())

    def _shut_down(self, jobs: Iterable[Job]) -> None:
        for job in list(jobs):
            self._end(job, Outcome.SHUTDOWN, error=refusal(Readiness("draining")))

    # What the outside asks.

    def readiness(self) -> Readiness:
        """Whether a request would be admitted now, apart from the places. Busy is not unready."""
        if self._draining:
            return Readiness("draining", "the server is shutting down")
        if self._nursery is None:
            return Readiness("failed", "the scheduler does not run")
        return self._replicas.readiness(trio.current_time())

    def statistics(self) -> Statistics:
        loaded = self._replicas.loaded
        return Statistics(
            queued=self._policy.count(JobState.RESERVED, JobState.QUEUED, JobState.POSTED),
            running=self._policy.count(JobState.RUNNING),
            replicas_ready=len(loaded),
            kv_used=sum(book.kv_used for book in loaded),
            kv_tokens=sum(book.info.kv_tokens for book in loaded if book.info is not None),
        )

    @property
    def context(self) -> int | None:
        """Tokens that one request may hold, once a model is loaded."""
        return None if self._replicas.model is None else self._replicas.model[0].context

    def check(self) -> None:
        """Raise the Unavailable that `submit` would raise now: asked before a body is read, a refusal costs nothing."""
        readiness = self.readiness()
        if readiness.status != "ready":
            self._metrics.rejected("draining" if readiness.status == "draining" else "not_ready")
            raise refusal(readiness)
        if self._policy.full:
            self._metrics.rejected("queue_full")
            raise self._policy.overloaded(trio.current_time(), random.random())

    def submit(self, request: Generation, request_id: str, tenant: str = "") -> Ticket:
        """Reserve a place for the request. Raises an Unavailable; nothing is kept of a refused request.

        `request_id` is for the log: a client may send the same one twice.
        """
        self.check()
        assert self._nursery is not None  # else it isn't ready
        now = trio.current_time()
        job_id = secrets.token_hex(12)
        scope = trio.CancelScope(deadline=now + self._limits.request_timeout)
        job = Job(job_id, request_id, request, tenant, self._policy.reserve(job_id, now), now, scope)
        self._jobs[job_id] = job
        self._nursery.start_soon(self._live, job)
        return Ticket(job, self._abandon)

    def _abandon(self, job: Job) -> None:
        self._end(job, Outcome.CANCELLED, error=RequestCancelled("The client left."))

    # The life of a job.

    async def _live(self, job: Job) -> None:
        """The job's own task: prepare, wait for a replica, wait for the end. Its scope carries the deadline."""
        with job.scope:
            await self._prepare(job)
            if job.place.state is JobState.ENDED:
                return
            self._policy.move(job.place, JobState.QUEUED)
            self._wake()
            await job.offer[0].send(job)
            await trio.sleep_forever()
        text = f"The request was not finished within its deadline of {self._limits.request_timeout:g} s."
        self._end(job, Outcome.TIMEOUT, error=DeadlineExceeded(text))

    async def _prepare(self, job: Job) -> None:
        """Tokenize off the event loop and fit the output into the context; a prompt that doesn't fit ends the job."""
        assert self._replicas.model is not None  # `check` has passed, and a model once loaded stays
        info, tokenizer = self._replicas.model
        request = job.request
        try:
            tokens = await self._tokenizing.encode(tokenizer, request.prompt)
        except Exception as error:
            log.exception("the prompt could not be tokenized", extra={"fields": {"request_id": job.request_id}})
            self._end(job, Outcome.ENGINE_ERROR, error=EngineFailed(str(error)))
            return
        job.prompt_tokens = len(tokens)
        room = info.context - job.prompt_tokens
        if room < 1:
            # Not a job that ran: the client's request was wrong, and only its length could tell.
            self._end(job, None, error=ContextLengthExceeded(job.prompt_tokens, request.max_tokens, info.context))
            return
        max_tokens = min(request.max_tokens, room)
        job.engine_job = EngineJob(job.id, tokens, max_tokens, request.sampling, request.stop, job.tenant)

    async def _dispatch(self) -> None:
        """Give waiting jobs to replicas with room, whenever something may have changed."""
        while True:
            now = trio.current_time()
            readiness = self._replicas.readiness(now)
            if readiness.status == "failed":
                for stranded in list(self._jobs.values()):
                    self._end(stranded, Outcome.ENGINE_ERROR, error=refusal(readiness))
            while (book := self._replicas.with_room(now)) and (job := self._take()):
                assert job.engine_job is not None
                self._policy.move(job.place, JobState.POSTED)
                book.post(job.engine_job, now)
            await self._wakeup[1].receive()

    def _take(self) -> Job | None:
        """The first waiting job that is still there to be taken."""
        for place in self._policy.waiting():
            try:
                return self._jobs[place.job_id].offer[1].receive_nowait()
            except trio.WouldBlock:
                continue  # its deadline has just fired, and its task is on its way out
        return None

    def _wake(self) -> None:
        with suppress(trio.WouldBlock):  # it is about to look anyway
            self._wakeup[0].send_nowait(None)

    def _on_tokens(self, tokens: Mapping[str, str], at: float) -> None:
        """One new token for each of these jobs."""
        for job_id, text in tokens.items():
            job = self._jobs.get(job_id)
            if job is None:
                self._metrics.wasted(1)  # it has ended here, but its replica did not know yet
                continue
            gap = job.count_token(at)
            if gap is not None:
                self._metrics.token_gap(gap)
            job.add_text(text)

    def _on_event(self, event: JobEvent, at: float) -> None:
        """What else a replica reports of one job."""
        job = self._jobs.get(event.job_id)
        if job is None:
            self._on_leftover(event, at)
        elif isinstance(event, Started):
            self._policy.move(job.place, JobState.RUNNING)
            job.started = at
        elif isinstance(event, Progress):
            job.cached = event.cached
        else:
            self._on_ended(job, event)

    def _on_ended(self, job: Job, event: Ended) -> None:
        job.add_text(event.tail)
        if event.reason is not None:
            self._end(job, Outcome.OK, reason=event.reason)
        else:
            cause = event.error or "the replica dropped the job"
            self._end(job, Outcome.ENGINE_ERROR, error=EngineFailed(cause))

    def _on_leftover(self, event: JobEvent, at: float) -> None:
        """The job has ended here, but its replica did not know yet. Only a bare Ended answers the cancel."""
        if isinstance(event, Ended):
            since = self._leaving.pop(event.job_id)
            if event.reason is None and event.error is None:
                self._metrics.cancelled(at - since)

    def _end(
        self, job: Job, outcome: Outcome | None, *, reason: FinishReason | None = None, error: SlimError | None = None
    ) -> None:
        """The only end of a job; later calls change nothing. Without an outcome it was refused and is not counted."""
        if job.place.state is JobState.ENDED:
            return
        now = trio.current_time()
        self._policy.end(job.place, now)
        del self._jobs[job.id]
        holder = self._replicas.holder(job.id)
        if holder is not None:
            self._leaving[job.id] = now
            holder.cancel(job.id)
        job.finish(reason, error)
        if outcome is not None:
            record = job.record(outcome, now)
            self._metrics.ended(record)
            log_record(record, error)
        if not self._jobs:
            self._emptied.set()
        self._wake()


def refusal(readiness: Readiness) -> Unavailable:
    """The error for a request that comes while the server isn't ready."""
    match readiness.status:
        case "draining":
            return Draining("The server is shutting down.", RETRY_DRAINING)
        case "loading":
            return ModelLoading("The model is still loading. Please retry in a moment.", RETRY_LOADING)
        case "stalled":
            return Stalled(f"The engine is stalled: {readiness.error}.", RETRY_STALLED)
        case _:
            return ModelFailed(f"The model is not available: {readiness.error}.")


def log_record(record: JobRecord, error: SlimError | None) -> None:
    """One line per generation. Never its prompt nor its text."""

    def milliseconds(seconds: float | None) -> float | None:
        return None if seconds is None else round(seconds * 1000, 1)

    fields = {
        "request_id": record.request_id,
        "tenant": record.tenant,
        "outcome": record.outcome.value,
        "finish_reason": record.reason.value if record.reason is not None else None,
        "prompt_tokens": record.usage.prompt_tokens,
        "completion_tokens": record.usage.completion_tokens,
        "queue_wait_ms": milliseconds(record.queue_wait),
        "ttft_ms": milliseconds(record.first_token),
        "duration_ms": milliseconds(record.duration),
    }
    if isinstance(error, EngineFailed):
        fields["error"] = error.cause
    log.info("generation ended", extra={"fields": fields})
