"""What every engine must do, as functions that take a maker of engines. Knows no backend.

A maker returns an engine that is not loaded yet; whoever gives the maker closes what it made.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, Protocol

import pytest
from attrs import define, field

from slim.engines.base import Engine
from slim.types import (
    EngineJob,
    Failed,
    Finished,
    FinishReason,
    Progress,
    PromptScores,
    Sampling,
    Segment,
    Token,
    TokenScore,
)

GREEDY = Sampling(temperature=0)
PROMPT = "Once upon a time there was a lighthouse keeper who"
OTHER = "The three largest cities of the country are"


class EngineMaker(Protocol):
    def __call__(self, *, slots: int, context: int, prefill_chunk: int) -> Engine: ...


def loaded(make: EngineMaker, *, slots: int = 4, context: int = 256, prefill_chunk: int = 32) -> Engine:
    engine = make(slots=slots, context=context, prefill_chunk=prefill_chunk)
    engine.load()
    return engine


@define
class Output:
    """What one job made."""

    ids: list[int] = field(factory=list)
    data: bytes = b""
    reason: FinishReason | None = None
    error: str | None = None
    unanswerable: bool = False
    progress: list[int] = field(factory=list)
    cached: int = 0
    """Prompt tokens that cost nothing."""
    scores: list[TokenScore] = field(factory=list)
    """Of the output's tokens, where they were asked for."""
    prompt_scores: list[TokenScore] = field(factory=list)

    @property
    def ended(self) -> bool:
        return self.reason is not None or self.error is not None


def job(
    engine: Engine, name: str, text: str = PROMPT, max_tokens: int = 6, sampling: Sampling = GREEDY, **more: Any
) -> EngineJob:
    return EngineJob(name, engine.tokenizer.encode([Segment(text, False)]), max_tokens, sampling, **more)


def step(engine: Engine, into: dict[str, Output]) -> bool:
    """One step, sorted by job. False when nothing ran."""
    events = engine.step()
    for event in events:
        output = into[event.job_id]
        assert not output.ended, "an event after the end"
        match event:
            case Token(_, token_id, data, score):
                output.ids.append(token_id)
                output.data += data
                output.scores += [score] if score is not None else []
            case PromptScores(_, scores):
                assert not output.ids, "the prompt's scores come before the first token"
                output.prompt_scores += scores
            case Finished(_, reason):
                output.reason = reason
            case Progress(_, done, total, cached):
                assert cached < done <= total
                output.progress.append(done)
                output.cached = cached
            case Failed(_, error, unanswerable):
                output.error, output.unanswerable = error, unanswerable
            case _:
                raise AssertionError(event)
    return bool(events)


def run(engine: Engine, jobs: Iterable[EngineJob]) -> dict[str, Output]:
    """Run the jobs together until nothing is left."""
    outputs: dict[str, Output] = defaultdict(Output)
    finish(engine, outputs, jobs)
    return outputs


def finish(engine: Engine, outputs: dict[str, Output], jobs: Iterable[EngineJob] = ()) -> None:
    """Step until nothing is left. Jobs are added as a replica does: those that should wait, later."""
    waiting = list(jobs)
    while True:
        for one in list(waiting):
            if not engine.waits(one):
                waiting.remove(one)
                engine.add(one)
        if not step(engine, outputs):
            assert not waiting, "they wait for nobody"
            return


def run_one(engine: Engine, one: EngineJob) -> Output:
    return run(engine, [one])[one.id]


def an_engine_that_is_not_loaded_holds_nothing(make: EngineMaker) -> None:
    engine = make(slots=2, context=64, prefill_chunk=16)
    assert engine.kv_used == 0
    engine.close()


def load_says_what_the_engine_can_hold(make: EngineMaker) -> None:
    engine = make(slots=2, context=128, prefill_chunk=32)
    info = engine.load()
    assert (info.slots, info.context, info.kv_tokens) == (2, 128, 256)
    assert info.description
    assert (engine.kv_used, engine.step_seconds) == (0, 0)


def more_jobs_than_slots_are_refused(make: EngineMaker) -> None:
    engine = loaded(make, slots=2, prefill_chunk=64)
    outputs: dict[str, Output] = defaultdict(Output)
    for name in "ab":
        engine.add(job(engine, name))
        step(engine, outputs)
    with pytest.raises(RuntimeError):
        engine.add(job(engine, "one too many"))
    finish(engine, outputs)
    assert [outputs[name].ids for name in "ab"] == [run_one(loaded(make), job(engine, "a")).ids] * 2


def a_step_without_jobs_is_empty(make: EngineMaker) -> None:
    engine = loaded(make)
    assert list(engine.step()) == []
    run_one(engine, job(engine, "a"))
    assert list(engine.step()) == []


def every_running_job_gets_one_token_in_each_step(make: EngineMaker) -> None:
    engine = loaded(make, prefill_chunk=128)
    for name in "abc":
        engine.add(job(engine, name))
    for _ in range(4):
        made = [event.job_id for event in engine.step() if isinstance(event, Token)]
        assert sorted(made) == ["a", "b", "c"]


