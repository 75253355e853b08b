"""The prefix cache on the real model: whatever is shared, evicted or cancelled, every text is that of a cold engine."""

import random
from collections import defaultdict
from pathlib import Path

import pytest
from attrs import evolve

from slim.engines.llama_cpp import LlamaEngine, LlamaOptions
from slim.types import EngineJob, Sampling, Segment
from support.engine_contract import Output, run_one, step
from support.smollm2 import gemma_path, smollm2_path

CHUNK = 128


def make_engine(slots: int, path: Path | None = None) -> LlamaEngine:
    options = LlamaOptions(
        model_path=path or smollm2_path(), slots=slots, context=512, threads=2, prefill_chunk=CHUNK, prompt_cache=2**24
    )
    engine = LlamaEngine(options)
    engine.load()
    return engine


def random_jobs(engine: LlamaEngine, count: int, draw: random.Random) -> list[EngineJob]:
    """Prompts of some common beginnings, cut anywhere, with ends of their own."""
    text = engine.tokenizer.encode([Segment("The quick brown fox jumps over a lazy dog by the river. " * 30, False)])
    vocabulary = sorted(set(text))
    beginnings = [tuple(draw.choices(vocabulary, k=300)) for _ in range(2 + count // 200)]
    return [
        EngineJob(
            str(number),
            (
                *draw.choice(beginnings)[: draw.choice((0, 20, 64, 100, 130, 200, 300))],
                *draw.choices(vocabulary, k=draw.randint(1, 90)),
            ),
            8,
            Sampling(0.0) if number % 2 else Sampling(0.9, top_k=40, seed=number),
        )
        for number in range(count)
    ]


@pytest.mark.parametrize("count", [8, pytest.param(500, marks=pytest.mark.slow)])
def test_cached_text_is_the_text_of_a_cold_engine(count: int) -> None:
    """Six slots and 16 MiB, so that slots are taken and states evicted all the time; every seventh job is cancelled."""
    draw, engine, cold = random.Random(count), make_engine(6), make_engine(1)
    jobs = random_jobs(engine, count, draw)
    outputs: dict[str, Output] = defaultdict(Output)
    waiting, running, cancelled = list(jobs), set[str](), set[str]()
    while waiting or running:
        for one in list(waiting):
            if len(running) < 6 and not engine.waits(one):
                waiting.remove(one)
                engine.add(one)
                running.add(one.id)
        step(engine, outputs)
        running -= {name for name in running if outputs[name].ended}
        for name in [name for name in running if int(name) % 7 == 3 and draw.random() < 0.3]:
            engine.cancel(name)
            running.discard(name)
            cancelled.add(name)
    assert sum(output.cached for output in outputs.values()) > 20 * count
    for one in jobs:
        if one.id not in cancelled:
            assert outputs[one.id].ids == run_one(cold, evolve(one, cache_prompt=False)).ids, one.id
    engine.close()
    cold.close()


def relatives(engine: LlamaEngine) -> list[EngineJob]:
    """A prompt, one that goes on from it, one that it begins with, one that leaves it midway, another, and it again."""
    ids = engine.tokenizer.encode([Segment("The quick brown fox jumps over a lazy dog by the river. " * 30, False)])
    first, other = ids[:200], ids[1:]
    prompts = (first, ids[:230], first[:120], (*first[:150], *other[:60]), other[40:150], first)
    return [EngineJob(str(number), tokens, 1, Sampling(0.0), logprobs=0) for number, tokens in enumerate(prompts)]


def first_scores(engine: LlamaEngine, **change: bool) -> tuple[list[int], list[float | None], list[int]]:
    """Of the first token of each relative its id and its score, and how many prompt tokens were not computed."""
    outputs = [run_one(engine, evolve(one, **change)) for one in relatives(engine)]
    return [o.ids[0] for o in outputs], [o.scores[0].logprob for o in outputs], [o.cached for o in outputs]


@pytest.mark.parametrize("slots", [1, 3])
def test_c147_what_is_reused_is_the_beginning_of_the_prompt(slots: int) -> None:
    engine = make_engine(slots)
    cold, warm = first_scores(engine, cache_prompt=False), first_scores(engine)
    engine.close()
    assert cold[2] == [0] * 6
    assert warm[2][0] == 0
    assert all(warm[2][number] > 50 for number in (1, 2, 3, 5))
    assert warm[:2] == cold[:2]


@pytest.mark.slow
def test_c147_a_sliding_window_is_whole_after_a_cut(tmp_path: Path) -> None:
    """Gemma's weights have kernels that depend on the number of rows, so its scores agree only roughly."""
    engine = make_engine(2, gemma_path(tmp_path))
    cold, warm = first_scores(engine, cache_prompt=False), first_scores(engine)
    engine.close()
    assert any(warm[2])
    assert warm[0] == cold[0]
    assert warm[1] == pytest.approx(cold[1], abs=0.4)
