"""The slot table: who runs where, and what one step computes."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slim.engines.prefixes import WIDE, aligned, common
from slim.engines.slots import SCORED, Donor, Slot, SlotTable
from slim.types import EngineJob, PromptScores, TokenScore

SIZE = 4


def make_job(name: str, tokens: int = 1) -> EngineJob:
    return EngineJob(name, tuple(range(tokens)), max_tokens=8)


def advance(table: SlotTable) -> list[tuple[str, int, int]]:
    """One step as an engine makes it: every chunk and every new token is computed. Returns the chunks."""
    decoding, chunks = table.decoding(), table.prefill()
    for chunk in chunks:
        table.hold(chunk.slot, chunk.end - chunk.start)
    for slot in decoding:
        table.hold(slot, 1)
    return [(chunk.slot.job.id, chunk.start, chunk.end) for chunk in chunks]


def test_the_lowest_free_slot_is_taken_first() -> None:
    table = SlotTable(3, 8)
    assert [table.add(make_job(name)).number for name in "abc"] == [0, 1, 2]
    table.remove("c")
    table.remove("a")
    assert [table.add(make_job(name)).number for name in "de"] == [0, 2]


def test_a_full_table_refuses_a_job() -> None:
    table = SlotTable(1, 8)
    table.add(make_job("a"))
    with pytest.raises(RuntimeError, match="b"):
        table.add(make_job("b"))


def test_a_job_that_runs_is_not_taken_twice() -> None:
    table = SlotTable(2, 8)
    table.add(make_job("a"))
    with pytest.raises(RuntimeError, match="a"):
        table.add(make_job("a"))
    assert table.add(make_job("b")).number == 1


def test_removing_an_unknown_job_changes_nothing() -> None:
    table = SlotTable(1, 8)
    assert table.remove("a") is None
    table.add(make_job("b"))
    assert advance(table) == [("b", 0, 1)]


def test_clear_frees_every_slot() -> None:
    table = SlotTable(3, 8)
    for name in "abc":
        table.add(make_job(name))
    table.clear()
    assert table.held == 0
    assert [table.add(make_job(name)).number for name in "abc"] == [0, 1, 2]


def test_the_oldest_prompt_gets_the_budget_first() -> None:
    table = SlotTable(3, 7)
    for name in "abc":
        table.add(make_job(name, tokens=5))
    table.remove("a")
    table.add(make_job("late", tokens=5))
    assert advance(table) == [("b", 0, 5)]


def test_a_prompt_is_cut_at_the_same_places_whatever_runs_beside_it() -> None:
    """Other cuts give other logits: from 64 rows of a sequence on llama.cpp takes another kernel."""
    for others in ([], [3], [5, 1], [8, 8]):
        table = SlotTable(4, 8)
        for number, tokens in enumerate(others):
            table.add(make_job(f"other {number}", tokens=tokens))
        slot = table.add(make_job("a", tokens=21))
        cuts = []
        while slot.prefilling:
            cuts += [(start, end) for name, start, end in advance(table) if name == "a"]
        assert cuts == [(0, 8), (8, 16), (16, 21)]


def test_a_prompt_that_begins_within_a_part_goes_on_at_the_next_cut() -> None:
    table = SlotTable(1, 8)
    slot = table.add(make_job("a", tokens=21), cached=3)
    cuts = []
    while slot.prefilling:
        cuts += advance(table)
    assert cuts == [("a", 3, 8), ("a", 8, 16), ("a", 16, 21)]
    assert (slot.cached, table.held) == (3, 21)


def test_what_the_budget_leaves_goes_to_a_prompt_that_fits_whole() -> None:
    table = SlotTable(3, 7)
    for name, tokens in (("a", 5), ("b", 5), ("c", 2)):
        table.add(make_job(name, tokens=tokens))
    assert advance(table) == [("a", 0, 5), ("c", 0, 2)]
    assert advance(table) == [("b", 0, 5)]


def scored(name: str, tokens: int, prompt: str = "") -> EngineJob:
    return EngineJob(name, tuple(range(tokens)), max_tokens=1, score_prompt=True, logprobs=1, prompt_id=prompt)


def test_a_step_scores_a_bounded_number_of_prompt_tokens() -> None:
    table = SlotTable(3, 200)
    for one in (scored("a", SCORED - 4), scored("b", 50), make_job("c", 50)):
        table.add(one)
    assert advance(table) == [("a", 0, SCORED - 4), ("b", 0, 4), ("c", 0, 50)]
    assert advance(table) == [("b", 4, 50)]


def test_the_scores_of_chunks_cover_each_prompt_token_once() -> None:
    table = SlotTable(2, 100)
    table.add(scored("a", 150, prompt="p"))
    told: list[tuple[str, TokenScore]] = []
    for _ in range(3):
        for chunk in table.prefill():
            for event in chunk.scores(
                TokenScore(b"first", None), lambda row, token, chunk=chunk: TokenScore(b"%d" % token, chunk.start + row)
            ):
                assert isinstance(event, PromptScores)
                told += [(event.job_id, one) for one in event.scores]
        advance(table)
    assert [one.data for _, one in told] == [b"first", *(b"%d" % token for token in range(1, 150))]
    assert [one.logprob for _, one in told[1:]] == list(range(149))  # each by the row of the token before it
    sibling = scored("b", 150, prompt="p")
    donor = table.donor(sibling)
    assert donor == Donor(0, 149)
    assert not table.add(sibling, donor.tokens).scores_prompt


# What jobs have in common.


def words(name: str, *tokens: int, **more: Any) -> EngineJob:
    return EngineJob(name, tokens, max_tokens=8, **more)


@pytest.mark.parametrize(
    ("one", "other", "length"),
    [
        ((), (), 0),
        ((1,), (), 0),
        ((1, 2), (2, 1), 0),
        ((1, 2), (1, 2), 2),
        ((1, 2, 3), (1, 2), 2),
        ((1, 2, 3), (1, 9), 1),
    ],
)
def test_what_two_prompts_have_in_common_is_their_beginning(
    one: tuple[int, ...], other: tuple[int, ...], length: int
) -> None:
    assert common(one, other) == common(other, one) == length


@given(st.integers(0, 700), st.integers(1, 700), st.sampled_from([16, 64, 128, 100]))
def test_the_rest_of_a_prompt_is_computed_in_parts_of_the_same_kind_as_alone(
    shared: int, length: int, chunk: int
) -> None:
    """Of two kinds, below WIDE rows and from there on; and no more is computed again than that needs."""
    kept = aligned(shared, length, chunk)
    assert 0 <= kept <= min(shared, length - 1)
    assert kept > min(shared, length - 1) - WIDE

    def kinds(start: int) -> dict[int, bool]:
        """For each token, whether the part that it is computed in is wide."""
        table = SlotTable(1, chunk)
        slot = table.add(EngineJob("a", tuple(range(length)), 1), cached=start)
        found = {}
        while slot.prefilling:
            for _, begin, end in advance(table):
                found |= dict.fromkeys(range(begin, end), end - begin >= WIDE)
        return found

    cold = kinds(0)
    assert kinds(kept) == {place: cold[place] for place in range(kept, length)}


def test_the_longest_beginning_is_found_wherever_it_is() -> None:
    table = SlotTable(4, 8)
    for job in (words("a", 1, 2, 3), words("b", 1, 2, 3, 4, 5), words("c", 9)):
        table.add(job)
    assert table.donor(words("x", 1, 2, 3, 4, 5, 6)) is None, "nothing is computed yet"
    while any(name == "b" for name, *_ in advance(table)):
        pass
    assert table.donor(words("x", 1, 2, 3, 4, 5, 6)) == Donor(1, 5)
    table.remove("b")
    assert table.donor(words("x", 1, 2, 3, 4, 5, 6)) == Donor(1, 5)
    assert table.donor(words("x", 9, 9)) == Donor(2, 1)
    assert table.donor(words("x", 8, 9)) is None
    table.add(words("d", 7))
    assert table.donor(words("x", 1, 2, 3, 4, 5, 6)) == Donor(0, 3)


def test_what_is_known_from_elsewhere_is_not_waited_for() -> None:
    table, tokens = SlotTable(2, 64), tuple(range(300))
    table.add(words("a", *tokens))
    assert table.waits(words("b", *tokens, 1))
    assert not table.waits(words("b", *tokens, 1), known=250)


def test_of_equal_donors_the_slot_itself_is_best() -> None:
    table = SlotTable(3, 8)
    for name in "abc":
        table.add(words(name, 1, 2, 3))
    advance(table)
    advance(table)
    table.remove("c")
    table.remove("b")
    assert table.donor(words("x", 1, 2, 3, 4)) == Donor(1, 3)


def test_what_only_one_slot_holds_is_left_to_be_kept() -> None:
    table = SlotTable(3, 8)
    for job in (words("a", 1, 2), words("b", 1, 2, 3), words("c", 4)):
        table.add(job)
    advance(table)
    assert table.left(0) is None
    for name in "abc":
        table.remove(name)
    assert table.left(0) is None, "slot 1 has it too"
    assert [table.left(1).tokens, table.left(2).tokens] == [(1, 2, 3), (4,)]  # type: ignore[union-attr]
    table.clear()
    assert table.left(1) is None


ADD = st.tuples(st.just("add"), st.integers(0, 3), st.integers(1, 20))
REMOVE = st.tuples(st.just("remove"), st.integers(0, 40), st.just(0))
STEP = st.tuples(st.just("step"), st.just(0), st.just(0))


@given(st.lists(st.one_of(ADD, REMOVE, STEP), max_size=60), st.integers(1, 12))
def test_any_history_keeps_the_books_and_shares_only_what_is_there(
    history: list[tuple[str, int, int]], chunk: int
) -> None:
    """The KV is modelled: which tokens each slot's cells hold."""
    table = SlotTable(SIZE, chunk)
    cells: dict[int, list[int]] = {number: [] for number in range(SIZE)}
    running: dict[str, Slot] = {}

    def one_step() -> None:
        decoding, chunks = table.decoding(), table.prefill()
        assert sum(chunk.end - chunk.start for chunk in chunks) <= chunk
        for part in chunks:
            assert part.start == part.slot.held < part.end
            cells[part.slot.number] += part.slot.job.tokens[part.start : part.end]
            table.hold(part.slot, part.end - part.start)
            if part.completes:
                part.slot.take(1000 + part.slot.number, b"", None)
        for slot in decoding:
            cells[slot.number].append(slot.last_token)
            table.hold(slot, 1)
            slot.take(1000 + slot.number, b"", None)
        for slot in running.values():
            assert tuple(cells[slot.number]) == slot.content.tokens
            assert cells[slot.number][: len(slot.job.tokens)] == list(slot.job.tokens[: slot.held])

    for turn, (action, number, size) in enumerate(history):
        if action == "add" and len(running) < SIZE:
            tokens = tuple(number // 2 * 100 + min(place, 5 + number) for place in range(size))
            job = EngineJob(str(turn), tokens, max_tokens=10**6, tenant="t" * (number % 2))
            if table.waits(job):
                continue
            donor = table.donor(job)
            free = set(range(SIZE)) - {slot.number for slot in running.values()}
            if donor is not None:
                kept = cells[donor.number][: donor.tokens]
                assert tuple(kept) == tokens[: donor.tokens]
            slot = table.add(job, 0 if donor is None else donor.tokens)
            assert slot.number == min(free)
            cells[slot.number] = [] if donor is None else kept
            running[job.id] = slot
        elif action == "remove":
            assert table.remove(str(number)) is running.pop(str(number), None)
        elif action == "step":
            one_step()
        assert table.held == sum(slot.held for slot in running.values())
    for _ in range(100):
        one_step()
    assert not any(slot.prefilling for slot in running.values())