def max_tokens_is_exact_and_ends_in_the_same_step(make: EngineMaker) -> None:
    engine = loaded(make, prefill_chunk=128)
    for limit in (1, 2, 7):
        engine.add(job(engine, "a", max_tokens=limit))
        last = [list(engine.step()) for _ in range(limit)][-1]
        assert [type(event) for event in last if not isinstance(event, Progress)] == [Token, Finished]
        assert last[-1] == Finished("a", FinishReason.LENGTH)
        assert list(engine.step()) == []


def greedy_text_is_always_the_same(make: EngineMaker) -> None:
    engine = loaded(make)
    first = run_one(engine, job(engine, "a", max_tokens=12))
    assert len(first.ids) == 12
    assert run_one(engine, job(engine, "b", max_tokens=12)).ids == first.ids
    assert run_one(loaded(make), job(engine, "a", max_tokens=12)).ids == first.ids


def greedy_ignores_the_seed(make: EngineMaker) -> None:
    engine = loaded(make)
    texts = {run_one(engine, job(engine, "a", sampling=Sampling(0.0, seed=seed))).data for seed in range(3)}
    assert len(texts) == 1


def other_prompts_give_other_texts(make: EngineMaker) -> None:
    engine = loaded(make)
    assert run_one(engine, job(engine, "a", PROMPT)).ids != run_one(engine, job(engine, "a", OTHER)).ids


def a_seed_fixes_the_text(make: EngineMaker) -> None:
    engine = loaded(make)
    for seed in (0, 1, -1, 2**32 - 1, 2**63 - 1, -(2**63)):
        twins = [job(engine, name, sampling=Sampling(1.0, seed=seed)) for name in "ab"]
        first, second = run(engine, twins).values()
        assert first.ids == second.ids, f"seed {seed}"


def other_seeds_give_other_texts(make: EngineMaker) -> None:
    engine = loaded(make)
    for temperature in (1.0, 2.0):
        jobs = [job(engine, str(n), max_tokens=10, sampling=Sampling(temperature, seed=n)) for n in range(3)]
        assert len({tuple(output.ids) for output in run(engine, jobs).values()}) == 3


def a_seeded_job_does_not_depend_on_the_jobs_before_it(make: EngineMaker) -> None:
    engine = loaded(make)
    seeded = job(engine, "a", max_tokens=8, sampling=Sampling(1.0, seed=7))
    alone = run_one(engine, seeded).ids
    run_one(engine, job(engine, "b", max_tokens=5, sampling=Sampling(2.0, seed=8)))
    assert run_one(engine, seeded).ids == alone


def a_late_job_joins_the_running_batch(make: EngineMaker) -> None:
    engine = loaded(make, prefill_chunk=128)
    engine.add(job(engine, "early", max_tokens=6))
    engine.step()
    engine.add(job(engine, "late", OTHER, max_tokens=6))
    assert {event.job_id for event in engine.step() if isinstance(event, Token)} == {"early", "late"}


def progress_is_told_for_every_chunk_of_a_prompt(make: EngineMaker) -> None:
    engine = loaded(make, prefill_chunk=8)
    one = job(engine, "a", " ".join([PROMPT] * 3), max_tokens=1)
    total = len(one.tokens)
    assert total > 16
    output = run_one(engine, one)
    assert output.progress == [*range(8, total, 8), total]


