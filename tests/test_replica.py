"""The engine thread itself: real threads, held by events and never by sleeps."""

import pickle
import threading
from collections.abc import Callable, Iterator, Sequence
from queue import Queue

import pytest
import trio

from slim.engines.fake import FakeEngine
from slim.engines.replica import Broken, Cancel, Ended, Post, Ready, Replica, Report, Started, Stop
from slim.metrics import Metrics
from slim.scheduler import Scheduler, SchedulerLimits
from slim.types import EngineEvent, EngineJob, FinishReason, Generation, Segment

WAIT = 20.0
"""Seconds until a thread that should have answered counts as lost."""


class GatedEngine(FakeEngine):
    """An engine whose steps wait at a gate."""

    def __init__(self, **options: object) -> None:
        super().__init__(**options)  # type: ignore[arg-type]
        self.gate = threading.Semaphore(0)
        self.stepping = threading.Event()
        self.steps = 0
        self.threads: set[int] = set()
        self.cancelled = threading.Event()
        self.closed = threading.Event()

    def step(self) -> Sequence[EngineEvent]:
        self.threads.add(threading.get_ident())
        self.stepping.set()
        assert self.gate.acquire(timeout=WAIT)
        self.steps += 1
        return super().step()

    def cancel(self, job_id: str) -> None:
        super().cancel(job_id)
        self.cancelled.set()

    def close(self) -> None:
        super().close()
        self.closed.set()


class Thread:
    """A replica on a thread, and the reports it made."""

    def __init__(self, engine: FakeEngine) -> None:
        self.reports: Queue[Report] = Queue()
        self.replica = Replica(0, engine, self.reports.put, iter(range(10**9)).__next__)
        self.thread = threading.Thread(target=self.replica.run, daemon=True)
        self.thread.start()

    def events(self) -> Iterator[object]:
        while True:
            report = self.reports.get(timeout=WAIT)
            yield from report.tokens.items()
            yield from report.events

    def stop(self) -> None:
        self.replica.stop()
        self.thread.join(WAIT)
        assert not self.thread.is_alive()


async def until(condition: Callable[[], bool]) -> None:
    """Let real threads get on until this is so. What loads a model has no event for a test to wait on."""
    with trio.fail_after(WAIT):
        while not condition():  # noqa: ASYNC110
            await trio.sleep(0.001)


def job(name: str = "a", max_tokens: int = 3) -> EngineJob:
    return EngineJob(name, (1, 2, 3), max_tokens)


def test_a_job_is_reported_from_its_slot_to_its_end() -> None:
    thread = Thread(FakeEngine())
    thread.replica.post(Post(job()))
    events = thread.events()
    assert isinstance(next(events), Ready)
    assert next(events) == Started("a")
    kinds = []
    for event in events:
        kinds.append(type(event).__name__)
        if isinstance(event, Ended):
            break
    assert kinds == ["tuple", "Progress", "tuple", "tuple", "Ended"]  # a tuple is a token
    assert event == Ended("a", FinishReason.LENGTH)
    thread.stop()


def test_a_cancel_takes_effect_before_the_next_step() -> None:
    engine = GatedEngine()
    thread = Thread(engine)
    thread.replica.post(Post(job(max_tokens=1000)))
    assert engine.stepping.wait(WAIT)
    thread.replica.post(Cancel("a"))
    engine.gate.release()
    events = thread.events()
    assert Ended("a") in iter(lambda: next(events), None)
    assert engine.steps == 1
    thread.stop()


def test_a_job_that_waits_for_a_slot_can_be_cancelled() -> None:
    engine = GatedEngine(slots=1)
    thread = Thread(engine)
    thread.replica.post(Post(job("a", 2)))
    thread.replica.post(Post(job("b")))
    assert engine.stepping.wait(WAIT)
    thread.replica.post(Cancel("b"))
    for _ in range(2):
        engine.gate.release()
    ends = [event for _, event in zip(range(7), thread.events(), strict=False) if isinstance(event, Ended)]
    assert ends == [Ended("b"), Ended("a", FinishReason.LENGTH)]
    thread.stop()


def test_stop_returns_from_an_idle_and_from_a_waiting_thread() -> None:
    Thread(FakeEngine()).stop()
    slow = Thread(FakeEngine(step_seconds=lambda *_: 3600.0))
    slow.replica.post(Post(job()))
    assert isinstance(next(slow.events()), Ready)
    slow.stop()


