"""The scheduler in virtual time: real policy, job tasks and replica logic over fake engines of one second a step."""

from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from slim.engines.fake import FakeEngine, JobFault
from slim.errors import (
    ContextLengthExceeded,
    DeadlineExceeded,
    Draining,
    EngineFailed,
    ModelFailed,
    ModelLoading,
    Overloaded,
    RequestCancelled,
    SlimError,
    Stalled,
)
from slim.scheduler import Ticket
from slim.types import FinishReason, Generation, Segment, Usage
from support.in_process import World, world


def ask(max_tokens: int = 4, prompt: str = "a prompt", stop: tuple[str, ...] = (), **more: Any) -> Generation:
    return Generation((Segment(prompt, True),), max_tokens, stop=stop, **more)


def engine(slots: int = 4, **options: object) -> FakeEngine:
    return FakeEngine(slots=slots, step_seconds=lambda *_: 1.0, **options)  # type: ignore[arg-type]


async def read(ticket: Ticket) -> tuple[str, FinishReason | SlimError, Usage]:
    text = ""
    while True:
        (update,) = await ticket.receive()
        text += "".join(update.pieces)
        end = update.reason or update.error
        if end is not None:
            return text, end, ticket.usage


async def run(w: World, request: Generation, request_id: str = "r") -> tuple[str, FinishReason | SlimError, Usage]:
    with w.scheduler.submit([request], request_id) as ticket:
        return await read(ticket)


async def settle(seconds: float) -> None:
    """Let virtual time pass, and everything that is due happen."""
    await trio.sleep(seconds)
    await wait_all_tasks_blocked()


async def test_a_job_runs_to_its_token_limit(autojump_clock: MockClock) -> None:
    async with world() as w:
        text, end, usage = await run(w, ask(3))
        assert end is FinishReason.LENGTH
        assert len(text.split()) == 3
        assert usage == Usage(prompt_tokens=3, completion_tokens=3)
        assert trio.current_time() == pytest.approx(3.0, abs=0.1)
        assert w.metric("slm_requests_total", outcome="ok") == 1


async def test_many_jobs_decode_together_in_one_step(autojump_clock: MockClock) -> None:
    async with world([engine(4)]) as w, trio.open_nursery() as nursery:
        began = trio.current_time()
        for i in range(4):
            nursery.start_soon(run, w, ask(5, f"prompt {i}"))
        await settle(2.5)
        assert w.scheduler.statistics().running == 4
        while w.scheduler.statistics().running:
            await settle(0.5)
        assert trio.current_time() - began < 7  # one after the other it would take 20


async def test_a_new_job_joins_the_running_batch(autojump_clock: MockClock) -> None:
    async with world([engine(4)]) as w, trio.open_nursery() as nursery:
        nursery.start_soon(run, w, ask(50, "long"))
        await settle(10)
        began = trio.current_time()
        await run(w, ask(2, "short"))
        assert trio.current_time() - began < 4
        nursery.cancel_scope.cancel()


async def test_jobs_start_in_order_of_arrival(autojump_clock: MockClock) -> None:
    ended: list[int] = []

    async with world([engine(1)], max_batch=1, max_queue_size=8) as w, trio.open_nursery() as nursery:

        async def job(number: int) -> None:
            await run(w, ask(2))
            ended.append(number)

        for i in range(6):
            nursery.start_soon(job, i)
            await wait_all_tasks_blocked()
    assert ended == list(range(6))


async def test_two_replicas_work_in_parallel(autojump_clock: MockClock) -> None:
    async with world([engine(1), engine(1)], max_batch=1) as w, trio.open_nursery() as nursery:
        began = trio.current_time()
        for _ in range(2):
            nursery.start_soon(run, w, ask(10))
        await settle(1.5)
        assert w.scheduler.statistics().running == 2
        while w.scheduler.statistics().running:
            await settle(0.5)
        assert trio.current_time() - began < 13


async def test_a_full_system_refuses_at_once_with_a_hint(autojump_clock: MockClock) -> None:
    async with world([engine(1)], max_batch=1, max_queue_size=2) as w:
        tickets = [w.scheduler.submit([ask(100)], "r") for _ in range(3)]
        await settle(1)
        before = trio.current_time()
        with pytest.raises(Overloaded) as refused:
            w.scheduler.submit([ask()], "r")
        assert trio.current_time() == before
        assert 0 < (refused.value.retry_after or 0) <= 60
        assert w.metric("slm_rejected_total", reason="queue_full") == 1
        for ticket in tickets:
            ticket.cancel()


