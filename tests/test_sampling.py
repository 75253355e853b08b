"""How a token is drawn from logits: against plain formulas in double precision, and with values that break formulas."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from attrs import evolve
from hypothesis import example, given
from hypothesis import strategies as st

from slim.types import EngineJob, Mirostat, Sampling, Xtc
from support.constraints import OneOf

pytest.importorskip("numpy")

import numpy as np

from slim.engines import sampling as sampling_module
from slim.engines.sampling import BLOCK, FORBIDDEN, BadLogitsError, Sampler, likeliest, score
from slim.errors import Unanswerable

SIZE = 3000


def make_row(seed: int = 0, size: int = SIZE, spread: float = 2.0) -> Any:
    return (np.random.default_rng(seed).standard_normal(size) * spread).astype(np.float32)


def make_sampler(sampling: Sampling, prompt: Sequence[int] = (1,), end: Sequence[int] = (), **job: Any) -> Sampler:
    return Sampler(EngineJob("a", tuple(prompt), 100, sampling, **job), frozenset(end))


def draws(sampling: Sampling, row: Any, count: int) -> list[int]:
    """One job's tokens, each by the same logits."""
    sampler = make_sampler(sampling)
    return [sampler.choose(row) for _ in range(count)]


def expected(sampling: Sampling, row: Any) -> dict[int, float]:
    """The chances of the tokens that the cuts leave, by whole sorts in double precision."""
    logits = row.astype(np.float64) / sampling.temperature
    chances = np.exp(logits - logits.max())
    ids = np.argsort(-chances, kind="stable")
    if sampling.top_k:
        ids = ids[: sampling.top_k]
    if sampling.typical_p < 1:
        kept = chances[ids] / chances[ids].sum()
        entropy = -(kept * np.log(kept)).sum()
        order = np.argsort(abs(-np.log(kept) - entropy), kind="stable")
        ids = ids[np.sort(order[: np.searchsorted(kept[order].cumsum(), sampling.typical_p) + 1])]
    if sampling.top_p < 1:
        kept = chances[ids] / chances[ids].sum()
        ids = ids[: np.searchsorted(kept.cumsum(), sampling.top_p) + 1]
    ids = ids[chances[ids] >= sampling.min_p * chances[ids].max()]
    return dict(zip(ids.tolist(), (chances[ids] / chances[ids].sum()).tolist(), strict=True))


CUTS = [
    Sampling(1.0),
    Sampling(0.5),
    Sampling(2.0),
    Sampling(1.0, top_k=5),
    Sampling(1.0, top_k=700),
    Sampling(0.7, top_k=10_000),
    Sampling(1.0, top_p=0.5),
    Sampling(2.0, top_p=0.95),
    Sampling(1.0, top_p=0.0),
    Sampling(1.0, min_p=0.1),
    Sampling(1.0, min_p=1.0),
    Sampling(1.0, typical_p=0.3),
    Sampling(2.0, typical_p=0.9),
    Sampling(1.0, top_k=50, top_p=0.9, min_p=0.02),
    Sampling(0.8, top_k=200, typical_p=0.8, top_p=0.7, min_p=0.05),
]


@pytest.mark.parametrize("sampling", CUTS, ids=lambda s: str(s).partition("(")[2][:60])
def test_draws_follow_the_distribution_that_the_cuts_leave(sampling: Sampling) -> None:
    row, count = make_row(), 1500
    chances = expected(sampling, row)
    seen = Counter(draws(evolve(sampling, seed=1), row, count))
    assert set(seen) <= set(chances)
    for token, chance in chances.items():
        wanted = chance * count
        assert abs(seen[token] - wanted) <= 5 * (wanted + 1) ** 0.5, f"token {token}"


