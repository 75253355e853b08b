"""The embedding engines: llama.cpp with real weights and with a tiny encoder, and the fake one."""

import math
import operator
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from slim.engines.base import Engine
from slim.engines.fake_embedding import FakeEmbeddingEngine
from slim.types import Embedding, EngineEvent, EngineJob, Failed, Finished, FinishReason, Progress, Segment
from support.smollm2 import smollm2_path

TEXTS = (
    "A cat sat on the mat.",
    "cat",
    "def fibonacci(n):\n    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)",
    "The quick brown fox jumps over the lazy dog, runs away from the wolf and hides in the forest until dawn.",
    "漢字かな 😀",
    "a" + " " * 128 + "b",
    "Yes",
    "In the year 2050",
)

Maker = Callable[..., Engine]


def make_fake(*, slots: int = 8, context: int = 256, prefill_chunk: int = 128) -> Engine:
    return FakeEmbeddingEngine(slots=slots, context=context, prefill_chunk=prefill_chunk)


def make_llama(
    *, slots: int = 8, context: int = 256, prefill_chunk: int = 128, pooling: str = "auto", path: Path | None = None
) -> Engine:
    path = path or smollm2_path()
    from slim.engines.llama_cpp import LlamaOptions
    from slim.engines.llama_cpp.embedding import LlamaEmbeddingEngine

    options = LlamaOptions(model_path=path, slots=slots, context=context, threads=1, prefill_chunk=prefill_chunk)
    return LlamaEmbeddingEngine(options, pooling)


