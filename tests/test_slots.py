"""The slot table: who runs where, and what one step computes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slim.engines.slots import Slot, SlotTable
from slim.types import EngineJob

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
    assert plan == [("b", 0, 5, True), ("c", 0, 2, False)]


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
            missing = sum(len(slot.job.tokens) - slot.held for slot in running.values() if slot.prefilling)
            assert sum(chunk.end - chunk.start for chunk in chunks) == min(number, missing)
            assert all(chunk.start == chunk.slot.held < chunk.end for chunk in chunks)
            assert all(chunk.completes for chunk in chunks[:-1])
            assert {slot.number for slot in decoding} == {s.number for s in running.values() if not s.prefilling}
            advance(table, number)
        assert table.held == sum(slot.held for slot in running.values())