@given(
    st.integers(0, 50),
    st.integers(1, 2 * BLOCK * 3),
    st.sampled_from([0.1, 1, 5]),
    st.builds(
        Sampling,
        temperature=st.sampled_from([0.1, 0.7, 1.0, 2.0]),
        top_k=st.sampled_from([0, 1, 7, 300]),
        typical_p=st.sampled_from([0.2, 0.9, 1.0]),
        top_p=st.sampled_from([0.0, 0.3, 0.95, 0.999, 1.0]),
        min_p=st.sampled_from([0.0, 0.05, 1.0]),
    ),
)
def test_what_is_left_by_any_cuts_is_what_whole_sorts_leave(
    seed: int, size: int, spread: float, sampling: Sampling
) -> None:
    row = make_row(seed, size, spread)
    ids, _ = make_sampler(sampling)._survivors(row)
    left = set(range(size) if ids is None else ids.tolist())
    # Rounding may move an edge by one token.
    assert len(left ^ set(expected(sampling, row))) <= 1


def test_tokens_far_down_are_drawn_as_often_as_they_should() -> None:
    row = np.full(200_000, -17.0, np.float32)
    row[123] = 0
    seen = draws(Sampling(1.0, seed=5), row, 5000)
    share = 200_000 * float(np.exp(-17.0))
    far = [token for token in seen if token != 123]
    assert len(far) == pytest.approx(5000 * share / (1 + share), rel=0.25)
    assert len(set(far)) == len(far)


def test_it_does_not_matter_from_where_on_a_token_counts_as_far_down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling_module, "FAR", np.float32(1.5))
    row = make_row(size=50)
    chances = expected(Sampling(1.0), row)
    seen = Counter(draws(Sampling(1.0, seed=2), row, 5000))
    for token, chance in chances.items():
        assert abs(seen[token] - chance * 5000) <= 4 * (chance * 5000 + 1) ** 0.5, f"token {token}"


SEEDS = [0, 1, -1, 2**32, 2**63 - 1, -(2**63), 10**30]


def test_far_seeds_are_not_the_same() -> None:
    assert len({tuple(draws(Sampling(1.0, seed=seed), make_row(), 6)) for seed in SEEDS}) == len(SEEDS)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_seed_fixes_the_draws_and_its_neighbour_changes_them(seed: int) -> None:
    row = make_row()
    for cuts in ({}, {"top_p": 0.9}, {"xtc": Xtc(0.5, 0.01)}, {"mirostat": Mirostat(2)}):
        first = draws(Sampling(1.0, seed=seed, **cuts), row, 12)
        assert draws(Sampling(1.0, seed=seed, **cuts), row, 12) == first
        assert draws(Sampling(1.0, seed=seed + 1, **cuts), row, 12) != first


def test_without_a_seed_every_job_draws_anew() -> None:
    row = make_row()
    assert draws(Sampling(1.0), row, 12) != draws(Sampling(1.0), row, 12)


@pytest.mark.parametrize("temperature", [0.0, 1e-9])
def test_temperature_0_is_the_likeliest_token_whatever_else_is_asked(temperature: float) -> None:
    row = make_row()
    for cuts in ({}, {"top_k": 3}, {"xtc": Xtc(1.0, 0.0)}, {"mirostat": Mirostat(1)}, {"top_p": 0.1, "seed": 4}):
        assert draws(Sampling(temperature, **cuts), row, 3) == [int(row.argmax())] * 3


def test_choosing_leaves_the_logits_as_they_are() -> None:
    row = make_row()
    before = row.copy()
    make_sampler(Sampling(1.0, logit_bias=((5, 3.0),), repeat_penalty=1.5, presence_penalty=1)).choose(row)
    assert (row == before).all()


def test_a_bias_chooses_or_bans_a_token() -> None:
    row = make_row()
    best = int(row.argmax())
    assert make_sampler(Sampling(0.0, logit_bias=((7, 100.0),))).choose(row) == 7
    assert make_sampler(Sampling(0.0, logit_bias=((best, -100.0),))).choose(row) == int(np.argsort(row)[-2])
    assert set(draws(Sampling(1.0, logit_bias=((7, 100.0),)), row, 20)) == {7}