async def test_without_a_queue_only_the_slots_are_places(autojump_clock: MockClock) -> None:
    async with world([engine(1)], max_batch=1, max_queue_size=0) as w:
        with w.scheduler.submit([ask(3)], "r") as ticket:
            with pytest.raises(Overloaded):
                w.scheduler.submit([ask()], "r")
            await read(ticket)
        assert (await run(w, ask(1)))[1] is FinishReason.LENGTH


@pytest.mark.parametrize("when", [0.0, 0.5, 5.0])
async def test_a_cancelled_job_gives_its_place_back_at_once(autojump_clock: MockClock, when: float) -> None:
    """Reserved (its prompt is being tokenized), posted or in its first step, and decoding."""
    async with world([engine(1)], max_batch=1, max_queue_size=0) as w:
        ticket = w.scheduler.submit([ask(100)], "r")
        if when:
            await settle(when)
        ticket.cancel()
        second = w.scheduler.submit([ask(2)], "r")
        assert (await read(ticket))[1].__class__ is RequestCancelled
        assert (await read(second))[1] is FinishReason.LENGTH
        assert w.metric("slm_requests_total", outcome="cancelled") == 1


async def test_a_queued_job_that_is_cancelled_never_runs_and_holds_no_place(autojump_clock: MockClock) -> None:
    async with world([engine(1)], max_batch=1, max_queue_size=2) as w:
        running = w.scheduler.submit([ask(20, "first")], "r")
        await settle(1)
        posted, queued = (w.scheduler.submit([ask(5, "never")], "r") for _ in range(2))
        await settle(1)
        for ticket in (posted, queued):
            ticket.cancel()
        live = w.scheduler.submit([ask(3, "live")], "r")
        assert (await read(running))[1] is FinishReason.LENGTH
        assert (await read(live))[1] is FinishReason.LENGTH
        assert w.metric("slm_generated_tokens_total") == 23
        assert w.metric("slm_tokens_wasted_total") == 0


async def test_a_running_job_stops_within_one_step_of_its_cancel(autojump_clock: MockClock) -> None:
    async with world([engine(1)], max_batch=1) as w:
        ticket = w.scheduler.submit([ask(1000)], "r")
        await settle(5.5)
        assert w.engines[0].kv_used > 0
        ticket.cancel()
        await settle(1.5)
        assert w.engines[0].kv_used == 0
        assert w.scheduler.statistics().running == 0
        assert w.metric("slm_cancel_latency_seconds_count") == 1
        assert w.metric("slm_cancel_latency_seconds_sum") <= 1.0
        wasted = w.metric("slm_tokens_wasted_total")
        await settle(20)
        assert w.metric("slm_tokens_wasted_total") == wasted == w.metric("slm_generated_tokens_total")


async def test_a_job_that_ends_as_its_client_leaves_is_no_cancel_of_the_engine(autojump_clock: MockClock) -> None:
    """Its end is reported, but not read yet, when the client leaves."""
    async with world([engine(1)], max_batch=1) as w:
        ticket = w.scheduler.submit([ask(3)], "r")
        await settle(1.5)
        replica = w.replicas[0]
        replica.hang = True
        await settle(1)
        replica.report(replica.step())
        ticket.cancel()
        await settle(1)
        assert w.metric("slm_requests_total", outcome="cancelled") == 1
        assert w.metric("slm_cancel_latency_seconds_count") == 0


async def test_a_prefill_is_cancelled_between_its_chunks(autojump_clock: MockClock) -> None:
    async with world([engine(1, prefill_chunk=2)], max_batch=1) as w:
        ticket = w.scheduler.submit([ask(5, "word " * 100)], "r")
        await settle(10.5)
        held = w.engines[0].kv_used
        assert 0 < held < 100
        ticket.cancel()
        await settle(1.5)
        assert w.engines[0].kv_used == 0
        assert w.metric("slm_generated_tokens_total") == 0


async def test_a_deadline_ends_a_running_job_and_frees_its_slot(autojump_clock: MockClock) -> None:
    async with world([engine(1)], max_batch=1, request_timeout_s=5.0) as w:
        text, end, _ = await run(w, ask(100))
        assert isinstance(end, DeadlineExceeded)
        assert 3 <= len(text.split()) <= 5
        await settle(1.5)
        assert w.engines[0].kv_used == 0
        assert w.metric("slm_requests_total", outcome="timeout") == 1


