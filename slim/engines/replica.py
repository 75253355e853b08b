"""One model copy and the thread that owns it: commands in, one report out per step.

The thread's loop is three calls: prepare (commands, free slots), let the engine make one step, report what happened.
Text is assembled here (UTF-8, stop strings), so that every engine has the same semantics and the event loop gets
ready text. Knows nothing of trio, HTTP, deadlines or the queue; `clock` is given from outside.

A whole step that raises fails the jobs that ran in it, and the engine is reset. A second one within a minute, or a
reset that raises, ends the replica: it stays, refuses everything, and keeps the model until it is stopped, because
its tokenizer may still be in use.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping
from queue import SimpleQueue

from attrs import define, field, frozen

from ..text import TextAssembler
from ..types import (
    Embedding,
    EngineEvent,
    EngineInfo,
    EngineJob,
    Finished,
    FinishReason,
    Progress,
    PromptScores,
    Token,
    TokenScore,
)
from .base import Engine, Tokenizer

log = logging.getLogger("slim.replica")

SECONDS_BETWEEN_FAULTS = 60.0
"""Two broken steps within this time mean that the model can't be trusted to serve on."""

# Commands, from the scheduler. They pickle, but for a job's constraint: a replica may one day live in another process.


@frozen
class Post:
    """Run this job as soon as a slot is free."""

    job: EngineJob


@frozen
class Cancel:
    """Drop this job, waiting or running. Answered by Ended, unless the job has ended already."""

    job_id: str


@frozen
class Stop:
    """Drop everything and leave the thread."""


Command = Post | Cancel | Stop

# Reports, to the scheduler.


@frozen
class Ready:
    """The model is loaded."""

    info: EngineInfo


@frozen
class Broken:
    """The replica serves no more. Every job it had has got its Ended before this."""

    error: str


@frozen
class Started:
    """The job has a slot; its wait is over."""

    job_id: str


@frozen
class Waiting:
    """So many jobs wait until a running one has computed what they begin with. They take no slot yet."""

    jobs: int


@frozen
class Ended:
    """The job has left the replica. With neither reason nor error it was cancelled."""

    job_id: str
    reason: FinishReason | None = None
    tail: str = ""
    """Text that was held back until now."""
    scores: tuple[TokenScore, ...] = ()
    """Those of the tail."""
    end_score: TokenScore | None = None
    """Of the token that ended it, where it was scored and no stop string came before."""
    error: str | None = None
    unanswerable: bool = False
    """The error is the request's fault, and for its client to read."""


ReplicaEvent = Ready | Broken | Waiting | Started | Progress | Embedding | Ended
NOTHING: Mapping[str, tuple[TokenScore, ...]] = {}


@frozen
class Report:
    """Everything that happened since the last report."""

    replica: int
    at: float
    """Clock time in seconds when the step had finished."""
    tokens: Mapping[str, str]
    """One new token for each of these jobs, and the text that became certain with it, maybe empty."""
    events: tuple[ReplicaEvent, ...]
    """What else happened, in order, after the tokens."""
    kv_used: int
    """Tokens that running jobs hold."""
    stepped: int | None = None
    """Jobs in the step, None when the report only answers commands."""
    scores: Mapping[str, tuple[TokenScore, ...]] = NOTHING
    """What became certain with `tokens`, for the jobs that asked."""
    prompt_scores: tuple[PromptScores, ...] = ()
    """In order, before the tokens."""

    @property
    def is_news(self) -> bool:
        """Says more than how far prompts are."""
        return bool(self.tokens) or not all(isinstance(event, Progress) for event in self.events)