@pytest.mark.parametrize(
    ("sampling", "prompt", "output", "logit", "penalised"),
    [
        (Sampling(0.0, presence_penalty=1.5), [2], [0, 0], 3.0, 1.5),
        (Sampling(0.0, presence_penalty=1.5), [0], [], 3.0, 3.0),
        (Sampling(0.0, frequency_penalty=1.5), [0], [0, 0], 3.0, 0.0),
        (Sampling(0.0, presence_penalty=-2.0, frequency_penalty=0.5), [2], [0], 3.0, 4.5),
        (Sampling(0.0, repeat_penalty=2.0), [0], [], 3.0, 1.5),
        (Sampling(0.0, repeat_penalty=2.0), [2], [0, 0], 3.0, 1.5),
        (Sampling(0.0, repeat_penalty=2.0), [0], [], -1.0, -2.0),
        (Sampling(0.0, repeat_penalty=0.5), [0], [], 3.0, 6.0),
        (Sampling(0.0, repeat_penalty=2.0, presence_penalty=1.0), [2], [0], 3.0, 0.5),
        (Sampling(0.0, repeat_penalty=2.0, repeat_last_n=2), [0, 2], [], 3.0, 1.5),
        (Sampling(0.0, repeat_penalty=2.0, repeat_last_n=2), [0, 2, 2], [], 3.0, 3.0),
        (Sampling(0.0, repeat_penalty=2.0, repeat_last_n=2), [0], [2], 3.0, 1.5),
        (Sampling(0.0, repeat_penalty=2.0, repeat_last_n=2), [0], [2, 2], 3.0, 3.0),
        (Sampling(0.0, repeat_penalty=2.0, repeat_last_n=2), [2], [0, 2, 0, 2], 3.0, 1.5),
        (Sampling(0.0, repeat_penalty=2.0, repeat_last_n=0), [0], [0], 3.0, 3.0),
        (Sampling(0.0, repeat_penalty=1e-30), [0], [], 3.0, 3e6),
    ],
)
def test_penalties_change_a_logit_as_their_words_say(
    sampling: Sampling, prompt: list[int], output: list[int], logit: float, penalised: float
) -> None:
    for other, winner in ((penalised - 0.01, 0), (penalised + 0.5, 1)):
        sampler = make_sampler(sampling, prompt)
        for token in output:
            sampler.accept(token)
        assert sampler.choose(np.array([logit, other, -50.0], np.float32)) == winner


def test_penalties_count_more_tokens_than_they_made_room_for() -> None:
    sampler = make_sampler(Sampling(0.0, frequency_penalty=1.0))
    row = np.zeros(SIZE, np.float32)
    assert [choose_next(sampler, row) for _ in range(300)] == list(range(300))


def choose_next(sampler: Sampler, row: Any) -> int:
    token = sampler.choose(row)
    sampler.accept(token)
    return token


def test_end_tokens_wait_for_min_tokens_and_never_come_with_ignore_eos() -> None:
    row = np.array([0.0, 3.0, 5.0, 4.0], np.float32)
    waits = make_sampler(Sampling(0.0), end=[2], min_tokens=2, stop_token_ids=frozenset({3}))
    assert [choose_next(waits, row) for _ in range(4)] == [1, 1, 2, 2]
    never = make_sampler(Sampling(0.0), end=[2], ignore_eos=True, stop_token_ids=frozenset({3}))
    assert [choose_next(never, row) for _ in range(3)] == [3, 3, 3]


@pytest.mark.parametrize("cuts", [{}, {"top_k": 40}, {"top_p": 0.9}, {"typical_p": 0.5}, {"min_p": 0.1}], ids=str)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_constraint_decides_before_the_cuts(temperature: float, cuts: dict[str, Any]) -> None:
    row = make_row()
    unlikely = [int(token) for token in np.argsort(row)[:3]]
    sampler = make_sampler(Sampling(temperature, seed=1, **cuts), constraint=OneOf(unlikely))
    assert [choose_next(sampler, row) for _ in range(3)] == unlikely