async def test_a_deadline_in_the_queue_means_that_the_job_never_runs(autojump_clock: MockClock) -> None:
    async with world([engine(1)], max_batch=1, request_timeout_s=5.5) as w:
        for ticket in [w.scheduler.submit([ask(100)], "r") for _ in range(3)]:
            assert isinstance((await read(ticket))[1], DeadlineExceeded)
        await settle(3)
        assert w.metric("slm_generated_tokens_total") == 6
        assert w.metric("slm_requests_total", outcome="timeout") == 3
        assert w.metric("slm_queue_wait_seconds_count") == 1


async def test_a_deadline_is_kept_while_the_prompt_is_tokenized(autojump_clock: MockClock) -> None:
    async with world([engine(1)], request_timeout_s=5.0) as w:
        w.preparing.seconds = 60.0
        assert isinstance((await run(w, ask()))[1], DeadlineExceeded)
        assert trio.current_time() == pytest.approx(5.0)
        assert w.scheduler.statistics().queued == 0


async def test_a_reader_that_does_not_read_holds_no_slot(autojump_clock: MockClock) -> None:
    async with world([engine(1)], max_batch=1) as w:
        with w.scheduler.submit([ask(20)], "r") as ticket:
            await settle(30)
            assert w.scheduler.statistics().running == 0
            assert w.metric("slm_requests_total", outcome="ok") == 1
            (update,) = await ticket.receive()
            assert len(update.pieces) == 20
            assert update.reason is FinishReason.LENGTH


async def test_a_stop_string_ends_the_job_and_the_engine_stops_working(autojump_clock: MockClock) -> None:
    script = [b"alpha ", b"be", b"ta ga", b"mma", *[b" more"] * 100]
    async with world([engine(1, script=script)], max_batch=1) as w:
        text, end, usage = await run(w, ask(100, stop=("beta gamma",)))
        assert (text, end) == ("alpha ", FinishReason.STOP)
        assert usage.completion_tokens == 4
        await settle(5)
        assert w.engines[0].kv_used == 0
        assert w.metric("slm_generated_tokens_total") == 4


async def test_a_stop_string_may_be_completed_by_the_end(autojump_clock: MockClock) -> None:
    async with world([engine(1, script=[b"ab", b"\xf0\x9f"])]) as w:
        text, end, _ = await run(w, ask(2, stop=("b\ufffd",)))
        assert (text, end) == ("a", FinishReason.STOP)


async def test_text_that_was_held_back_comes_out_at_the_end(autojump_clock: MockClock) -> None:
    async with world([engine(1, script=[b"one", b" be", b"\xf0\x9f\x98", b"\x80", b" tw"])]) as w:
        text, end, usage = await run(w, ask(100, stop=(" two",)))
        assert (text, end) == ("one be\N{GRINNING FACE} tw", FinishReason.STOP)
        assert usage.completion_tokens == 5


async def test_a_fault_of_one_job_leaves_the_others_alone(autojump_clock: MockClock) -> None:
    fake = engine(2)
    async with world([fake]) as w:
        good = w.scheduler.submit([ask(10)], "r")
        await settle(2)
        fake.script = [b"a", JobFault("no such thing")]
        _, end, _ = await run(w, ask(10))
        assert isinstance(end, EngineFailed)
        assert end.cause == "no such thing"
        assert "no such thing" not in str(end)
        assert (await read(good))[1] is FinishReason.LENGTH
        assert w.metric("slm_requests_total", outcome="engine_error") == 1


async def test_a_broken_step_fails_its_jobs_and_the_replica_serves_on(autojump_clock: MockClock) -> None:
    fake = engine(2, script=[b"a", RuntimeError("decode failed")])
    async with world([fake]) as w:
        tickets = [w.scheduler.submit([ask(10)], "r") for _ in range(2)]
        for ticket in tickets:
            assert isinstance((await read(ticket))[1], EngineFailed)
        fake.script = None
        assert (await run(w, ask(3)))[1] is FinishReason.LENGTH
        assert w.scheduler.readiness().status == "ready"


async def test_two_broken_steps_within_a_minute_end_the_replica(autojump_clock: MockClock) -> None:
    async with world([engine(1, script=[RuntimeError("decode failed")])], max_batch=1) as w:
        tickets = [w.scheduler.submit([ask(10)], "r") for _ in range(4)]
        for ticket in tickets:
            assert isinstance((await read(ticket))[1], EngineFailed | ModelFailed)
        assert w.scheduler.readiness().status == "failed"
        assert "decode failed" in (w.scheduler.readiness().error or "")
        with pytest.raises(ModelFailed):
            w.scheduler.submit([ask()], "r")
        assert w.metric("slm_requests_total", outcome="engine_error") == 4


