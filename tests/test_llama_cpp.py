"""llama.cpp with a real model: what the contract suite can't ask of an engine without one."""

import ctypes
import logging
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attrs import evolve

from slim.types import Dry, EngineJob, Finished, FinishReason, Mirostat, Sampling, Segment, Token, Xtc
from support import tiny_bert
from support.constraints import OneOf
from support.engine_contract import GREEDY, PROMPT, Output, job, run, run_one, step
from support.smollm2 import gemma_path, smollm2_path

pytest.importorskip("llama_cpp", exc_type=ImportError)

from slim.engines.llama_cpp import LlamaEngine, LlamaOptions
from slim.engines.llama_cpp.batch import Batch
from slim.engines.llama_cpp.dry import KEPT
from slim.engines.llama_cpp.embedding import LlamaEmbeddingEngine
from slim.engines.llama_cpp.native import LlamaError, Model, library
from slim.engines.llama_cpp.vocab import Vocabulary
from slim.engines.sampling import Sampler
from slim.engines.slots import SCORED

PROMPTS = (
    "Once upon a time",
    "The capital of France is",
    "def fibonacci(n):\n    ",
    "Dear diary, today I went to the market and saw",
    "1, 2, 3, 4,",
    "The recipe for a good bread starts with flour, water, salt and",
    "My favourite colour is blue because",
    "In the year 2050",
)
LONG = " ".join(PROMPTS)


def make_engine(*, slots: int = 8, context: int = 256, prefill_chunk: int = 32, **settings: Any) -> LlamaEngine:
    path = settings.pop("model_path", None) or smollm2_path()
    options = LlamaOptions(
        model_path=path, slots=slots, context=context, threads=1, prefill_chunk=prefill_chunk, **settings
    )
    return LlamaEngine(options)


@pytest.fixture(scope="module")
def engine() -> Iterator[LlamaEngine]:
    engine = make_engine()
    engine.load()
    yield engine
    engine.close()


@pytest.fixture
def own_engine() -> Iterator[LlamaEngine]:
    """For tests that break or fill it."""
    engine = make_engine(slots=2)
    engine.load()
    yield engine
    engine.close()


def eight_jobs(engine: LlamaEngine, *, temperature: float) -> list[EngineJob]:
    return [
        job(engine, str(number), text, max_tokens=8, sampling=Sampling(temperature, top_p=0.95, seed=number))
        for number, text in enumerate(PROMPTS)
    ]


@pytest.fixture(scope="module", params=[0.0, 1.0], ids=["greedy", "seeded"])
def alone(engine: LlamaEngine, request: pytest.FixtureRequest) -> tuple[list[EngineJob], list[list[int]]]:
    """Eight jobs, and the tokens each makes when it runs by itself."""
    jobs = eight_jobs(engine, temperature=request.param)
    return jobs, [run_one(engine, one).ids for one in jobs]


def test_text_in_a_full_batch_equals_text_alone(
    engine: LlamaEngine, alone: tuple[list[EngineJob], list[list[int]]]
) -> None:
    jobs, expected = alone
    outputs = run(engine, jobs)
    assert [outputs[one.id].ids for one in jobs] == expected


def test_jobs_that_join_late_change_nothing(
    engine: LlamaEngine, alone: tuple[list[EngineJob], list[list[int]]]
) -> None:
    jobs, expected = alone
    outputs: dict[str, Output] = defaultdict(Output)
    for one in jobs:
        engine.add(one)
        step(engine, outputs)
    while step(engine, outputs):
        pass
    assert [outputs[one.id].ids for one in jobs] == expected


def test_where_a_prompt_is_cut_into_chunks_changes_nothing(engine: LlamaEngine) -> None:
    expected = run_one(engine, job(engine, "a", LONG, max_tokens=10)).ids
    for chunk in (7, 64):
        other = make_engine(slots=1, prefill_chunk=chunk)
        other.load()
        assert run_one(other, job(other, "a", LONG, max_tokens=10)).ids == expected
        other.close()