def test_a_mask_may_be_shorter_than_the_vocabulary_or_longer() -> None:
    row = make_row(size=19)
    for tokens in ([3], [18], [3, 40]):
        sampler = make_sampler(Sampling(0.0), constraint=OneOf(*([token] for token in tokens)))
        assert sampler.choose(row) == tokens[0]
    with pytest.raises(Unanswerable):
        make_sampler(Sampling(0.0), constraint=OneOf()).choose(row)


def test_a_bias_can_not_lift_what_the_constraint_forbids() -> None:
    sampler = make_sampler(Sampling(0.0, logit_bias=((7, 100.0), (8, -100.0))), constraint=OneOf([8]))
    assert sampler.choose(make_row()) == 8


SAMPLINGS = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 1e-5, 0.01, 1.0, 2.0]),
    top_p=st.sampled_from([0.0, 1e-9, 0.5, 1.0]),
    top_k=st.sampled_from([0, 1, 2, 10**9]),
    min_p=st.sampled_from([0.0, 1e-9, 1.0]),
    typical_p=st.sampled_from([0.0, 1e-9, 0.5, 1.0]),
    presence_penalty=st.sampled_from([-2.0, 0.0, 2.0]),
    frequency_penalty=st.sampled_from([-2.0, 0.0, 2.0]),
    repeat_penalty=st.sampled_from([0.0, 1e-9, 1.0, 1e9]),
    repeat_last_n=st.sampled_from([-1, 0, 1, 10**12]),
    logit_bias=st.sampled_from([(), ((0, 100.0), (1, -100.0)), tuple((token, -100.0) for token in range(8))]),
    seed=st.sampled_from([0, -1, 2**70]),
    xtc=st.sampled_from([None, Xtc(1.0, 0.0), Xtc(1.0, 0.5)]),
    mirostat=st.sampled_from([None, Mirostat(1, 0.0, 1.0), Mirostat(1, 1e9), Mirostat(2, 0.0, 1.0), Mirostat(2, 1e9)]),
)
ROWS = st.lists(st.sampled_from([-1e30, -200.0, -1.0, 0.0, 1.0, 1.0001, 30.0, 1e30]), min_size=1, max_size=20)


@given(SAMPLINGS, ROWS, st.one_of(st.none(), st.frozensets(st.integers(0, 30), min_size=1)))
@example(Sampling(1.0, xtc=Xtc(1.0, 0.0)), [0.0, 0.0, 0.0], frozenset({1}))
@example(Sampling(0.0, repeat_penalty=1e9), [-1e30], None)
def test_no_values_bring_anything_but_an_allowed_token(
    sampling: Sampling, logits: list[float], allowed: frozenset[int] | None
) -> None:
    size = len(logits)
    bias = tuple((token, value) for token, value in sampling.logit_bias if token < size)
    constraint = None if allowed is None else OneOf(*([token] * 3 for token in allowed))
    sampler = make_sampler(evolve(sampling, logit_bias=bias), [0], constraint=constraint)
    row = np.array(logits, np.float32)
    if allowed is not None and not any(token < size for token in allowed):
        with pytest.raises(Unanswerable, match="No token"):
            sampler.choose(row)
        return
    for _ in range(3):
        token = choose_next(sampler, row)
        assert 0 <= token < size
        assert allowed is None or token in allowed


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("cuts", [{}, {"top_k": 3}, {"mirostat": Mirostat(2)}], ids=str)
def test_logits_that_are_no_numbers_are_a_clear_error(temperature: float, cuts: dict[str, Any]) -> None:
    for bad in (np.nan, np.inf):
        row = make_row()
        row[5] = bad
        with pytest.raises(BadLogitsError, match="not a number"):
            make_sampler(Sampling(temperature, **cuts)).choose(row)
        with pytest.raises(BadLogitsError, match="not a number"):
            score(row, 1, 5, lambda token: b"")