def running_jobs_go_on_while_a_long_prompt_comes_in(make: EngineMaker) -> None:
    engine = loaded(make, prefill_chunk=8)
    engine.add(job(engine, "running", max_tokens=20))
    while not any(isinstance(event, Token) for event in engine.step()):
        pass
    long = job(engine, "long", " ".join([OTHER] * 3))
    engine.add(long)
    for _ in range((len(long.tokens) - 1) // 8):
        events = engine.step()
        assert [event.job_id for event in events if isinstance(event, Token)] == ["running"]
        assert [event.job_id for event in events if isinstance(event, Progress)] == ["long"]


def cancel_frees_the_slot_at_once(make: EngineMaker) -> None:
    engine = loaded(make, slots=1, prefill_chunk=128)
    engine.add(job(engine, "gone", max_tokens=50))
    engine.step()
    engine.cancel("gone")
    assert engine.kv_used == 0
    outputs = run(engine, [job(engine, "next", OTHER)])
    assert set(outputs) == {"next"}
    assert outputs["next"].ids == run_one(loaded(make), job(engine, "next", OTHER)).ids


def cancel_works_within_a_prompt(make: EngineMaker) -> None:
    engine = loaded(make, slots=1, prefill_chunk=8)
    engine.add(job(engine, "gone", " ".join([PROMPT] * 3)))
    engine.step()
    assert engine.kv_used == 8
    engine.cancel("gone")
    assert engine.kv_used == 0
    outputs = run(engine, [job(engine, "next", OTHER)])
    assert set(outputs) == {"next"}
    assert outputs["next"].ids == run_one(loaded(make, prefill_chunk=8), job(engine, "next", OTHER)).ids


def cancel_before_the_first_step_leaves_no_trace(make: EngineMaker) -> None:
    engine = loaded(make)
    engine.add(job(engine, "gone"))
    engine.cancel("gone")
    assert list(engine.step()) == []


def cancelling_an_unknown_job_is_ignored(make: EngineMaker) -> None:
    engine = loaded(make)
    engine.cancel("nobody")
    run_one(engine, job(engine, "a"))
    engine.cancel("a")
    assert len(run_one(engine, job(engine, "a")).ids) == 6


def a_job_that_leaves_does_not_change_the_others(make: EngineMaker) -> None:
    engine = loaded(make)
    alone = run_one(engine, job(engine, "stays", OTHER, max_tokens=10)).ids
    engine.add(job(engine, "gone", max_tokens=50))
    engine.add(job(engine, "stays", OTHER, max_tokens=10))
    outputs: dict[str, Output] = defaultdict(Output)
    for _ in range(4):
        step(engine, outputs)
    engine.cancel("gone")
    while step(engine, outputs):
        pass
    assert outputs["stays"].ids == alone


def slots_are_used_again_for_ever(make: EngineMaker) -> None:
    engine = loaded(make, slots=2)
    expected = run_one(engine, job(engine, "a", max_tokens=3)).ids
    for number in range(5):
        outputs = run(engine, [job(engine, f"{number}{name}", max_tokens=3) for name in "ab"])
        assert [output.ids for output in outputs.values()] == [expected, expected]


def held_tokens_are_counted_and_given_back(make: EngineMaker) -> None:
    engine = loaded(make, prefill_chunk=128)
    one = job(engine, "a", max_tokens=3)
    engine.add(one)
    assert engine.kv_used == 0
    engine.step()
    assert engine.kv_used == len(one.tokens)
    engine.step()
    assert engine.kv_used == len(one.tokens) + 1
    engine.step()
    assert engine.kv_used == 0


def data_joins_to_valid_text(make: EngineMaker) -> None:
    engine = loaded(make)
    assert run_one(engine, job(engine, "a", max_tokens=12)).data.decode("utf-8").strip()


def any_text_has_at_least_one_token(make: EngineMaker) -> None:
    encode = loaded(make).tokenizer.encode
    cases: Sequence[Sequence[Segment]] = ([], [Segment("", False)], [Segment("", True), Segment("", False)])
    for segments in cases:
        assert len(encode(segments)) >= 1
    assert len(encode([Segment("lone \ud800 surrogate \x00", False)])) > 1


def a_prompt_of_an_empty_text_runs(make: EngineMaker) -> None:
    engine = loaded(make)
    assert run_one(engine, job(engine, "a", "", max_tokens=2)).reason is not None


def reset_forgets_every_job_and_works_on(make: EngineMaker) -> None:
    engine = loaded(make, slots=2)
    expected = run_one(engine, job(engine, "a")).ids
    engine.add(job(engine, "b", max_tokens=50))
    engine.add(job(engine, "c", max_tokens=50, sampling=Sampling(1.0, seed=1)))
    engine.step()
    engine.reset()
    assert engine.kv_used == 0
    assert list(engine.step()) == []
    outputs = run(engine, [job(engine, "b"), job(engine, "c")])
    assert [output.ids for output in outputs.values()] == [expected, expected]


def interrupt_does_no_harm_beyond_the_step(make: EngineMaker) -> None:
    """A step that is interrupted may raise or not; after a reset the engine works."""
    engine = loaded(make)
    expected = run_one(engine, job(engine, "a")).ids
    engine.add(job(engine, "b"))
    engine.interrupt()
    with suppress(Exception):
        engine.step()
    engine.reset()
    assert run_one(engine, job(engine, "a")).ids == expected


def close_may_come_twice(make: EngineMaker) -> None:
    engine = loaded(make)
    engine.add(job(engine, "a", sampling=Sampling(1.0)))
    engine.step()
    engine.close()
    engine.close()


CONTRACT = (
    an_engine_that_is_not_loaded_holds_nothing,
    load_says_what_the_engine_can_hold,
    more_jobs_than_slots_are_refused,
    a_step_without_jobs_is_empty,
    every_running_job_gets_one_token_in_each_step,
    max_tokens_is_exact_and_ends_in_the_same_step,
    greedy_text_is_always_the_same,
    greedy_ignores_the_seed,
    other_prompts_give_other_texts,
    a_seed_fixes_the_text,
    other_seeds_give_other_texts,
    a_seeded_job_does_not_depend_on_the_jobs_before_it,
    a_late_job_joins_the_running_batch,
    progress_is_told_for_every_chunk_of_a_prompt,
    running_jobs_go_on_while_a_long_prompt_comes_in,
    cancel_frees_the_slot_at_once,
    cancel_works_within_a_prompt,
    cancel_before_the_first_step_leaves_no_trace,
    cancelling_an_unknown_job_is_ignored,
    a_job_that_leaves_does_not_change_the_others,
    slots_are_used_again_for_ever,
    held_tokens_are_counted_and_given_back,
    data_joins_to_valid_text,
    any_text_has_at_least_one_token,
    a_prompt_of_an_empty_text_runs,
    reset_forgets_every_job_and_works_on,
    interrupt_does_no_harm_beyond_the_step,
    close_may_come_twice,
)
