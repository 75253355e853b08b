"""What the fake engine offers to tests beside the contract: scripts, faults and the time of a step."""

import pytest

from slim.engines.fake import FakeEngine, JobFault
from slim.types import EngineJob, Failed, Finished, FinishReason, Progress, Sampling, Token


def make_job(name: str, prompt: tuple[int, ...] = (1, 2, 3), max_tokens: int = 5) -> EngineJob:
    return EngineJob(name, prompt, max_tokens, Sampling(temperature=0))


def told(engine: FakeEngine, steps: int) -> list[bytes | Finished | Failed]:
    """The tokens' bytes and the ends of so many steps, in order."""
    events = [event for _ in range(steps) for event in engine.step() if not isinstance(event, Progress)]
    return [event.data if isinstance(event, Token) else event for event in events]


def test_the_words_are_the_same_in_every_process() -> None:
    engine = FakeEngine()
    engine.add(make_job("a", max_tokens=3))
    assert told(engine, 3) == [b" north", b" vale", b" heath", Finished("a", FinishReason.LENGTH)]


def test_a_script_is_played_to_every_job_and_ends_with_stop() -> None:
    engine = FakeEngine(script=[b"\xf0\x9f", b"\x98\x80", b""])
    for name in "ab":
        engine.add(make_job(name))
        assert told(engine, 4) == [b"\xf0\x9f", b"\x98\x80", b"", Finished(name, FinishReason.STOP)]


def test_max_tokens_cuts_a_script() -> None:
    engine = FakeEngine(script=[b"a", b"b", b"c"])
    engine.add(make_job("a", max_tokens=2))
    assert told(engine, 3) == [b"a", b"b", Finished("a", FinishReason.LENGTH)]


def test_a_job_fault_fails_that_job_alone() -> None:
    engine = FakeEngine(script=[b"a", JobFault("bad luck")])
    engine.add(make_job("a"))
    engine.script = None
    engine.add(make_job("b", max_tokens=2))
    last = told(engine, 2)[2:]
    assert last[0] == Failed("a", "bad luck")
    assert last[-1] == Finished("b", FinishReason.LENGTH)
    assert engine.kv_used == 0


def test_any_other_exception_breaks_the_step_and_reset_forgets_it() -> None:
    engine = FakeEngine(script=[b"a", OSError("broken")])
    engine.add(make_job("a"))
    engine.step()
    with pytest.raises(OSError, match="broken"):
        engine.step()
    engine.reset()
    assert engine.step() == []
    engine.script = [b"b"]
    engine.add(make_job("a"))
    assert told(engine, 2) == [b"b", Finished("a", FinishReason.STOP)]


def test_a_load_can_fail() -> None:
    engine = FakeEngine(load_error="no such model")
    with pytest.raises(RuntimeError, match=r"^no such model$"):
        engine.load()
    engine.close()


def test_a_step_says_what_it_took() -> None:
    engine = FakeEngine(prefill_chunk=4, step_seconds=lambda batch, prefill: batch + prefill / 100)
    engine.add(make_job("a", prompt=(1,)))
    engine.add(make_job("b", prompt=(1,) * 6, max_tokens=1))
    owed = []
    for _ in range(3):
        engine.step()
        owed.append(engine.step_seconds)
    assert owed == pytest.approx([0.04, 1.03, 1.0])
    engine.cancel("a")
    engine.step()
    assert engine.step_seconds == 0
