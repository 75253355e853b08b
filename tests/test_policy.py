"""The books of the system: places, order, the retry hint. Pure, so time is a number."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from slim.policy import MOVES, JobState, Load, Place, Policy, choose_replica


def test_all_places_taken_is_full_until_one_is_given_back() -> None:
    policy = Policy(bound=2)
    first, _ = policy.reserve("a", 0.0), policy.reserve("b", 0.0)
    assert not policy.has_room(1)
    policy.end(first, now=1.0)
    assert policy.has_room(1)
    policy.reserve("c", 0.0)
    with pytest.raises(RuntimeError):
        policy.reserve("d", 0.0)


def test_waiting_jobs_keep_their_order_of_arrival_however_they_were_prepared() -> None:
    policy = Policy(bound=8)
    places = [policy.reserve(name, 0.0) for name in "abcd"]
    for place in (places[2], places[0], places[3], places[1]):
        policy.move(place, JobState.QUEUED)
    assert [place.job_id for place in policy.waiting()] == ["a", "b", "c", "d"]


@pytest.mark.parametrize(("before", "after"), list(itertools.product(JobState, JobState)))
def test_only_the_moves_of_the_table_are_possible(before: JobState, after: JobState) -> None:
    policy = Policy(bound=1)
    place = policy.reserve("a", 0.0)
    place.state = before
    if after in MOVES[before]:
        policy.move(place, after)
        assert place.state is after
    else:
        with pytest.raises(RuntimeError):
            policy.move(place, after)


def test_a_job_ends_only_once() -> None:
    policy = Policy(bound=1)
    place = policy.reserve("a", 0.0)
    policy.end(place, now=0.0)
    with pytest.raises(RuntimeError):
        policy.end(place, now=0.0)


def run_jobs(policy: Policy, ends: list[float]) -> None:
    """Jobs that end at these times, in a system that is busy all the while."""
    if not ends:
        return
    busy = policy.reserve("busy", ends[0])
    for now in ends:
        place = policy.reserve("job", now)
        for state in (JobState.QUEUED, JobState.POSTED, JobState.RUNNING):
            policy.move(place, state)
        policy.end(place, now)
    policy.end(busy, ends[-1])


def test_the_retry_hint_is_the_time_that_the_queue_will_take() -> None:
    policy = Policy(bound=100)
    run_jobs(policy, [2.0 * i for i in range(20)])  # one every two seconds
    for _ in range(5):
        policy.reserve("waiting", 38.0)
    assert policy.retry_after(now=38.0, jitter=0.0) == pytest.approx(10.0, rel=0.1)
    assert policy.retry_after(now=38.0, jitter=1.0) == pytest.approx(15.0, rel=0.1)


def test_an_idle_hour_does_not_spoil_the_retry_hint() -> None:
    policy = Policy(bound=100)
    run_jobs(policy, [i / 10 for i in range(10)])
    run_jobs(policy, [3600 + i / 10 for i in range(20)])
    for _ in range(10):
        policy.reserve("waiting", 3602.0)
    assert policy.retry_after(3602.0, 0.0) == pytest.approx(1.0, rel=0.2)


def test_the_retry_hint_grows_while_nothing_ends() -> None:
    policy = Policy(bound=100)
    run_jobs(policy, [0.0, 1.0, 2.0])
    assert policy.retry_after(30.0, 0.0) > policy.retry_after(3.0, 0.0)


@given(
    ends=st.lists(st.floats(0, 1e6), max_size=50).map(sorted),
    waiting=st.integers(0, 50),
    later=st.floats(0, 1e9),
    jitter=st.floats(0, 1),
)
def test_the_retry_hint_is_always_one_that_clients_honour(
    ends: list[float], waiting: int, later: float, jitter: float
) -> None:
    policy = Policy(bound=100)
    run_jobs(policy, ends)
    for _ in range(waiting):
        policy.reserve("waiting", 0.0)
    assert 0 < policy.retry_after((ends[-1] if ends else 0.0) + later, jitter) <= 60


class PolicyMachine(RuleBasedStateMachine):
    """Any history of arrivals, moves and ends, against a list of names in order of arrival."""

    def __init__(self) -> None:
        super().__init__()
        self.policy = Policy(bound=5)
        self.places: list[Place] = []
        self.now = 0.0

    @rule(seconds=st.floats(0, 100))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def arrive(self) -> None:
        assert self.policy.has_room(1) == (len(self.places) < 5)
        if self.policy.has_room(1):
            self.places.append(self.policy.reserve(f"job {self.now}", self.now))

    @precondition(lambda self: self.places)
    @rule(data=st.data())
    def move_on(self, data: st.DataObject) -> None:
        place = data.draw(st.sampled_from(self.places))
        later = [state for state in MOVES[place.state] if state is not JobState.ENDED]
        if later:
            self.policy.move(place, later[0])

    @precondition(lambda self: self.places)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        place = data.draw(st.sampled_from(self.places))
        self.policy.end(place, self.now)
        self.places.remove(place)

    @invariant()
    def books_agree(self) -> None:
        assert self.policy.waiting() == [place for place in self.places if place.state is JobState.QUEUED]
        for state in JobState:
            assert self.policy.count(state) == sum(place.state is state for place in self.places)
        assert 0 < self.policy.retry_after(self.now, 0.5) <= 60


TestPolicyMachine = PolicyMachine.TestCase


def test_the_next_job_goes_to_the_least_loaded_replica() -> None:
    assert choose_replica([Load(0, 3, 4), Load(1, 1, 4), Load(2, 2, 4)]) == 1


def test_one_job_is_posted_ahead_of_the_free_slots_and_no_more() -> None:
    assert choose_replica([Load(0, 4, 4)]) == 0
    assert choose_replica([Load(0, 5, 4)]) is None


def test_a_free_slot_is_preferred_to_a_post_ahead() -> None:
    assert choose_replica([Load(0, 4, 4), Load(1, 3, 4)]) == 1


def test_a_replica_that_knows_the_prompt_is_better_than_an_idle_one_while_it_has_a_free_slot() -> None:
    assert choose_replica([Load(0, 0, 4), Load(1, 3, 4, known=64)]) == 1
    assert choose_replica([Load(0, 0, 4, known=36), Load(1, 3, 4, known=99)]) == 0
    assert choose_replica([Load(0, 0, 4), Load(1, 4, 4, known=999)]) == 0
    assert choose_replica([Load(0, 4, 4), Load(1, 4, 4, known=999)]) == 0