@define(eq=False)
class Replica:
    """`run` is the thread's body; `post`, `stop` and `tokenizer` are safe from any thread."""

    index: int
    engine: Engine
    deliver: Callable[[Report], None]
    """Called on the replica's thread; must not block."""
    clock: Callable[[], float]
    _inbox: SimpleQueue[Command] = field(factory=SimpleQueue)
    _stopping: threading.Event = field(factory=threading.Event)
    _pending: deque[EngineJob] = field(factory=deque)
    _texts: dict[str, TextAssembler] = field(factory=dict)
    _tokens: dict[str, str] = field(factory=dict)
    _scores: dict[str, tuple[TokenScore, ...]] = field(factory=dict)
    _prompt_scores: list[PromptScores] = field(factory=list)
    _events: list[ReplicaEvent] = field(factory=list)
    _slots: int = 0
    _waiting: int = 0
    _last_fault: float = float("-inf")
    _broken: str | None = None

    # From any thread.

    def post(self, command: Command) -> None:
        self._inbox.put(command)

    def stop(self) -> None:
        """Make `run` return after the running step, which is interrupted where the engine can."""
        self._stopping.set()
        self.post(Stop())
        self.engine.interrupt()

    @property
    def tokenizer(self) -> Tokenizer:
        """Valid once Ready was reported, until `stop`."""
        return self.engine.tokenizer

    @property
    def stopping(self) -> bool:
        return self._stopping.is_set()

    # On the replica's thread.

    def run(self) -> None:
        """Load the model and serve until stopped. Never raises: a fault of any kind is reported as Broken."""
        try:
            self.load()
            while not self.stopping:
                try:
                    self.apply(self._inbox.get())
                    self._serve()
                except Exception as error:  # a bug of ours; its jobs must not wait for ever
                    log.exception("replica %d: the engine thread failed", self.index)
                    self._break(f"the engine thread failed: {error}")
                    self.report()
        finally:
            self.engine.close()

    def _serve(self) -> None:
        """Step until nothing is left to do."""
        while not self.stopping:
            self.prepare()
            if not self.active:
                return
            stepped = self.step()
            if self.engine.step_seconds:
                self._stopping.wait(self.engine.step_seconds)
            self.report(stepped)

    def load(self) -> None:
        try:
            info = self.engine.load()
            self._slots = info.slots
            self._events.append(Ready(info))
            log.info(
                "replica %d: ready: %s; %d slots of %d tokens", self.index, info.description, info.slots, info.context
            )
        except Exception as error:
            log.error("replica %d: the model did not load: %s", self.index, error)
            self._break(f"the model did not load: {error}")
        self.report()

    @property
    def active(self) -> bool:
        return bool(self._texts or self._pending) and self._broken is None

    def prepare(self) -> None:
        """Apply the commands that have come, fill the free slots, and report both at once: a step may be long."""
        while not self._inbox.empty():  # nobody else takes from it
            self.apply(self._inbox.get())
        self._admit()
        self.report()

    def apply(self, command: Command) -> None:
        match command:
            case Post(job):
                if self._broken is None:
                    self._pending.append(job)
                else:
                    self._events.append(Ended(job.id, error=self._broken))
            case Cancel(job_id):
                self._cancel(job_id)
            case Stop():
                pass  # only wakes the thread; `_stopping` is set

    def _cancel(self, job_id: str) -> None:
        if self._texts.pop(job_id, None) is not None:
            self.engine.cancel(job_id)
            self._events.append(Ended(job_id))
            return
        for job in self._pending:
            if job.id == job_id:
                self._pending.remove(job)
                self._events.append(Ended(job_id))
                return

    def step(self) -> int:
        """Make one engine step and turn what it says into events. Returns the jobs in it."""
        jobs = len(self._texts)
        try:
            for event in self.engine.step():
                self._handle(event)
        except Exception as error:
            self._fault(error)
        return jobs

    def report(self, stepped: int | None = None) -> None:
        """Deliver what has gathered. A report without events is sent only for a finished step."""
        if self._events or stepped is not None:
            report = Report(
                self.index,
                self.clock(),
                self._tokens,
                tuple(self._events),
                self.engine.kv_used,
                stepped,
                self._scores,
                tuple(self._prompt_scores),
            )
            self._tokens, self._scores, self._events, self._prompt_scores = {}, {}, [], []
            self.deliver(report)

    def _admit(self) -> None:
        """Add what waits, oldest first, while slots are free; but not yet what is better added later."""
        later = deque[EngineJob]()
        while self._pending and len(self._texts) < self._slots:
            job = self._pending.popleft()
            if self.engine.waits(job):
                later.append(job)
                continue
            try:
                self.engine.add(job)
            except Exception as error:
                log.exception("replica %d: the engine refused job %s", self.index, job.id)
                self._events.append(Ended(job.id, error=str(error)))
            else:
                self._texts[job.id] = TextAssembler(job.stop)
                self._events.append(Started(job.id))
        self._pending.extendleft(reversed(later))
        if len(later) != self._waiting:
            self._waiting = len(later)
            self._events.append(Waiting(self._waiting))

    def _handle(self, event: EngineEvent) -> None:
        text = self._texts.get(event.job_id)
        if text is None:
            return  # a stop string ended the job earlier in this step
        if isinstance(event, Token):
            self._tokens[event.job_id] = text.feed(event.data, event.score)
            if event.score is not None:
                self._scores[event.job_id] = text.take_scores()
            if text.stopped:
                self.engine.cancel(event.job_id)
                self._leave(Ended(event.job_id, FinishReason.STOP))
        elif isinstance(event, Progress | Embedding):
            self._events.append(event)
        elif isinstance(event, PromptScores):
            self._prompt_scores.append(event)
        elif isinstance(event, Finished):
            tail = text.finish()
            reason = FinishReason.STOP if text.stopped else event.reason
            end_score = None if text.stopped else event.score
            self._leave(Ended(event.job_id, reason, tail, text.take_scores(), end_score))
        else:
            self._leave(Ended(event.job_id, error=event.error, unanswerable=event.unanswerable))

    def _leave(self, ended: Ended) -> None:
        del self._texts[ended.job_id]
        self._events.append(ended)

    def _fault(self, error: Exception) -> None:
        """A whole step broke: its jobs fail; the engine is reset, or the replica ends."""
        if self.stopping:
            return  # interrupted
        log.error("replica %d: a step failed: %s: %s", self.index, type(error).__name__, error, exc_info=error)
        self._fail_running(str(error))
        now, previous = self.clock(), self._last_fault
        self._last_fault = now
        if now - previous < SECONDS_BETWEEN_FAULTS:
            self._break(f"the engine broke twice within a minute: {error}")
            return
        try:
            self.engine.reset()
        except Exception as failure:
            self._break(f"the engine could not be reset: {failure}")

    def _fail_running(self, error: str) -> None:
        self._events.extend(Ended(job_id, error=error) for job_id in self._texts)
        self._texts.clear()

    def _break(self, error: str) -> None:
        self._broken = error
        self._fail_running(error)
        self._events.extend(Ended(job.id, error=error) for job in self._pending)
        self._pending.clear()
        self._events.append(Broken(error))
