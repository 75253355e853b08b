"""Who gets in, who is next, and when to come back. Pure: `now` is an argument, nothing here waits or knows a thread.

A job holds one place from its reservation to its end. Its life is the table MOVES; an illegal move raises. The number
of places is the bound of the whole system: slots of all replicas plus the queue. Nothing piles up outside of it, so
overload is an answer and not a delay. Waiting jobs are taken in order of arrival.
"""

from collections import deque
from collections.abc import Iterable
from enum import Enum

from attrs import define, field, frozen

from .errors import Overloaded

LOOKAHEAD = 1
"""Jobs posted to a replica beyond its free slots, so that a slot never waits for the event loop: measured 97 %
occupancy against 91 % with 0; more gains nothing and fixes the choice of the replica too early."""

WORTH = 64
"""Tokens that another replica must know more of a prompt before a job goes there and not to the least loaded one."""

RATE_WINDOW = 32
"""Ended jobs that the service rate is measured over."""

RETRY_DEFAULT, RETRY_LEAST, RETRY_MOST = 1.0, 0.05, 60.0
"""Seconds. OpenAI's clients ignore hints that are 0 or above 60."""


class JobState(Enum):
    """What has happened by then."""

    RESERVED = "reserved"
    """It has a place; its prompt is being tokenized."""
    QUEUED = "queued"
    """It waits for a replica."""
    POSTED = "posted"
    """A replica has it, but no slot for it yet."""
    RUNNING = "running"
    """It has a slot."""
    ENDED = "ended"


MOVES: dict[JobState, frozenset[JobState]] = {
    JobState.RESERVED: frozenset({JobState.QUEUED, JobState.ENDED}),
    JobState.QUEUED: frozenset({JobState.POSTED, JobState.ENDED}),
    JobState.POSTED: frozenset({JobState.RUNNING, JobState.ENDED}),
    JobState.RUNNING: frozenset({JobState.ENDED}),
    JobState.ENDED: frozenset(),
}


@define(eq=False)
class Place:
    """One job's place in the system."""

    job_id: str
    state: JobState = JobState.RESERVED


@frozen
class Load:
    """How full one replica is. `jobs` counts those that it has not yet reported as gone."""

    replica: int
    jobs: int
    slots: int
    known: int = 0
    """Tokens of the next job's prompt that it has computed before, as far as is known here."""


def choose_replica(loads: Iterable[Load]) -> int | None:
    """The replica that should get the next job, or None where none can be posted one more.

    The least loaded one, or one with a free slot that knows clearly more of the prompt.
    """
    open_ = [load for load in loads if load.jobs < load.slots + LOOKAHEAD]
    if not open_:
        return None
    idlest = min(open_, key=lambda load: load.jobs / load.slots)
    knowing = max((load for load in open_ if load.jobs < load.slots), key=lambda load: load.known, default=idlest)
    return knowing.replica if knowing.known >= idlest.known + WORTH else idlest.replica


@define
class ServiceRate:
    """Seconds per ended job, over the last ones."""

    _ends: deque[float] = field(factory=lambda: deque(maxlen=RATE_WINDOW))

    def record(self, now: float) -> None:
        self._ends.append(now)

    def skip_idle(self, now: float) -> None:
        """The system was empty until now: time in which nothing could end does not count."""
        if self._ends:
            idle = now - self._ends[-1]
            self._ends = deque((end + idle for end in self._ends), maxlen=RATE_WINDOW)

    def seconds_per_job(self, now: float) -> float | None:
        """None before two jobs have ended. Grows while nothing ends."""
        if len(self._ends) < 2:
            return None
        return max((now - self._ends[0]) / len(self._ends), 0.0)


@define
class Policy:
    """The books of the system: places, order, service rate."""

    bound: int
    """Jobs in the system at most: slots of all replicas plus the queue."""
    _places: dict[Place, None] = field(factory=dict)
    """In order of arrival."""
    _rate: ServiceRate = field(factory=ServiceRate)

    def has_room(self, jobs: int) -> bool:
        """Whether so many more get a place."""
        return len(self._places) + jobs <= self.bound

    def overloaded(self, now: float, jitter: float) -> Overloaded:
        """The refusal for a full system; `jitter` (0 to 1) spreads the retries."""
        text = f"The server is full: all {self.bound} places are taken. Please retry later."
        return Overloaded(text, self.retry_after(now, jitter))

    def reserve(self, job_id: str, now: float) -> Place:
        """A place for a new job. Raises RuntimeError when all are taken: ask `has_room` first."""
        if not self.has_room(1):
            raise RuntimeError("no place is free")
        if not self._places:
            self._rate.skip_idle(now)
        place = Place(job_id)
        self._places[place] = None
        return place

    def move(self, place: Place, state: JobState) -> None:
        """Raises RuntimeError for a move that the table doesn't have."""
        if state not in MOVES[place.state]:
            raise RuntimeError(f"a job can't go from {place.state.value} to {state.value}")
        place.state = state

    def end(self, place: Place, now: float) -> None:
        """Give the place back. A job that had a slot tells the service rate, however it ended."""
        if place.state is JobState.RUNNING:
            self._rate.record(now)
        self.move(place, JobState.ENDED)
        del self._places[place]

    def waiting(self) -> list[Place]:
        """Queued places, first to be served first."""
        return [place for place in self._places if place.state is JobState.QUEUED]

    def positions(self) -> dict[str, int]:
        """For each job without a slot, by id, how many of those are before it."""
        before = (place for place in self._places if place.state is not JobState.RUNNING)
        return {place.job_id: number for number, place in enumerate(before)}

    def count(self, *states: JobState) -> int:
        """Jobs that are in one of these states."""
        return sum(place.state in states for place in self._places)

    def retry_after(self, now: float, jitter: float) -> float:
        """Seconds until the jobs that now wait will have had their turn, up to half as long again by `jitter`."""
        pace = self._rate.seconds_per_job(now)
        waiting = self.count(JobState.RESERVED, JobState.QUEUED, JobState.POSTED)
        estimate = RETRY_DEFAULT if pace is None else pace * max(1, waiting)
        return min(max(estimate * (1 + jitter / 2), RETRY_LEAST), RETRY_MOST)
