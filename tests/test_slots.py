"""The slot table: who runs where, and what one step computes."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slim.engines.slots import SCORED, Slot, SlotTable
from slim.types import EngineJob, PromptScores, TokenScore

SIZE = 4


def make_job(name: str, tokens: int = 1) -> EngineJob:
    return EngineJob(name, tuple(range(tokens)), max_tokens=8)


def advance(table: SlotTable, budget: int) -> None:
    """What an engine does with a plan: every chunk and every new token is computed."""
    decoding = table.decoding()
    for chunk in table.prefill(budget):
        table.hold(chunk.slot, chunk.end - chunk.start)
    for slot in decoding:
        table.hold(slot, 1)


def test_the_lowest_free_slot_is_taken_first() -> None:
    table = SlotTable(3)
    assert [table.add(make_job(name)).number for name in "abc"] == [0, 1, 2]
    table.remove("c")
    table.remove("a")
    assert [table.add(make_job(name)).number for name in "de"] == [0, 2]


def test_a_full_table_refuses_a_job() -> None:
    table = SlotTable(1)
    table.add(make_job("a"))
    with pytest.raises(RuntimeError, match="b"):
        table.add(make_job("b"))


def test_a_job_that_runs_is_not_taken_twice() -> None:
    table = SlotTable(2)
    table.add(make_job("a"))
    with pytest.raises(RuntimeError, match="a"):
        table.add(make_job("a"))
    assert table.add(make_job("b")).number == 1


def test_removing_an_unknown_job_changes_nothing() -> None:
    table = SlotTable(1)
    assert table.remove("a") is None
    table.add(make_job("b"))
    assert [chunk.slot.job.id for chunk in table.prefill(1)] == ["b"]


def test_clear_frees_every_slot() -> None:
    table = SlotTable(3)
    for name in "abc":
        table.add(make_job(name))
    table.clear()
    assert table.held == 0
    assert [table.add(make_job(name)).number for name in "abc"] == [0, 1, 2]


def test_the_oldest_prompt_gets_the_budget_first() -> None:
    table = SlotTable(3)
    for name in "abc":
        table.add(make_job(name, tokens=5))
    table.remove("a")
    table.add(make_job("late", tokens=5))
    plan = [(chunk.slot.job.id, chunk.start, chunk.end, chunk.completes) for chunk in table.prefill(7)]
    assert plan == [("b", 0, 5, True)]


def test_a_prompt_is_cut_at_the_same_places_whatever_runs_beside_it() -> None:
    """Other cuts give other logits: from 64 rows of a sequence on llama.cpp takes another kernel."""
    for others in ([], [3], [5, 1], [8, 8]):
        table = SlotTable(4)
        for number, tokens in enumerate(others):
            table.add(make_job(f"other {number}", tokens=tokens))
        slot = table.add(make_job("a", tokens=21))
        cuts = []
        while slot.prefilling:
            cuts += [(chunk.start, chunk.end) for chunk in table.prefill(8) if chunk.slot is slot]
            advance(table, 8)
        assert cuts == [(0, 8), (8, 16), (16, 21)]


def test_what_the_budget_leaves_goes_to_a_prompt_that_fits_whole() -> None:
    table = SlotTable(3)
    for name, tokens in (("a", 5), ("b", 5), ("c", 2)):
        table.add(make_job(name, tokens=tokens))
    assert plan(table, 7) == [("a", 0, 5), ("c", 0, 2)]
    assert plan(table, 7) == [("b", 0, 5)]


ADD = st.tuples(st.just("add"), st.integers(1, 20))
REMOVE = st.tuples(st.just("remove"), st.integers(0, 30))
STEP = st.tuples(st.just("step"), st.integers(1, 12))


@given(st.lists(st.one_of(ADD, REMOVE, STEP), max_size=60))
def test_any_history_keeps_numbers_unique_and_steps_within_the_budget(history: list[tuple[str, int]]) -> None:
    table = SlotTable(SIZE)
    running: dict[str, Slot] = {}
    for turn, (action, number) in enumerate(history):
        if action == "add" and len(running) < SIZE:
            free = set(range(SIZE)) - {slot.number for slot in running.values()}
            slot = table.add(make_job(str(turn), tokens=number))
            assert slot.number == min(free)
            running[slot.job.id] = slot
        elif action == "remove":
            assert table.remove(str(number)) is running.pop(str(number), None)
        elif action == "step":
            chunks, decoding = table.prefill(number), table.decoding()
            left = [len(slot.job.tokens) - slot.held for slot in running.values() if slot.prefilling]
            sizes = [chunk.end - chunk.start for chunk in chunks]
            assert sum(sizes) <= number
            assert sizes[:1] == [min(number, size) for size in left[:1]]
            assert all(chunk.start == chunk.slot.held < chunk.end for chunk in chunks)
            assert all(chunk.completes or chunk.end - chunk.start == number for chunk in chunks)
            assert {slot.number for slot in decoding} == {s.number for s in running.values() if not s.prefilling}
            advance(table, number)
        assert table.held == sum(slot.held for slot in running.values())


def sibling(name: str, tokens: int = 10, prompt: str = "p", **job: Any) -> EngineJob:
    return EngineJob(name, tuple(range(tokens)), max_tokens=8, prompt_id=prompt, **job)


def plan(table: SlotTable, budget: int = 100) -> list[tuple[str, int, int]]:
    """One step: take over what can be, and compute. Returns the chunks."""
    for offer in table.takeovers():
        table.took(offer)
    chunks = table.prefill(budget)
    advance(table, budget)
    return [(chunk.slot.job.id, chunk.start, chunk.end) for chunk in chunks]


def test_siblings_wait_for_the_oldest_and_compute_only_the_last_token() -> None:
    table = SlotTable(3)
    for name in "abc":
        table.add(sibling(name))
    assert plan(table, 6) == [("a", 0, 6)]
    assert plan(table, 6) == [("a", 6, 10)]
    assert plan(table, 6) == [("b", 9, 10), ("c", 9, 10)]
    assert [slot.cached for slot in table.decoding()] == [0, 9, 9]
    assert table.held == 11 + 10 + 10


def test_a_sibling_that_waits_leaves_the_budget_to_others() -> None:
    table = SlotTable(4)
    for one in (sibling("a"), sibling("b"), sibling("other", prompt="q"), make_job("alone", 5)):
        table.add(one)
    assert plan(table, 15) == [("a", 0, 10), ("alone", 0, 5)]


def test_when_the_oldest_leaves_within_its_prompt_the_next_one_computes_it() -> None:
    table = SlotTable(3)
    for name in "abc":
        table.add(sibling(name))
    plan(table, 6)
    table.remove("a")
    assert plan(table, 6) == [("b", 0, 6)]
    assert plan(table, 6) == [("b", 6, 10)]
    assert plan(table, 6) == [("c", 9, 10)]


def test_a_late_sibling_finds_what_an_ended_one_left_in_the_same_slot_or_another() -> None:
    table = SlotTable(3)
    for name in "ab":
        table.add(sibling(name))
    plan(table)
    plan(table)
    table.remove("b")
    table.remove("a")
    assert table.held == 0
    same = table.add(sibling("c"))
    assert (same.number, same.inherits) == (0, True)
    assert [(offer.source, offer.tokens) for offer in table.takeovers()] == [(0, 9)]
    table.remove("c")
    other = table.add(make_job("other"))
    assert (other.number, other.inherits) == (0, False)
    copy = table.add(sibling("d", prompt="p"))
    assert (copy.number, copy.inherits) == (1, True)
    table.remove("d")
    assert plan(table) == [("other", 0, 1)]


def test_a_slot_that_another_job_took_has_nothing_left() -> None:
    table = SlotTable(2)
    table.add(sibling("a"))
    plan(table)
    table.remove("a")
    table.add(make_job("other"))
    table.remove("other")
    table.add(sibling("b"))
    assert table.takeovers() == []
    assert plan(table) == [("b", 0, 10)]


def test_a_prompt_that_was_not_complete_is_not_left() -> None:
    table = SlotTable(1)
    table.add(sibling("a"))
    plan(table, 6)
    table.remove("a")
    assert not table.add(sibling("b")).inherits
    assert table.takeovers() == []


def test_clear_leaves_nothing_to_take_over() -> None:
    table = SlotTable(1)
    table.add(sibling("a"))
    plan(table)
    table.clear()
    assert not table.add(sibling("b")).inherits


def test_an_engine_that_refuses_makes_the_siblings_compute() -> None:
    table = SlotTable(3)
    for name in "abc":
        table.add(sibling(name))
    plan(table)
    for offer in table.takeovers():
        table.refused(offer)
    assert table.takeovers() == []
    assert plan(table) == [("b", 0, 10), ("c", 0, 10)]


@pytest.mark.parametrize(
    "other",
    [
        make_job("b", 10),
        sibling("b", prompt="q"),
        sibling("b", prompt=""),
        EngineJob("b", (9,) * 10, max_tokens=8, prompt_id="p"),
    ],
    ids=["no id", "another id", "empty id", "another prompt"],
)
def test_only_the_same_prompt_is_shared(other: EngineJob) -> None:
    table = SlotTable(2)
    table.add(sibling("a", prompt=other.prompt_id and "p"))
    plan(table)
    table.add(other)
    assert table.takeovers() == []


def test_a_prompt_of_one_token_is_not_worth_waiting_for() -> None:
    table = SlotTable(2)
    for name in "ab":
        table.add(sibling(name, tokens=1))
    assert plan(table) == [("a", 0, 1), ("b", 0, 1)]


def scored(name: str, tokens: int, prompt: str = "") -> EngineJob:
    return EngineJob(name, tuple(range(tokens)), max_tokens=1, score_prompt=True, logprobs=1, prompt_id=prompt)


def test_a_step_scores_a_bounded_number_of_prompt_tokens() -> None:
    table = SlotTable(3)
    for one in (scored("a", SCORED - 4), scored("b", 50), make_job("c", 50)):
        table.add(one)
    assert plan(table, 200) == [("a", 0, SCORED - 4), ("b", 0, 4), ("c", 0, 50)]
    assert plan(table, 200) == [("b", 4, 50)]


def test_the_scores_of_chunks_cover_each_prompt_token_once() -> None:
    table = SlotTable(2)
    table.add(scored("a", 150, prompt="p"))
    told: list[tuple[str, TokenScore]] = []
    for _ in range(3):
        for chunk in table.prefill(100):
            for event in chunk.scores(
                TokenScore(b"first", None), lambda row, token, chunk=chunk: TokenScore(b"%d" % token, chunk.start + row)
            ):
                assert isinstance(event, PromptScores)
                told += [(event.job_id, one) for one in event.scores]
        advance(table, 100)
    assert [one.data for _, one in told] == [b"first", *(b"%d" % token for token in range(1, 150))]
    assert [one.logprob for _, one in told[1:]] == list(range(149))  # each by the row of the token before it
    table.add(scored("b", 150, prompt="p"))
    assert plan(table) == [("b", 149, 150)]
    assert not table.decoding()[1].scores_prompt


SHARED = st.tuples(st.just("add"), st.integers(0, 2), st.integers(2, 9))
LEAVE = st.tuples(st.just("remove"), st.integers(0, 40), st.just(0))
TURN = st.tuples(st.just("step"), st.integers(1, 12), st.booleans())


@given(st.lists(st.one_of(SHARED, LEAVE, TURN), max_size=60))
def test_any_history_of_siblings_ends_and_takes_over_only_what_is_there(history: list[tuple[str, int, int]]) -> None:
    """The KV is modelled: which tokens each slot's cells hold."""
    table = SlotTable(SIZE)
    cells: dict[int, list[int]] = {number: [] for number in range(SIZE)}
    running: dict[str, Slot] = {}

    def one_step(budget: int, agrees: bool) -> None:
        for offer in table.takeovers():
            if agrees:
                cells[offer.slot.number] = cells[offer.source][: offer.tokens]
                table.took(offer)
            else:
                cells[offer.slot.number] = []
                table.refused(offer)
        decoding = table.decoding()
        for chunk in table.prefill(budget):
            cells[chunk.slot.number] += chunk.slot.job.tokens[chunk.start : chunk.end]
            table.hold(chunk.slot, chunk.end - chunk.start)
        for slot in decoding:
            cells[slot.number].append(-1)
            table.hold(slot, 1)
        for slot in running.values():
            prompt = list(slot.job.tokens)
            assert cells[slot.number][: len(prompt)] == prompt[: slot.held]
            assert len(cells[slot.number]) == slot.held

    for turn, (action, number, other) in enumerate(history):
        if action == "add" and len(running) < SIZE:
            tokens = tuple(number * 100 + place for place in range(5 + number))
            slot = table.add(EngineJob(str(turn), tokens, max_tokens=8, prompt_id="pqr"[number] if other < 8 else ""))
            if not slot.inherits:
                cells[slot.number] = []
            running[slot.job.id] = slot
        elif action == "remove" and str(number) in running:
            table.remove(str(number))
            del running[str(number)]
        elif action == "step":
            one_step(number, bool(other))
        if any(slot.inherits and not slot.held for slot in running.values()):
            one_step(1, True)
    for _ in range(40):
        one_step(8, True)
    assert all(not slot.prefilling for slot in running.values())