@pytest.fixture
def made() -> Iterator[list[Engine]]:
    engines: list[Engine] = []
    yield engines
    for engine in engines:
        engine.close()


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that loads in no time."""
    pytest.importorskip("llama_cpp", exc_type=ImportError)
    from support import tiny_bert

    return tiny_bert.write_model(tmp_path_factory.mktemp("bert") / "bert.gguf", tiny_bert.make_weights(), 1)


@pytest.fixture(params=["fake", "llama"])
def make(request: pytest.FixtureRequest, made: list[Engine]) -> Maker:
    def loaded(**options: Any) -> Engine:
        if request.param == "fake":
            engine = make_fake(**options)
        else:
            engine = make_llama(path=request.getfixturevalue("encoder"), **options)
        made.append(engine)
        engine.load()
        return engine

    return loaded


@pytest.fixture(scope="module")
def llama() -> Iterator[Engine]:
    engine = make_llama()
    engine.load()
    yield engine
    engine.close()


def job(engine: Engine, name: str, text: str = TEXTS[0]) -> EngineJob:
    return EngineJob(name, engine.tokenizer.encode([Segment(text, False)]), max_tokens=0)


def run(engine: Engine, jobs: Sequence[EngineJob] = ()) -> tuple[dict[str, tuple[float, ...]], list[EngineEvent]]:
    """Run until nothing is left. The vectors by job, and all events."""
    for one in jobs:
        engine.add(one)
    vectors, events = {}, list[EngineEvent]()
    while new := engine.step():
        events += new
    for event in events:
        assert not isinstance(event, Failed), event
        if isinstance(event, Embedding):
            assert event.job_id not in vectors
            vectors[event.job_id] = event.vector
    return vectors, events


def cosine(one: Sequence[float], other: Sequence[float]) -> float:
    return sum(map(operator.mul, one, other)) / math.hypot(*one) / math.hypot(*other)


def test_the_engine_says_that_it_embeds_and_what_it_can_hold(made: list[Engine]) -> None:
    for engine, size in ((make_fake(slots=3, context=128), 32), (make_llama(slots=3, context=128), 576)):
        made.append(engine)
        info = engine.load()
        assert (info.embedding_size, info.slots, info.context) == (size, 3, 128)
        assert info.description


@pytest.mark.parametrize("kind", ["fake", "llama"])
def test_each_text_gets_progress_one_vector_of_length_one_and_its_end(
    kind: str, made: list[Engine], request: pytest.FixtureRequest
) -> None:
    if kind == "llama":
        engine = request.getfixturevalue("llama")
    else:
        made.append(engine := make_fake())
        engine.load()
    jobs = [job(engine, str(number), text) for number, text in enumerate(TEXTS)]
    vectors, events = run(engine, jobs)
    for one in jobs:
        own = [event for event in events if event.job_id == one.id]
        assert own == [
            Progress(one.id, len(one.tokens), len(one.tokens)),
            Embedding(one.id, vectors[one.id]),
            Finished(one.id, FinishReason.STOP),
        ]
        assert math.hypot(*vectors[one.id]) == pytest.approx(1, abs=1e-5)
    assert len(set(vectors.values())) == len(TEXTS)
    assert engine.kv_used == 0


def test_a_step_takes_whole_texts_within_its_budget_in_order(make: Maker) -> None:
    engine = make(prefill_chunk=20)
    jobs = [EngineJob(str(n), (5,) * length, max_tokens=0) for n, length in enumerate((8, 8, 8, 50, 1))]
    for one in jobs:
        engine.add(one)
    steps = []
    while events := engine.step():
        steps.append([event.job_id for event in events if isinstance(event, Finished)])
    assert steps == [["0", "1"], ["2"], ["3"], ["4"]]


def test_the_longest_text_fills_the_context_and_a_longer_one_is_refused(make: Maker) -> None:
    engine = make(context=64, prefill_chunk=16)
    assert len(run(engine, [EngineJob("a", (5, 6) * 32, max_tokens=0)])[0]) == 1
    with pytest.raises(ValueError, match="65 tokens don't fit in 64"):
        engine.add(EngineJob("b", (5,) * 65, max_tokens=0))
    with pytest.raises(ValueError, match="fit"):
        engine.add(EngineJob("c", (), max_tokens=0))


@pytest.mark.parametrize("tokens", [(-1,), (0, 2**31)], ids=str)
def test_a_token_outside_the_vocabulary_is_refused_and_hurts_no_other(make: Maker, tokens: tuple[int, ...]) -> None:
    engine = make()
    engine.add(job(engine, "good"))
    with pytest.raises(ValueError, match="vocabulary"):
        engine.add(EngineJob("bad", tokens, max_tokens=0))
    assert list(run(engine)[0]) == ["good"]


def test_a_job_that_wants_new_tokens_is_refused(make: Maker) -> None:
    engine = make()
    with pytest.raises(ValueError, match="embeds"):
        engine.add(EngineJob("a", (5,), max_tokens=1))
    assert list(engine.step()) == []


def test_more_jobs_than_slots_and_a_repeated_id_are_refused(make: Maker) -> None:
    engine = make(slots=2)
    engine.add(job(engine, "a"))
    with pytest.raises(RuntimeError):
        engine.add(job(engine, "a"))
    engine.add(job(engine, "b"))
    with pytest.raises(RuntimeError):
        engine.add(job(engine, "c"))
    assert set(run(engine)[0]) == {"a", "b"}


def test_a_cancelled_job_leaves_no_trace_and_an_unknown_one_is_ignored(make: Maker) -> None:
    engine = make(slots=2)
    engine.add(job(engine, "gone"))
    engine.add(job(engine, "stays"))
    engine.cancel("gone")
    engine.cancel("nobody")
    engine.add(job(engine, "late"))
    assert list(run(engine)[0]) == ["stays", "late"]


def test_reset_forgets_every_job_and_works_on(make: Maker) -> None:
    engine = make(slots=1)
    expected, _ = run(engine, [job(engine, "a")])
    engine.add(job(engine, "b"))
    engine.reset()
    assert list(engine.step()) == []
    assert run(engine, [job(engine, "a")])[0] == expected


def test_interrupt_does_no_harm_beyond_the_step(make: Maker) -> None:
    engine = make()
    expected, _ = run(engine, [job(engine, "a")])
    engine.interrupt()
    engine.reset()
    assert run(engine, [job(engine, "a")])[0] == expected
    engine.close()
    engine.close()


def test_texts_that_share_words_are_alike_for_the_fake() -> None:
    engine = make_fake()
    engine.load()
    texts = {"one": "a red house", "same": "a red house", "near": "a red boat", "far": "quantum electrodynamics"}
    vectors, _ = run(engine, [job(engine, name, text) for name, text in texts.items()])
    assert vectors["one"] == vectors["same"]
    assert cosine(vectors["one"], vectors["near"]) > cosine(vectors["one"], vectors["far"]) + 0.3


def test_a_text_in_a_batch_has_the_vector_that_it_has_alone(llama: Engine) -> None:
    jobs = [job(llama, str(number), text) for number, text in enumerate(TEXTS)]
    together, _ = run(llama, jobs)
    for one in jobs:
        alone, _ = run(llama, [one])
        assert cosine(alone[one.id], together[one.id]) >= 0.999


def test_meaning_is_in_the_vector(llama: Engine) -> None:
    texts = {
        "cat": "The cat sleeps on the sofa.",
        "kitten": "A kitten naps on the couch.",
        "code": "x = y[3:] + 1",
    }
    vectors, _ = run(llama, [job(llama, name, text) for name, text in texts.items()])
    assert cosine(vectors["cat"], vectors["kitten"]) > cosine(vectors["cat"], vectors["code"])


@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
def test_pooling_equals_the_same_done_by_hand_from_the_vectors_of_the_tokens(made: list[Engine], pooling: str) -> None:
    import numpy as np

    engine = make_llama(pooling=pooling)
    made.append(engine)
    engine.load()
    one = job(engine, "a", TEXTS[3])
    tokens = tokens_vectors(one.tokens)
    expected = {"mean": tokens.mean(axis=0), "cls": tokens[0], "last": tokens[-1]}[pooling]
    expected = expected / np.linalg.norm(expected)
    assert np.abs(np.array(run(engine, [one])[0]["a"]) - expected).max() < 1e-4


def tokens_vectors(tokens: Sequence[int]):
    """What llama.cpp says of each token, without any pooling."""
    import numpy as np

    from slim.engines.llama_cpp.batch import Batch
    from slim.engines.llama_cpp.embedding import PooledContext
    from slim.engines.llama_cpp.native import AbortFlag, ContextShape, Model, library

    lib, model = library(), Model(smollm2_path(), gpu_layers=0, mlock=False)
    shape = ContextShape(sequences=1, tokens=256, batch=256, threads=1, kv_type="f16")
    context = PooledContext(model, shape, AbortFlag(), pooling=0)
    batch = Batch(lib, capacity=256, sequences=1)
    batch.put(tokens, position=0, sequence=0, output=True)
    context.decode(batch)
    rows = [np.ctypeslib.as_array(lib.llama_get_embeddings_ith(context.handle, i), (576,)) for i in range(len(tokens))]
    result = np.array(rows)
    context.close()
    model.close()
    return result


@pytest.fixture(scope="module")
def bert_weights() -> dict[str, object]:
    pytest.importorskip("numpy")
    from support.tiny_bert import make_weights

    return make_weights()


@pytest.mark.parametrize(("own", "asked", "meant"), [(1, "auto", "mean"), (2, "auto", "cls"), (2, "mean", "mean")])
def test_an_encoder_is_pooled_as_its_file_says_unless_asked_otherwise(
    tmp_path: Path, made: list[Engine], bert_weights: dict[str, object], own: int, asked: str, meant: str
) -> None:
    import numpy as np

    from support import tiny_bert

    engine = make_llama(path=tiny_bert.write_model(tmp_path / "bert.gguf", bert_weights, own), pooling=asked)
    made.append(engine)
    info = engine.load()
    assert (info.embedding_size, info.context) == (tiny_bert.WIDTH, tiny_bert.CONTEXT)
    assert f"{meant} pooling" in info.description
    jobs = [job(engine, "short", "cats"), job(engine, "long", "the cat sat on a mat the dog ran")]
    jobs.append(EngineJob("full", (2, *([5, 6, 7, 8] * 24)[:94], 3), max_tokens=0))
    assert jobs[0].tokens == (2, 6, 11, 3)
    vectors, _ = run(engine, jobs)
    for one in jobs:
        tokens = tiny_bert.token_vectors(bert_weights, one.tokens)
        expected = tokens.mean(axis=0) if meant == "mean" else tokens[0]
        expected = expected / np.linalg.norm(expected)
        assert np.abs(np.array(vectors[one.id]) - expected).max() < 1e-3  # its GELU is a table of half precision


def test_a_model_that_ranks_is_refused_in_one_line(
    tmp_path: Path, made: list[Engine], bert_weights: dict[str, object]
) -> None:
    from support.tiny_bert import write_model

    engine = make_llama(path=write_model(tmp_path / "bert.gguf", bert_weights, 4))
    made.append(engine)
    with pytest.raises(Exception, match="ranks pairs of texts"):
        engine.load()


@pytest.mark.parametrize("encoder", [False, True], ids=["decoder", "encoder"])
def test_interrupt_breaks_off_the_step_until_a_reset(
    tmp_path: Path, made: list[Engine], bert_weights: dict[str, object], encoder: bool
) -> None:
    from slim.engines.llama_cpp.native import LlamaError
    from support.tiny_bert import write_model

    engine = make_llama(slots=3, path=write_model(tmp_path / "b.gguf", bert_weights, 1) if encoder else None)
    made.append(engine)
    engine.load()
    one = job(engine, "a", "the cat")
    expected, _ = run(engine, [one])
    engine.add(one)
    engine.interrupt()
    for _ in range(2):
        with pytest.raises(LlamaError, match="interrupted"):
            engine.step()
    engine.reset()
    assert run(engine, [one])[0] == expected


def test_a_computation_that_fails_raises_and_a_reset_repairs(llama: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    from slim.engines.llama_cpp.native import LlamaError, library

    llama.add(job(llama, "a"))
    with monkeypatch.context() as broken:
        broken.setattr(library(), "llama_decode", lambda *_: -3)
        with pytest.raises(LlamaError, match=r"returned -3$"):
            llama.step()
    llama.reset()
    assert list(run(llama, [job(llama, "a")])[0]) == ["a"]


@pytest.mark.parametrize("number", [0.0, math.nan, math.inf])
def test_a_vector_without_a_direction_fails_its_job_alone(
    llama: Engine, monkeypatch: pytest.MonkeyPatch, number: float
) -> None:
    import numpy as np

    from slim.engines.llama_cpp.embedding import PooledContext

    real = PooledContext.vector

    def vector(self: PooledContext, sequence: int) -> object:
        return np.full(576, number) if sequence == 0 else real(self, sequence)

    monkeypatch.setattr(PooledContext, "vector", vector)
    llama.add(job(llama, "bad"))
    llama.add(job(llama, "good"))
    ends = [event for event in llama.step() if isinstance(event, Failed | Finished)]
    assert [type(end) for end in ends] == [Failed, Finished]
    assert "length" in ends[0].error
