"""What the scheduler knows of its replicas: who is loaded, who has room, who stalls, and what they report.

Reports cross from the engine threads through one deque and at most one wake-up of the event loop per step, none when
it only tells how far prompts are and nobody asked: such a report is read with the next. Knows nothing of requests and
of the order in which they wait.
"""

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Literal

import trio
from attrs import define, field, frozen

from ..engines.prefixes import common
from ..engines.replica import Broken, Cancel, Ended, Post, Ready, Replica, Report, Started, Waiting
from ..policy import Load, choose_replica
from ..preparation import Model
from ..types import Embedding, EngineInfo, EngineJob, Progress

JobEvent = Started | Progress | Embedding | Ended
Deliver = Callable[[Report], None]
Clock = Callable[[], float]
MakeReplicas = Callable[[Deliver, Clock], Sequence[Replica]]
"""Makes the replicas, given where they deliver their reports and the clock that stamps them."""

PROMPTS = 64
"""Of one replica, that are looked through for what a new one begins with."""


@frozen
class Readiness:
    """Whether work is admitted; `error` says why it isn't."""

    status: Literal["ready", "loading", "failed", "stalled", "draining"]
    error: str | None = None


@define(eq=False)
class ReplicaBook:
    """What is known of one replica."""

    replica: Replica
    last_sign: float
    """Clock time of its last report, or of the job that ended its idleness."""
    info: EngineInfo | None = None
    error: str | None = None
    jobs: set[str] = field(factory=set)
    """Posted, and not yet reported as gone."""
    waiting: int = 0
    """Of them those that take no slot yet: others may pass them."""
    kv_used: int = 0
    prompts: deque[tuple[str, tuple[int, ...]]] = field(factory=lambda: deque(maxlen=PROMPTS))
    """Tenants and tokens of the last ones that were posted. Not their jobs: those hold compiled grammars."""

    def stalled(self, now: float, limit: float) -> bool:
        return bool(self.jobs) and now - self.last_sign > limit

    def post(self, job: EngineJob, now: float) -> None:
        if not self.jobs:
            self.last_sign = now
        self.jobs.add(job.id)
        if job.cache_prompt:
            self.prompts.append((job.tenant, job.tokens))
        self.replica.post(Post(job))

    def load(self, index: int, known: int = 0) -> Load:
        assert self.info is not None  # it is loaded
        return Load(index, len(self.jobs) - self.waiting, self.info.slots, known)

    def known(self, job: EngineJob) -> int:
        """Tokens of the prompt that it has been posted before. They may have left its cache since."""
        shared = (common(tokens, job.tokens) for tenant, tokens in self.prompts if tenant == job.tenant)
        return max(shared, default=0) if job.cache_prompt else 0

    def cancel(self, job_id: str) -> None:
        self.replica.post(Cancel(job_id))


async def drive_in_thread(replica: Replica) -> None:
    """Run a replica on a thread of its own. Never abandoned: the model is in use until the thread returns."""
    await trio.to_thread.run_sync(replica.run, limiter=trio.CapacityLimiter(1))


@define(eq=False)
class ReplicaSet:
    """All replicas.

    `on_report` gets each report for its tokens and scores, `on_event` what else concerns one job,
    `on_step` the number of jobs of each finished step; `on_change` is called when a replica may take more, or none any
    longer.
    """

    make: MakeReplicas
    stall_limit: float
    on_report: Callable[[Report], None]
    on_event: Callable[[JobEvent, float], None]
    on_step: Callable[[int], None]
    on_change: Callable[[], None]
    watched: Callable[[], bool]
    """Whether anybody wants to know how far prompts are. Asked on the engine threads."""
    drive: Callable[[Replica], Awaitable[None]]
    chat_template: str | None = None
    model: Model | None = None
    """Once a replica has loaded it, and from then on; all replicas hold the same."""
    books: list[ReplicaBook] = field(factory=list)
    _reports: deque[Report] = field(factory=deque)
    _called: bool = False

    def start(self, nursery: trio.Nursery) -> None:
        """Make the replicas and let them load, each on its thread."""
        token = trio.lowlevel.current_trio_token()
        clock = trio.lowlevel.current_clock().current_time

        def deliver(report: Report) -> None:
            self._reports.append(report)
            if not self._called and (report.is_news or self.watched()):  # one call reads all that has come by then
                self._called = True
                token.run_sync_soon(self.read_reports)

        self.books = [ReplicaBook(replica, clock()) for replica in self.make(deliver, clock)]
        for book in self.books:
            nursery.start_soon(self.drive, book.replica)

    def stop(self) -> None:
        for book in self.books:
            book.replica.stop()

    def read_reports(self) -> None:
        """Take in what has come. Without it `serving`, `readiness` and the books may be a prompt's step behind."""
        self._called = False  # before reading: a report that comes from now on calls again
        changed = False
        while self._reports:
            report = self._reports.popleft()
            book = self.books[report.replica]
            changed = changed or book.stalled(report.at, self.stall_limit)
            book.last_sign = report.at
            book.kv_used = report.kv_used
            if report.stepped is not None:
                self.on_step(report.stepped)
            self.on_report(report)
            for event in report.events:
                self._read_event(book, event, report.at)
                changed = changed or isinstance(event, Ended | Ready | Broken | Waiting)
        if changed:
            self.on_change()

    def _read_event(self, book: ReplicaBook, event: JobEvent | Ready | Broken | Waiting, at: float) -> None:
        if isinstance(event, Ready):
            book.info = event.info
            self.model = self.model or Model(event.info, book.replica.tokenizer, self.chat_template)
        elif isinstance(event, Broken):
            book.error = event.error
        elif isinstance(event, Waiting):
            book.waiting = event.jobs
        else:
            if isinstance(event, Ended):
                book.jobs.discard(event.job_id)
            self.on_event(event, at)

    def serving(self, now: float) -> list[ReplicaBook]:
        """Replicas that are loaded, whole and not stalled."""
        return [b for b in self.loaded if not b.stalled(now, self.stall_limit)]

    @property
    def loaded(self) -> list[ReplicaBook]:
        return [b for b in self.books if b.info is not None and b.error is None]

    def has_room(self, now: float) -> bool:
        """Whether a replica can be posted one more job."""
        return choose_replica(book.load(index) for index, book in enumerate(self.serving(now))) is not None

    def choose(self, job: EngineJob, now: float) -> ReplicaBook:
        """The replica that should get this job. Only while one has room."""
        serving = self.serving(now)
        known = [book.known(job) if len(serving) > 1 else 0 for book in serving]
        chosen = choose_replica(book.load(index, known[index]) for index, book in enumerate(serving))
        assert chosen is not None
        return serving[chosen]

    def holder(self, job_id: str) -> ReplicaBook | None:
        """The replica that still has this job, or None."""
        return next((book for book in self.books if job_id in book.jobs), None)

    def readiness(self, now: float) -> Readiness:
        self.read_reports()  # a long prompt's steps show that its replica doesn't stall
        if self.serving(now):
            return Readiness("ready")
        if any(b.info is None and b.error is None for b in self.books):
            return Readiness("loading", "the model is loading")
        if self.loaded:
            return Readiness("stalled", f"no step has finished for {self.stall_limit:g} s while work is active")
        return Readiness("failed", self.books[0].error)