def test_jobs_without_a_seed_differ(engine: LlamaEngine) -> None:
    outputs = run(engine, [job(engine, name, max_tokens=12, sampling=Sampling(2.0)) for name in "ab"])
    assert outputs["a"].ids != outputs["b"].ids


def test_a_tiny_top_p_leaves_only_the_likeliest_token(engine: LlamaEngine) -> None:
    greedy = run_one(engine, job(engine, "a", max_tokens=10)).ids
    assert run_one(engine, job(engine, "a", max_tokens=10, sampling=Sampling(1.0, top_p=1e-6, seed=1))).ids == greedy


def test_an_end_token_stops_the_job_and_is_not_told(engine: LlamaEngine) -> None:
    chat = Segment("<|im_start|>user\nSay only: hi<|im_end|>\n<|im_start|>assistant\n", True)
    tokens = engine.tokenizer.encode([chat])
    engine.add(EngineJob("a", tokens, max_tokens=60, sampling=GREEDY))
    events = []
    while new := engine.step():
        events = list(new)
    assert events == [Finished("a", FinishReason.STOP)]
    assert engine.kv_used == 0


@pytest.mark.parametrize("spaces", [1, 15, 16, 17, 31, 32, 33, 64, 128])
def test_white_space_survives_to_the_byte(engine: LlamaEngine, spaces: int) -> None:
    text = "a" + " " * spaces + "b"
    assert decoded(engine, text) == text.encode()


@pytest.mark.parametrize("text", ["😀", "漢字かな", "👩‍👩‍👧", "naïve\tcafé\r\n\x00", "1234567890" * 10])
def test_any_text_survives_to_the_byte(engine: LlamaEngine, text: str) -> None:
    assert decoded(engine, text) == text.encode()


def test_an_emoji_is_split_across_tokens(engine: LlamaEngine) -> None:
    pieces = [engine.tokenizer.pieces[token] for token in engine.tokenizer.encode([Segment("😀", False)])]
    assert len(pieces) > 1
    with pytest.raises(UnicodeDecodeError):
        pieces[0].decode()


def decoded(engine: LlamaEngine, text: str) -> bytes:
    vocabulary = engine.tokenizer
    return b"".join(vocabulary.pieces[token] for token in vocabulary.encode([Segment(text, False)]))


def test_control_tokens_are_parsed_only_where_that_is_asked(engine: LlamaEngine) -> None:
    encode, end = engine.tokenizer.encode, engine.tokenizer.end
    assert set(encode([Segment("<|im_end|>", True)])) <= end
    assert end.isdisjoint(encode([Segment("<|im_end|>", False)]))
    mixed = encode([Segment("<|im_end|>", False), Segment("<|im_end|>", True)])
    assert [token in end for token in mixed] == [False] * (len(mixed) - 1) + [True]


def test_a_prompt_may_fill_the_announced_context_but_for_one_token() -> None:
    engine = make_engine(slots=1, context=64)  # llama.cpp itself would round this up
    assert engine.load().context == 64
    tokens = engine.tokenizer.encode([Segment(LONG, False)])[:64]
    output = run_one(engine, EngineJob("a", tokens[:63], max_tokens=1, sampling=GREEDY))
    assert (len(output.ids), output.reason) == (1, FinishReason.LENGTH)
    with pytest.raises(ValueError, match="fit"):
        engine.add(EngineJob("b", tokens, max_tokens=1))
    engine.close()


def test_every_slot_can_hold_a_full_context(own_engine: LlamaEngine) -> None:
    tokens = own_engine.tokenizer.encode([Segment(LONG * 5, False)])[:250]
    outputs = run(own_engine, [EngineJob(name, tokens, max_tokens=6, sampling=GREEDY) for name in "ab"])
    assert [len(output.ids) for output in outputs.values()] == [6, 6]