def test_the_engine_is_closed_by_its_own_thread_even_if_it_never_loaded() -> None:
    engine = GatedEngine(load_error="no such file")
    thread = Thread(engine)
    assert isinstance(next(thread.events()), Broken)
    assert not engine.closed.is_set()
    thread.stop()
    assert engine.closed.is_set()


def test_a_job_posted_to_a_broken_replica_is_answered() -> None:
    thread = Thread(FakeEngine(load_error="no such file"))
    thread.replica.post(Post(job()))
    events = thread.events()
    assert isinstance(next(events), Broken)
    ended = next(events)
    assert isinstance(ended, Ended)
    assert "no such file" in (ended.error or "")
    thread.stop()


def test_a_job_that_the_engine_refuses_ends_alone() -> None:
    class Picky(FakeEngine):
        def add(self, job: EngineJob) -> None:
            if job.id == "bad":
                raise ValueError("token out of range")
            super().add(job)

    thread = Thread(Picky())
    thread.replica.post(Post(job("bad")))
    thread.replica.post(Post(job("good")))
    ends = []
    for event in thread.events():
        if isinstance(event, Ended):
            ends.append(event)
        if len(ends) == 2:
            break
    assert ends == [Ended("bad", error="token out of range"), Ended("good", FinishReason.LENGTH)]
    thread.stop()


def test_a_bug_on_the_thread_answers_its_jobs_and_is_told() -> None:
    class Broke(FakeEngine):
        def step(self) -> Sequence[EngineEvent]:
            events = super().step()
            self.step_seconds = "soon"  # type: ignore[assignment]
            return events

    thread = Thread(Broke())
    thread.replica.post(Post(job()))
    kinds = []
    for event in thread.events():
        kinds.append(type(event))
        if isinstance(event, Broken):
            break
    assert kinds[:2] == [Ready, Started]
    assert kinds[-2:] == [Ended, Broken]
    thread.stop()


def test_commands_and_reports_pickle() -> None:
    reports = []
    replica = Replica(0, FakeEngine(), reports.append, lambda: 1.0)
    replica.load()
    commands = [Post(job()), Cancel("b"), Stop()]
    for command in pickle.loads(pickle.dumps(commands)):
        replica.post(command)
    replica.prepare()
    replica.report(replica.step())
    assert pickle.loads(pickle.dumps(reports)) == reports
    assert any(report.tokens for report in reports)


async def test_the_event_loop_stays_free_while_the_engine_works() -> None:
    """Inference on the event loop would deadlock here: the gate is opened from the loop."""
    engine = GatedEngine()
    scheduler = Scheduler(
        lambda deliver, clock: [Replica(0, engine, deliver, clock)], SchedulerLimits(8, 60.0, 30.0), Metrics()
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(scheduler.run)
        await until(lambda: scheduler.readiness().status == "ready")
        with scheduler.submit([Generation((Segment("a", True),), 2)], "r") as ticket:
            await trio.to_thread.run_sync(engine.stepping.wait, WAIT)
            assert threading.get_ident() not in engine.threads
            for _ in range(2):
                engine.gate.release()
            (update,) = await ticket.receive()
            while update.reason is None:
                (update,) = await ticket.receive()
            assert update.reason is FinishReason.LENGTH
        scheduler.stop()
    assert engine.closed.is_set()


@pytest.mark.parametrize("replicas", [2, 3])
async def test_replicas_step_at_the_same_time(replicas: int) -> None:
    """Each step waits until all replicas are in one: on a single thread that would never happen."""
    meeting = threading.Barrier(replicas)

    class Meeting(FakeEngine):
        def step(self) -> Sequence[EngineEvent]:
            meeting.wait(WAIT)
            return super().step()

    scheduler = Scheduler(
        lambda deliver, clock: [Replica(i, Meeting(slots=1), deliver, clock) for i in range(replicas)],
        SchedulerLimits(4 + replicas, 60.0, 30.0),
        Metrics(),
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(scheduler.run)
        await until(lambda: scheduler.statistics().replicas_ready == replicas)
        tickets = [scheduler.submit([Generation((Segment("a", True),), 1)], "r") for _ in range(replicas)]
        for ticket in tickets:
            assert (await ticket.receive())[0].error is None
        scheduler.stop()
