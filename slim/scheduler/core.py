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
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from typing import NoReturn, TypeVar

import trio
from attrs import frozen

from ..engines.replica import Ended, Replica, Report, Started
from ..errors import DeadlineExceeded, EngineFailed, InvalidRequest, RequestCancelled, SlimError, Unanswerable
from ..metrics import Metrics
from ..policy import JobState, Policy
from ..preparation import Model, with_choice
from ..types import EngineInfo, EngineJob, FinishReason, Generation, Outcome, Progress, Statistics
from .ending import log_record, refusal
from .job import Bell, Job, PromptState, Ticket
from .preparing import Preparing
from .replicas import JobEvent, MakeReplicas, Readiness, ReplicaSet, drive_in_thread

T = TypeVar("T")
log = logging.getLogger("slim.generation")


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
        preparing: Preparing | None = None,
        chat_template: str | None = None,
    ) -> None:
        """`drive` and `preparing` are the two ways to a thread; a test in virtual time has none.

        `chat_template` is used instead of the model's own.
        """
        self._limits = limits
        self._metrics = metrics
        self._replicas = ReplicaSet(
            make_replicas,
            limits.stall,
            self._on_report,
            self._on_event,
            metrics.step,
            self._wake,
            lambda: bool(self._curious),
            drive,
            chat_template,
        )
        self._policy = Policy(limits.places)
        self._jobs: dict[str, Job] = {}
        self._curious: dict[str, Job] = {}  # those that want to know their place in the queue
        self._leaving: dict[str, float] = {}  # cancelled, but a replica still has it; since when
        self._wakeup = trio.open_memory_channel[None](1)
        self._preparing = preparing or Preparing()
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
                await self._preparing.finish()
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
        self._replicas.read_reports()
        loaded = self._replicas.loaded
        return Statistics(
            queued=self._policy.count(JobState.RESERVED, JobState.QUEUED, JobState.POSTED),
            running=self._policy.count(JobState.RUNNING),
            replicas_ready=len(loaded),
            kv_used=sum(book.kv_used for book in loaded),
            kv_tokens=sum(book.info.kv_tokens for book in loaded if book.info is not None),
        )

    @property
    def places(self) -> int:
        """Jobs that the whole system holds at most."""
        return self._limits.places

    @property
    def info(self) -> EngineInfo | None:
        """What the engine says of itself, once a model is loaded."""
        return None if self._replicas.model is None else self._replicas.model.info

    async def run_with_model(self, work: Callable[[Model], T]) -> T:
        """Do work that only reads the model, off the event loop. Raises what it raises, and an Unavailable."""
        model = self.check_model()
        if self._preparing.waiting >= self._limits.places:
            self._metrics.rejected("queue_full")
            raise self._policy.overloaded(trio.current_time(), random.random())
        return await self._preparing.run(lambda: work(model))

    def check_model(self) -> Model:
        """The model, which may be read even while no work is admitted for want of places. Raises an Unavailable."""
        model, readiness = self._replicas.model, self.readiness()
        if model is None or self._nursery is None or readiness.status == "draining":
            self._reject(readiness)
        return model

    def _reject(self, readiness: Readiness) -> NoReturn:
        self._metrics.rejected("draining" if readiness.status == "draining" else "not_ready")
        raise refusal(readiness)

    @property
    def has_room(self) -> bool:
        """Whether one more job gets a place."""
        return self._policy.has_room(1)

    def check(self, jobs: int = 1) -> None:
        """Raise the Unavailable that `submit` would raise now: asked before a body is read, a refusal costs nothing."""
        readiness = self.readiness()
        if readiness.status != "ready":
            self._reject(readiness)
        if not self._policy.has_room(jobs):
            self._metrics.rejected("queue_full")
            raise self._policy.overloaded(trio.current_time(), random.random())

    def submit(
        self, requests: Sequence[Generation], request_id: str, tenant: str = "", deadline: float | None = None
    ) -> Ticket:
        """Reserve a place for each choice of each prompt, or for none. Raises an Unavailable; nothing is then kept.

        `request_id` is for the log: a client may send the same one twice. `deadline` is clock time, for a request that
        began earlier; without it the request's time begins now.
        """
        self.check(sum(request.choices for request in requests))
        now = trio.current_time()
        if deadline is None:
            deadline = now + self._limits.request_timeout
        ticket_id, bell, jobs = secrets.token_hex(12), Bell(), list[Job]()
        for request in requests:
            several = request.choices > 1
            shared_id = f"{ticket_id}-{len(jobs)}" if several else ""
            prompt = PromptState(shared_id, request, done=trio.Event() if several else None)
            for choice in range(request.choices):
                index, job_id = len(jobs), f"{ticket_id}-{len(jobs)}"
                place, scope = self._policy.reserve(job_id, now), trio.CancelScope(deadline=deadline)
                job = Job(job_id, request_id, index, prompt, choice, tenant, place, now, scope, bell)
                self._admit(job)
                jobs.append(job)
        return Ticket(ticket_id, jobs, bell, self._abandon)

    def _admit(self, job: Job) -> None:
        assert self._nursery is not None  # else it isn't ready
        self._jobs[job.id] = job
        if job.request.progress:
            self._curious[job.id] = job
        self._nursery.start_soon(self._live, job)

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
        self._end(job, Outcome.TIMEOUT, error=DeadlineExceeded(self._limits.request_timeout))

    async def _prepare(self, job: Job) -> None:
        """Make the engine's job; a request that the model can't honour ends here. The first choice prepares for all."""
        prompt = job.prompt
        if prompt.done is not None and job.choice > 0:
            await prompt.done.wait()
        else:
            await self._prepare_prompt(job)
        if prompt.prepared is None:
            # A wrong request is no job that ran: only the model could tell.
            wrong = isinstance(prompt.error, InvalidRequest)
            self._end(job, None if wrong else Outcome.ENGINE_ERROR, error=prompt.error)
            return
        prepared, request = prompt.prepared, with_choice(prompt.request, job.choice)
        job.engine_job = EngineJob(
            job.id,
            prepared.tokens,
            prepared.max_tokens,
            request.sampling,
            request.stop,
            job.tenant,
            min_tokens=request.min_tokens,
            ignore_eos=request.ignore_eos,
            stop_token_ids=request.stop_token_ids,
            logprobs=request.logprobs,
            score_prompt=request.echo and request.logprobs is not None,
            constraint=prepared.constraints[job.choice],
            shown=prepared.shown,
            prompt_id=prompt.id,
            cache_prompt=request.cache_prompt,
        )

    async def _prepare_prompt(self, job: Job) -> None:
        assert self._replicas.model is not None  # `check` has passed, and a model once loaded stays
        prompt = job.prompt
        try:
            prompt.prepared = await self._preparing.prepare(self._replicas.model, prompt.request)
        except InvalidRequest as error:
            prompt.error = error
        except Exception as error:
            log.exception("the prompt could not be prepared", extra={"fields": {"request_id": job.request_id}})
            prompt.error = EngineFailed(str(error))
        if prompt.done is not None:
            prompt.done.set()

    async def _dispatch(self) -> None:
        """Give waiting jobs to replicas with room, whenever something may have changed."""
        while True:
            now = trio.current_time()
            readiness = self._replicas.readiness(now)
            if readiness.status == "failed":
                for stranded in list(self._jobs.values()):
                    self._end(stranded, Outcome.ENGINE_ERROR, error=refusal(readiness))
            while self._replicas.has_room(now) and (job := self._take()):
                assert job.engine_job is not None
                self._policy.move(job.place, JobState.POSTED)
                self._replicas.choose(job.engine_job, now).post(job.engine_job, now)
            self._tell_positions(now)
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

    def _tell_positions(self, now: float) -> None:
        if self._curious:
            for job_id, position in self._policy.positions().items():
                job = self._curious.get(job_id)
                if job is not None and job.engine_job is not None:
                    job.tell_position(now, position)

    def _on_report(self, report: Report) -> None:
        """The scores of prompts, then one new token for each job of the step."""
        for prompt_scores in report.prompt_scores:
            job = self._jobs.get(prompt_scores.job_id)
            if job is not None:
                job.add_prompt_scores(prompt_scores.scores)
        for job_id, text in report.tokens.items():
            job = self._jobs.get(job_id)
            if job is None:
                self._metrics.wasted(1)  # it has ended here, but its replica did not know yet
                continue
            gap = job.count_token(report.at)
            if gap is not None:
                self._metrics.token_gap(gap)
            job.add_text(text, report.scores.get(job_id, ()))

    def _on_event(self, event: JobEvent, at: float) -> None:
        """What else a replica reports of one job."""
        job = self._jobs.get(event.job_id)
        if job is None:
            self._on_leftover(event, at)
        elif isinstance(event, Started):
            self._policy.move(job.place, JobState.RUNNING)
            job.started = at
            self._tell_positions(at)
        elif isinstance(event, Progress):
            job.cached = event.cached
            job.tell_progress(at, event.done)
        elif isinstance(event, Ended):
            self._on_ended(job, event)
        else:
            job.add_vector(event.vector)

    def _on_ended(self, job: Job, event: Ended) -> None:
        job.add_text(event.tail, event.scores)
        job.end_score = event.end_score
        if event.reason is not None:
            self._end(job, Outcome.OK, reason=event.reason)
        elif event.unanswerable:
            grammar = job.request.grammar
            error = Unanswerable(str(event.error), None if grammar is None else grammar.param)
            self._end(job, Outcome.UNANSWERABLE, error=error)
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
        self._curious.pop(job.id, None)
        holder = self._replicas.holder(job.id)
        if holder is not None:
            self._leaving[job.id] = now
            holder.cancel(job.id)
        job.finish(now, reason, error)
        if outcome is not None:
            record = job.record(outcome, now)
            self._metrics.ended(record)
            log_record(record, error)
        if not self._jobs:
            self._emptied.set()
        self._wake()