@pytest.mark.parametrize("tokens", [(-1,), (0, 49152), (2**31,)], ids=str)
def test_a_token_outside_the_vocabulary_is_refused_and_hurts_no_other(
    engine: LlamaEngine, tokens: tuple[int, ...]
) -> None:
    engine.add(job(engine, "good", max_tokens=3))
    with pytest.raises(ValueError, match="vocabulary"):
        engine.add(EngineJob("bad", tokens, max_tokens=1))
    assert len(run(engine, [])["good"].ids) == 3


@pytest.mark.parametrize(("prompt", "new"), [(256, 1), (250, 7), (0, 1), (1, 10**20)])
def test_a_job_that_does_not_fit_is_refused(engine: LlamaEngine, prompt: int, new: int) -> None:
    with pytest.raises(ValueError, match="fit"):
        engine.add(EngineJob("a", (5,) * prompt, max_tokens=new))
    assert engine.step() == []


def test_a_batch_larger_than_its_room_is_an_error_not_an_abort() -> None:
    batch = Batch(library(), capacity=4, sequences=1)
    assert batch.put((1, 2, 3), position=0, sequence=0, output=True) == 2
    with pytest.raises(ValueError, match="5 tokens"):
        batch.put((1, 2), position=3, sequence=0, output=True)


def test_the_trained_context_bounds_the_asked_one() -> None:
    engine = make_engine(slots=1, context=10**9)
    assert engine.load().context == 8192
    engine.close()


def test_a_quantised_cache_holds_a_token_in_about_half_the_bytes() -> None:
    sizes = {}
    for kv_type in ("f16", "q8_0"):
        engine = make_engine(slots=1, kv_type=kv_type)
        assert kv_type in engine.load().description
        engine.add(job(engine, "a"))
        engine.step()
        sizes[kv_type] = library().llama_state_seq_get_size(engine._loaded.context.handle, 0)
        assert len(run(engine, [])["a"].ids) == 5
        engine.close()
    assert sizes["q8_0"] / sizes["f16"] == pytest.approx(0.53, abs=0.03)


def test_a_batch_is_sorted_by_slot_whoever_came_first(engine: LlamaEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "abc":
        engine.add(job(engine, name))
    engine.step()
    engine.cancel("a")
    engine.add(job(engine, "late"))
    engine.step()
    put, seen = Batch.put, list[int]()

    def watched_put(self: Batch, *tokens: Any, sequence: int, **rest: Any) -> int:
        seen.append(sequence)
        return put(self, *tokens, sequence=sequence, **rest)

    monkeypatch.setattr(Batch, "put", watched_put)
    engine.step()
    run(engine, [])
    assert seen[:3] == [0, 1, 2]  # llama.cpp computes ids out of order in graphs of their own


@pytest.mark.parametrize(
    ("kept", "reason"), [(None, "No such file"), (0, "magic"), (20_000, "key-value"), (20_000_000, "incomplete")]
)
def test_a_bad_file_is_one_line_that_says_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kept: int | None, reason: str
) -> None:
    caplog.set_level(logging.DEBUG, "slim.llama")
    path = tmp_path / "model.gguf"
    if kept is not None:
        with smollm2_path().open("rb") as whole:
            path.write_bytes(whole.read(kept) or b"garbage " * 100)
    engine = make_engine(model_path=path)
    with pytest.raises(LlamaError) as caught:
        engine.load()
    engine.close()
    engine.close()
    text = str(caught.value)
    assert text.startswith(f"can't load {path}: ")
    assert reason in text
    assert "\n" not in text
    assert reason in caplog.text


def test_too_many_slots_are_a_load_error() -> None:
    engine = make_engine(slots=300)
    with pytest.raises(LlamaError, match="n_seq_max"):
        engine.load()
    engine.close()