async def test_broken_steps_more_than_a_minute_apart_do_not_end_the_replica(autojump_clock: MockClock) -> None:
    async with world([engine(1, script=[RuntimeError("decode failed")])], max_batch=1) as w:
        for _ in range(3):
            assert isinstance((await run(w, ask()))[1], EngineFailed)
            await settle(61)
        assert w.scheduler.readiness().status == "ready"


async def test_a_failed_replica_leaves_the_work_to_the_others(autojump_clock: MockClock) -> None:
    async with world([engine(1, load_error="bad file"), engine(1)], max_batch=1) as w:
        assert w.scheduler.readiness().status == "ready"
        assert w.scheduler.statistics().replicas_ready == 1
        assert (await run(w, ask(3)))[1] is FinishReason.LENGTH


async def test_a_model_that_does_not_load_is_failed_and_says_why(autojump_clock: MockClock) -> None:
    async with world([engine(load_error="bad magic")]) as w:
        assert w.scheduler.readiness().status == "failed"
        with pytest.raises(ModelFailed, match="bad magic"):
            w.scheduler.submit([ask()], "r")
        assert w.metric("slm_rejected_total", reason="not_ready") == 1


async def test_a_step_that_hangs_is_reported_as_stalled_until_it_returns(autojump_clock: MockClock) -> None:
    async with world([engine(1)], max_batch=1, max_queue_size=2, stall_s=10.0, request_timeout_s=300.0) as w:
        with w.scheduler.submit([ask(3)], "r") as ticket:
            await settle(1.5)
            w.replicas[0].hang = True
            await settle(9)
            assert w.scheduler.readiness().status == "ready"
            await settle(5)
            assert w.scheduler.readiness().status == "stalled"
            with pytest.raises(Stalled):
                w.scheduler.submit([ask()], "r")
            w.replicas[0].hang = False
            w.replicas[0].news.set()
            assert (await read(ticket))[1] is FinishReason.LENGTH
            assert w.scheduler.readiness().status == "ready"


LONG_PROMPT = "one two three four five six seven eight nine ten"


async def test_a_prompt_that_takes_long_is_no_stall(autojump_clock: MockClock) -> None:
    async with world([engine(1, prefill_chunk=1)], stall_s=10.0) as w:
        with w.scheduler.submit([ask(1, LONG_PROMPT)], "r"):
            for _ in range(18):
                await settle(1.0)
                assert w.scheduler.readiness().status == "ready"


async def test_the_cache_of_a_prompt_is_counted_while_it_is_computed(autojump_clock: MockClock) -> None:
    async with world([engine(1, prefill_chunk=1)]) as w:
        with w.scheduler.submit([ask(1, LONG_PROMPT)], "r"):
            await settle(8.5)
            assert w.scheduler.statistics().kv_used == 8


async def test_jobs_that_wait_for_a_prefix_hold_no_slot(autojump_clock: MockClock) -> None:
    """Eight that begin alike leave a second slot to another; and they compute their beginning once."""
    alike = "word " * 300
    async with world([engine(2, prefill_chunk=100)], max_batch=2, max_queue_size=10) as w:
        tickets = [w.scheduler.submit([ask(1, alike + str(number))], "r") for number in range(8)]
        await settle(1.5)
        assert w.scheduler.statistics().running == 1
        other = w.scheduler.submit([ask(1, "another one")], "r")
        await settle(2)
        assert w.scheduler.statistics().running == 2
        for ticket in (other, *tickets):
            assert (await read(ticket))[1] is FinishReason.LENGTH
        assert [ticket.timings(0).cached_tokens >= 500 for ticket in tickets] == [False] + [True] * 7


async def test_a_conversation_goes_on_where_it_was_computed(autojump_clock: MockClock) -> None:
    async def cached(w: World, prompt: str, **more: Any) -> int:
        with w.scheduler.submit([ask(1, prompt, **more)], "r") as ticket:
            await read(ticket)
            return ticket.timings(0).cached_tokens

    prompt = "word " * 100
    async with world([engine(3, context=1000), engine(3, context=1000)], max_batch=3) as w:
        busy, other = [w.scheduler.submit([ask(50)], "r") for _ in range(2)]  # one on each replica
        await settle(1.5)
        assert await cached(w, prompt) == 0
        other.cancel()  # the replica that does not know the prompt is now the idler one
        await settle(1.5)
        assert await cached(w, prompt + "and more ", cache_prompt=False) == 0
        assert await cached(w, prompt + "and more ") == 204 - 64  # the rest is computed in one part of 64 or more
        assert await cached(w, "something else") == 0
        busy.cancel()