@given(st.lists(st.sampled_from([-2.0, -1.0, 0.0, 1.0, 1.5, 2.0]), min_size=1, max_size=4 * BLOCK), st.integers(1, 30))
def test_the_likeliest_come_in_order_and_of_equals_the_lowest_id_first(logits: list[float], count: int) -> None:
    row = np.array(logits, np.float32)
    assert likeliest(row, count).tolist() == np.argsort(-row, kind="stable")[:count].tolist()


def test_forbidden_tokens_are_never_among_the_likeliest() -> None:
    row = np.full(SIZE, FORBIDDEN, np.float32)
    row[[7, 1000]] = [-20.0, 1.0]
    assert likeliest(row, 5).tolist() == [1000, 7]


def test_scores_are_the_softmax_of_the_whole_row() -> None:
    row = make_row(spread=4)
    logprobs = row.astype(np.float64) - np.log(np.exp(row.astype(np.float64)).sum())
    one = score(row, 17, 4, lambda token: b"t%d" % token)
    assert one.data == b"t17"
    assert one.logprob == pytest.approx(logprobs[17], abs=1e-5)
    best = np.argsort(-logprobs)[:4]
    assert [data for data, _ in one.top] == [b"t%d" % token for token in best]
    assert [value for _, value in one.top] == pytest.approx(logprobs[best].tolist(), abs=1e-5)
    assert score(row, 17, 0, lambda token: b"").top == ()


def test_a_certain_token_scores_0_and_no_score_is_above() -> None:
    row = np.full(100, -300.0, np.float32)
    row[3] = 300
    one = score(row, 3, 2, lambda token: b"%d" % token)
    assert one.logprob == 0
    assert one.top[0] == (b"3", 0.0)
    assert one.top[1][1] == pytest.approx(-600)


def test_xtc_leaves_the_least_likely_of_the_likely_tokens() -> None:
    row = np.log(np.array([0.5, 0.3, 0.15, 0.05], np.float32))
    assert set(draws(Sampling(1.0, seed=1, xtc=Xtc(1.0, 0.1)), row, 200)) == {2, 3}
    assert set(draws(Sampling(1.0, seed=1, xtc=Xtc(1.0, 0.4)), row, 200)) == {0, 1, 2, 3}
    assert set(draws(Sampling(1.0, seed=1, xtc=Xtc(0.0, 0.1)), row, 200)) == {0, 1, 2, 3}
    assert set(draws(Sampling(1.0, seed=1, top_k=2, xtc=Xtc(1.0, 0.1)), row, 50)) == {1}


def test_mirostat_draws_within_twice_its_target_and_then_moves_towards_it() -> None:
    row = make_row()
    chances = np.exp(row.astype(np.float64))
    surprise = -np.log2(chances / chances.sum())
    samplers = [make_sampler(Sampling(1.0, seed=seed, mirostat=Mirostat(2, 4.0, 1.0))) for seed in range(300)]
    first = [sampler.choose(row) for sampler in samplers]
    inside = set(np.flatnonzero(surprise <= 8.0).tolist())
    assert set(first) == inside
    within = -np.log2(chances / chances[list(inside)].sum())
    for sampler, token in zip(samplers, first, strict=True):
        assert surprise[sampler.choose(row)] <= max(8.0 - (within[token] - 4.0), surprise.min()) + 1e-6


@pytest.mark.parametrize("version", [1, 2])
def test_a_higher_target_of_mirostat_gives_more_surprise(version: Any) -> None:
    row = make_row()
    chances = np.exp(row.astype(np.float64))
    surprise = -np.log2(chances / chances.sum())
    means = [
        surprise[draws(Sampling(1.0, seed=1, mirostat=Mirostat(version, tau)), row, 200)].mean() for tau in (2, 4, 6, 8)
    ]
    assert means == sorted(means)
    assert means[3] > means[0] + 2