@pytest.mark.parametrize("broken", ["llama_token_to_piece", "llama_batch", "llama_init_from_model"])
@pytest.mark.parametrize("kind", [LlamaEngine, LlamaEmbeddingEngine])
def test_a_load_that_breaks_off_leaves_an_engine_that_closes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Any, broken: str
) -> None:
    """Wherever it breaks off: the replica's thread closes the engine, and must not end with another error."""

    def no_memory(*_: object) -> None:
        raise MemoryError(broken)

    lib, freed = library(), list[object]()
    free = lib.llama_model_free
    monkeypatch.setattr(lib, broken, no_memory)
    monkeypatch.setattr(lib, "llama_model_free", lambda model: (freed.append(model), free(model)))
    path = tiny_bert.write_model(tmp_path / "bert.gguf", tiny_bert.make_weights(), 1)
    engine = kind(LlamaOptions(model_path=path, slots=1, context=64, threads=1, prefill_chunk=32))
    with pytest.raises(MemoryError, match=broken):
        engine.load()
    engine.interrupt()
    with pytest.raises((LlamaError, MemoryError)):
        engine.reset()
    engine.close()
    engine.close()
    assert len(freed) == 1
    with pytest.raises(LlamaError, match="no model is loaded"):
        engine.reset()


def test_interrupt_breaks_off_the_step_until_a_reset(own_engine: LlamaEngine) -> None:
    expected = run_one(own_engine, job(own_engine, "a")).ids
    own_engine.add(job(own_engine, "a"))
    own_engine.interrupt()
    for _ in range(2):
        with pytest.raises(LlamaError, match="interrupted"):
            own_engine.step()
    own_engine.reset()
    assert run_one(own_engine, job(own_engine, "a")).ids == expected


def test_without_libc_an_interrupt_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_libc(name: str | None) -> None:
        raise TypeError(name)

    engine = make_engine(slots=1)
    library()
    monkeypatch.setattr(ctypes, "CDLL", no_libc)
    engine.load()
    engine.interrupt()
    assert len(run_one(engine, job(engine, "a")).ids) == 6
    engine.close()