async def test_an_idle_server_is_never_stalled(autojump_clock: MockClock) -> None:
    async with world([engine(1)], stall_s=10.0) as w:
        await run(w, ask(2))
        await settle(1000)
        assert w.scheduler.readiness().status == "ready"


async def test_a_prompt_that_fills_the_context_is_refused_and_its_place_is_free(autojump_clock: MockClock) -> None:
    async with world([engine(1, context=11)], max_batch=1, max_queue_size=0) as w:
        _, end, _ = await run(w, ask(10, "one two three four five six"))  # 11 tokens with the spaces
        assert isinstance(end, ContextLengthExceeded)
        assert "11 tokens" in str(end)
        _, finish, usage = await run(w, ask(10, "one two three four five "))
        assert (finish, usage.prompt_tokens, usage.completion_tokens) == (FinishReason.LENGTH, 10, 1)
        assert sum(w.metric("slm_requests_total", outcome=o) for o in ("ok", "engine_error", "cancelled")) == 1


async def test_drain_ends_what_waits_and_lets_what_runs_finish(autojump_clock: MockClock) -> None:
    async with world([engine(1)], max_batch=1) as w:
        running = w.scheduler.submit([ask(5)], "r")
        await settle(1.5)
        waiting = [w.scheduler.submit([ask(5)], "r") for _ in range(2)]
        await settle(0.1)
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(w.scheduler.drain, 10.0)
            for ticket in waiting:
                assert isinstance((await read(ticket))[1], Draining)
            assert trio.current_time() == began
            assert w.scheduler.readiness().status == "draining"
            with pytest.raises(Draining):
                w.scheduler.submit([ask()], "r")
            assert (await read(running))[1] is FinishReason.LENGTH
        assert trio.current_time() - began < 6
        assert w.metric("slm_requests_total", outcome="shutdown") == 2
        assert w.metric("slm_rejected_total", reason="draining") == 1


async def test_drain_cuts_what_is_still_running_after_its_budget(autojump_clock: MockClock) -> None:
    async with world([engine(1)], max_batch=1) as w:
        running = w.scheduler.submit([ask(1000)], "r")
        await settle(1.5)
        began = trio.current_time()
        await w.scheduler.drain(10.0)
        assert trio.current_time() - began == pytest.approx(10.0)
        assert isinstance((await read(running))[1], Draining)


async def test_every_job_ends_once_and_all_gauges_return_to_zero(autojump_clock: MockClock) -> None:
    import random

    rng = random.Random(7)
    ends: list[object] = []
    async with world([engine(3), engine(3)], max_batch=3, max_queue_size=10, request_timeout_s=12.0) as w:

        async def one() -> None:
            await trio.sleep(rng.uniform(0, 100))
            try:
                with w.scheduler.submit([ask(rng.randint(1, 20), "word " * rng.randint(1, 300))], "r") as ticket:
                    with trio.move_on_after(rng.choice([1, 3, 1000])) as scope:
                        ends.append((await read(ticket))[1])
                    if scope.cancelled_caught:
                        ends.append("left")
            except Overloaded:
                ends.append("refused")

        async with trio.open_nursery() as nursery:
            for _ in range(500):
                nursery.start_soon(one)
        await settle(5)
        outcomes = {o: w.metric("slm_requests_total", outcome=o) for o in ("ok", "timeout", "cancelled")}
        refused = w.metric("slm_rejected_total", reason="queue_full")
        assert len(ends) == 500 == sum(outcomes.values()) + refused
        assert min(*outcomes.values(), refused) > 0
        now = w.scheduler.statistics()
        assert (now.queued, now.running, now.kv_used) == (0, 0, 0)
        assert all(fake.kv_used == 0 for fake in w.engines)


async def test_loading_is_refused_with_a_hint() -> None:
    """With a real thread that is held back, because loading has no virtual time."""
    import threading

    from slim.engines.replica import Replica
    from slim.metrics import Metrics
    from slim.scheduler import Scheduler, SchedulerLimits

    gate = threading.Event()

    class SlowToLoad(FakeEngine):
        def load(self):  # type: ignore[no-untyped-def]
            gate.wait(30)
            return super().load()

    scheduler = Scheduler(
        lambda deliver, clock: [Replica(0, SlowToLoad(), deliver, clock)], SchedulerLimits(8, 60.0, 30.0), Metrics()
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(scheduler.run)
        assert scheduler.readiness().status == "loading"
        with pytest.raises(ModelLoading) as refused:
            scheduler.submit([ask()], "r")
        assert refused.value.retry_after
        gate.set()
        scheduler.stop()