@pytest.mark.parametrize("code", [1, -1, -3])
def test_a_decode_that_fails_raises_and_a_reset_repairs(
    own_engine: LlamaEngine, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    own_engine.add(job(own_engine, "a"))
    with monkeypatch.context() as broken:
        broken.setattr(library(), "llama_decode", lambda *_: code)
        with pytest.raises(LlamaError, match=f"returned {code}$"):
            own_engine.step()
    own_engine.reset()
    assert len(run_one(own_engine, job(own_engine, "a")).ids) == 6


def test_every_native_sampler_is_freed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    lib, live = library(), set[int]()
    prepare, clone, free = lib.llama_sampler_init_dry, lib.llama_sampler_clone, lib.llama_sampler_free

    def counted(make: Any) -> Any:
        def make_and_count(*args: Any) -> Any:
            sampler = make(*args)
            live.add(address(sampler))
            return sampler

        return make_and_count

    def counted_free(sampler: Any) -> None:
        live.remove(address(sampler))
        free(sampler)

    monkeypatch.setattr(lib, "llama_sampler_init_dry", counted(prepare))
    monkeypatch.setattr(lib, "llama_sampler_clone", counted(clone))
    monkeypatch.setattr(lib, "llama_sampler_free", counted_free)
    engine = make_engine(slots=3)
    engine.load()

    def add_three(multiplier: float = 1.0) -> None:
        for name in "abc":
            sampling = Sampling(1.0, seed=1, dry=Dry(multiplier, breakers=("\n",)))
            engine.add(job(engine, name, max_tokens=2, sampling=sampling))

    add_three()
    assert len(live) == 4  # one of them is kept for the next jobs
    engine.cancel("a")
    assert len(live) == 3
    run(engine, [])
    assert len(live) == 1  # finished
    add_three()
    engine.reset()
    assert len(live) == 1
    add_three()
    engine.interrupt()
    with pytest.raises(LlamaError):
        engine.step()
    engine.reset()
    assert len(live) == 1  # failed
    for number in range(KEPT + 2):
        add_three(2.0 + number)
        for name in "abc":
            engine.cancel(name)
    assert len(live) == KEPT
    add_three()
    engine.close()
    assert not live


def address(sampler: Any) -> int:
    return int(ctypes.cast(sampler, ctypes.c_void_p).value or 0)


LOOP = "one two three four. one two three four. one two three"


def test_dry_breaks_a_loop_and_its_breakers_allow_it(engine: LlamaEngine) -> None:
    free = run_one(engine, job(engine, "a", LOOP, max_tokens=1)).data
    assert free == b" four"

    def first(dry: Dry) -> bytes:
        return run_one(engine, job(engine, "a", LOOP, max_tokens=1, sampling=Sampling(0.0, dry=dry))).data

    assert first(Dry(5.0)) != free
    assert first(Dry(0.0)) == free
    assert first(Dry(5.0, breakers=(" three",))) == free
    assert first(Dry(5.0, allowed_length=50)) == free
    assert first(Dry(5.0, last_n=3)) == free
    assert first(Dry(5.0, last_n=10**15)) != free


def test_dry_counts_the_output_too(engine: LlamaEngine) -> None:
    greedy = run_one(engine, job(engine, "a", "1 1 1 1", max_tokens=24))
    broken = run_one(engine, job(engine, "a", "1 1 1 1", max_tokens=24, sampling=Sampling(0.0, dry=Dry(3.0))))
    assert len(set(broken.ids)) > len(set(greedy.ids))


@pytest.mark.parametrize(
    "dry",
    [
        Dry(1e38, 1e38),
        Dry(1.0, 0.0),
        Dry(-1.0),
        Dry(1.0, allowed_length=-5),
        Dry(1.0, allowed_length=2**40),
        Dry(1.0, last_n=0),
        Dry(1.0, breakers=()),
        Dry(1.0, breakers=("\x00", "", "\ud800", "x" * 5000, "漢字")),
    ],
    ids=str,
)
def test_no_values_of_dry_break_anything(engine: LlamaEngine, dry: Dry) -> None:
    for temperature in (0.0, 1.0):
        output = run_one(engine, job(engine, "a", LOOP, max_tokens=3, sampling=Sampling(temperature, dry=dry)))
        assert output.error is None
        assert output.reason is not None


def test_it_has_all_samplers_and_a_template(own_engine: LlamaEngine) -> None:
    info = make_engine(slots=1).load()
    assert info.samplers == {"dry", "xtc", "mirostat"}
    assert info.chat_template is not None
    assert "<|im_start|>" in info.chat_template


ROW = np.random.default_rng(5).standard_normal(24).astype(np.float32) * 2


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("tau", [0.5, 2.0])
def test_mirostat_draws_what_llama_cpps_own_draws(version: Any, tau: float) -> None:
    lib, ours, theirs = library(), set[tuple[int, ...]](), set[tuple[int, ...]]()
    for seed in range(1500):
        sampler = make_sampler(Sampling(1.0, seed=seed, mirostat=Mirostat(version, tau, 0.5)))
        ours.add((sampler.choose(ROW), sampler.choose(ROW)))
        native = (
            lib.llama_sampler_init_mirostat(len(ROW), seed, tau, 0.5, 100)
            if version == 1
            else lib.llama_sampler_init_mirostat_v2(seed, tau, 0.5)
        )
        theirs.add((chosen(native), chosen(native)))
        lib.llama_sampler_free(native)
    assert ours == theirs


def make_sampler(sampling: Sampling) -> Sampler:
    return Sampler(EngineJob("a", (1,), 9, sampling), frozenset())


def applied(native: Any) -> Any:
    """llama.cpp's candidates of ROW after a sampler, and the array that must live as long."""
    lib = library()
    data = (lib.llama_token_data * len(ROW))(*((token, float(logit), 0.0) for token, logit in enumerate(ROW)))
    array = lib.llama_token_data_array(data, len(ROW), -1, False)
    lib.llama_sampler_apply(native, ctypes.byref(array))
    return array, data


def chosen(native: Any) -> int:
    array, _data = applied(native)
    return int(array.data[array.selected].id)


@pytest.mark.parametrize("threshold", [0.01, 0.05, 0.6])
def test_xtc_leaves_what_llama_cpps_own_leaves(threshold: float) -> None:
    native = library().llama_sampler_init_xtc(1.0, threshold, 1, 1)
    array, _data = applied(native)
    theirs = {array.data[place].id for place in range(array.size)}
    library().llama_sampler_free(native)
    sampler = make_sampler(Sampling(1.0, seed=1, xtc=Xtc(1.0, threshold)))
    ours = {sampler.choose(ROW) for _ in range(3000)}
    assert ours <= theirs
    likely = set(np.argsort(-ROW)[:15].tolist())
    assert ours & likely == theirs & likely


def test_logprobs_are_what_another_computation_gives(engine: LlamaEngine) -> None:
    one = job(engine, "a", PROMPT, max_tokens=6, logprobs=4, score_prompt=True)
    output = run_one(engine, one)
    tokens = [*one.tokens, *output.ids]
    logprobs = reference(tokens)
    for place, score in enumerate([*output.prompt_scores[1:], *output.scores]):
        row = logprobs[place]
        assert score.logprob == pytest.approx(row[tokens[place + 1]], abs=1e-4)
        best = np.argsort(-row, kind="stable")[:4]
        assert [data for data, _ in score.top] == [engine.tokenizer.name(int(token)) for token in best]
        assert [value for _, value in score.top] == pytest.approx(row[best].tolist(), abs=1e-4)


def reference(tokens: list[int]) -> Any:
    """Log-probabilities after each token, by llama.cpp alone: one sequence, one token after the other."""
    lib = library()
    model = Model(smollm2_path(), gpu_layers=0, mlock=False)
    params = lib.llama_context_default_params()
    params.n_ctx, params.n_threads, params.n_threads_batch, params.flash_attn_type = 256, 1, 1, 1
    context = lib.llama_init_from_model(model.handle, params)
    rows = []
    for token in tokens:
        lib.llama_decode(context, lib.llama_batch_get_one((ctypes.c_int32 * 1)(token), 1))
        logits = np.ctypeslib.as_array(lib.llama_get_logits_ith(context, -1), (49152,)).astype(np.float64)
        rows.append(logits - np.log(np.exp(logits - logits.max()).sum()) - logits.max())
    lib.llama_free(context)
    model.close()
    return rows


def test_a_row_is_read_only_where_one_was_asked_for(own_engine: LlamaEngine) -> None:
    own_engine.add(job(own_engine, "a"))
    own_engine.step()
    with pytest.raises(LlamaError, match="no logits"):
        own_engine._loaded.context.row(0)


def test_a_model_that_can_not_cut_its_kv_back_computes_every_sibling(
    engine: LlamaEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    lib, jobs = library(), [job(engine, name, sampling=Sampling(1.0, seed=1), prompt_id="p") for name in "abc"]
    expected = run_one(engine, job(engine, "x", sampling=Sampling(1.0, seed=1))).ids
    remove = lib.llama_memory_seq_rm
    monkeypatch.setattr(lib, "llama_memory_seq_rm", lambda *args: args[2] < 0 and remove(*args))
    outputs = run(engine, jobs[:2])
    outputs |= run(engine, jobs[2:])
    assert [outputs[one.id].ids for one in jobs] == [expected] * 3
    assert [outputs[one.id].cached for one in jobs] == [0, 0, 0]


def test_scores_take_no_more_rows_than_the_context_has_room_for() -> None:
    engine = make_engine(slots=4, prefill_chunk=256)
    engine.load()
    jobs = [job(engine, str(n), LONG, max_tokens=1, logprobs=0, score_prompt=n % 2 == 0) for n in range(4)]
    assert 2 * len(jobs[0].tokens) > SCORED
    outputs = run(engine, jobs)
    assert [len(outputs[one.id].prompt_scores) for one in jobs] == [len(jobs[0].tokens), 0] * 2
    engine.close()


def test_what_a_slot_was_given_stays_right_when_its_donor_is_overwritten_at_once() -> None:
    """By a prompt from RAM, before the next step: both texts are those of a cold engine."""
    engine = make_engine(slots=2, context=256, prefill_chunk=128, prompt_cache=2**26)
    engine.load()
    ids = engine.tokenizer.encode((Segment(f"{LONG} " * 8, parse_special=False),))
    stored, filler = EngineJob("stored", ids[300:400], 4, Sampling(0.0)), EngineJob("filler", ids[500:520], 40)
    kept = EngineJob("kept", ids[:100], 4, Sampling(0.0))
    wanted = [EngineJob(one.id, (*one.tokens, 9), 6, Sampling(0.0), logprobs=0) for one in (kept, stored)]
    try:
        cold = [run_one(engine, evolve(one, cache_prompt=False)) for one in wanted]
        run_one(engine, stored)  # in slot 0
        engine.add(filler)  # takes slot 0: what was stored goes to RAM
        run_one(engine, kept)  # in slot 1
        engine.cancel("filler")
        outputs = run(engine, wanted)  # slot 0 is given what slot 1 holds, and slot 1 what RAM holds
    finally:
        engine.close()
    assert all(outputs[one.id].cached > 30 for one in wanted)
    assert [outputs[one.id].scores for one in wanted] == [output.scores for output in cold]


def test_a_prompt_that_left_its_slot_comes_back_from_ram() -> None:
    """Whole and in part, with the text of a cold engine; a state that can't be read costs no more than time."""
    engine = make_engine(slots=1, context=512, prefill_chunk=128, prompt_cache=2**26)
    engine.load()
    ids = engine.tokenizer.encode((Segment(f"{LONG} " * 8, parse_special=False),))
    first = EngineJob("first", ids[:200], 8, Sampling(0.0))
    branch = EngineJob("branch", (*ids[:150], *ids[300:330]), 8, Sampling(0.0))
    other = EngineJob("other", ids[40:140], 2, Sampling(0.0))
    try:
        cold = [run_one(engine, evolve(one, cache_prompt=False)).ids for one in (first, branch)]
        assert run_one(engine, first).ids == cold[0]
        assert run_one(engine, evolve(branch, tokens=ids[:60])).cached == 59  # in the slot that has it
        assert run_one(engine, first).cached == 136
        run_one(engine, other)
        again = run_one(engine, first)
        assert (again.cached, again.ids) == (136, cold[0])  # 64 of the 200 are computed again
        run_one(engine, other)
        part = run_one(engine, branch)
        assert (part.cached, part.ids) == (150, cold[1])
        run_one(engine, other)
        for stored in engine._cache._stored:
            stored.state[:] = 0
        broken = run_one(engine, first)
        assert (broken.cached, broken.ids) == (0, cold[0])
    finally:
        engine.close()


def test_a_vocabulary_that_frames_a_text_does_so_once(tmp_path: Path) -> None:
    path = tiny_bert.write_model(tmp_path / "bert.gguf", tiny_bert.make_weights(), 1)
    model = Model(path, gpu_layers=0, mlock=False)
    vocabulary = Vocabulary(library(), model.handle)
    first, last = vocabulary.control["[CLS]"], vocabulary.control["[SEP]"]
    tokens = vocabulary.encode([Segment("the cat", False), Segment(" sat", False)])
    assert (tokens[0], tokens[-1], len(tokens)) == (first, last, 5)
    assert vocabulary.encode([Segment("[CLS]the cat sat[SEP]", True)]) == tokens
    assert vocabulary.encode([Segment("the cat sat", False)], leading=False) == tokens[1:-1]
    model.close()


def test_importing_the_package_does_not_import_the_library() -> None:
    code = "import sys, slim.engines.llama_cpp; sys.exit('llama_cpp' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.fixture(scope="module")
def gemma(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaEngine]:
    path = gemma_path(tmp_path_factory.mktemp("gemma"))
    engine = make_engine(slots=4, context=1024, prefill_chunk=128, model_path=path)
    engine.load()
    yield engine
    engine.close()


@pytest.mark.slow
def test_gemma_gets_its_leading_token_once_and_batches_over_its_sliding_window(gemma: LlamaEngine) -> None:
    encode, bos = gemma.tokenizer.encode, gemma.tokenizer.control["<bos>"]
    tokens = encode([Segment("Hello", False), Segment(" world", False)])
    assert tokens[:1] == encode([]) == (bos,)
    assert tokens.count(bos) == 1
    assert encode([Segment("<bos>Hello world", True)]) == tokens
    assert encode([Segment("Hello world", False)], leading=False) == tokens[1:]
    assert encode([Segment("<bos>Hello", False)]).count(bos) == 1
    gemma.add(EngineJob("long", (tokens * 250)[:700], max_tokens=8, sampling=GREEDY))
    gemma.add(EngineJob("short", tokens, max_tokens=8, sampling=GREEDY))
    events = []
    while new := gemma.step():
        events += new
    assert {event.job_id for event in events if isinstance(event, Token)} == {"long", "short"}


@pytest.mark.slow
def test_gemma_scores_the_same_tokens_alike_alone_and_in_a_batch(gemma: LlamaEngine) -> None:
    """Its quantisation has kernels that depend on the batch's size: at most 0.17 nats apart when this was written."""
    written = [run_one(gemma, job(gemma, "a", text, max_tokens=10)).ids for text in PROMPTS[:4]]

    def jobs() -> list[EngineJob]:
        return [
            job(gemma, text, text, max_tokens=10, constraint=OneOf(ids), logprobs=3, score_prompt=True)
            for text, ids in zip(PROMPTS[:4], written, strict=True)
        ]

    together = run(gemma, jobs())
    for one in jobs():
        alone = run_one(gemma, one)
        pairs = [(alone.scores, together[one.id].scores), (alone.prompt_scores[1:], together[one.id].prompt_scores[1:])]
        for mine, others in pairs:
            assert [score.logprob for score in mine] == pytest.approx([score.logprob for score in others], abs=0.4)


def locked_bytes() -> int:
    """Memory of this process that can't be swapped out, as Linux counts it."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmLck"))
    return int(line.split()[1]) * 1024


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux says what is locked")
def test_mlock_locks_the_weights_or_says_that_it_could_not(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    for mlock in (False, True):
        before = locked_bytes()
        engine = make_engine(slots=1, mlock=mlock)
        engine.load()
        is_locked = locked_bytes() - before > 50_000_000
        engine.close()
        warned = any("SLM_MLOCK has no effect" in message for message in caplog.messages)
        assert (is_locked or warned) == mlock


def test_a_prompt_of_any_length_has_the_scores_that_it_has_alone() -> None:
    """From 64 rows of a sequence on llama.cpp takes another kernel: who else reads a prompt must not decide."""
    engine = make_engine(slots=4, prefill_chunk=128)
    engine.load()
    ids = engine.tokenizer.encode((Segment(f"{LONG} " * 8, parse_special=False),))

    def jobs() -> list[EngineJob]:
        """Long and short by turns, so that each pair of lengths meets in a step, beside streams that run."""
        lengths = (100, 28, 64, 130)
        return [
            EngineJob(str(n), ids[n : n + length], 4, Sampling(0.0), logprobs=0) for n, length in enumerate(lengths)
        ]

    def scores(output: Output) -> list[float | None]:
        return [score.logprob for score in output.scores]

    try:
        alone = [scores(run(engine, [one])[one.id]) for one in jobs()]
        for order in (1, -1):
            together = run(engine, jobs()[::order])
            assert [scores(together[one.id]) for one in jobs()] == alone
    finally:
        engine.close()
