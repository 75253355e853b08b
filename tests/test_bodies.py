"""Large bodies take turns on the event loop, and what is larger still leaves it."""

import threading
from itertools import pairwise
from typing import Any, cast

import pytest
import trio
from trio.abc import Instrument

from slim.scheduler import Scheduler
from slim.web.generation import LARGE, MANY_SCORES, ROUNDS, SMALL, Bodies, BodyLimits, written
from slim.web.http import Request

pytestmark = pytest.mark.trio


class Rounds(Instrument):
    """Counts the rounds of the event loop."""

    def __init__(self) -> None:
        self.count = 0

    def before_io_wait(self, timeout: float) -> None:
        self.count += 1


def request(body: bytes) -> Request:
    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    headers = [(b"content-length", b"%d" % len(body))]
    return Request({"type": "http", "method": "POST", "path": "/", "headers": headers}, receive)


async def rounds_of(*sizes: int) -> list[int]:
    """In which rounds of the loop these bodies are done, when all arrive in the first."""
    bodies = Bodies(cast(Scheduler, None), BodyLimits(10**6, 60.0))
    rounds, done = Rounds(), list[int]()

    async def parse(size: int) -> None:
        await bodies.parse(request(b"x" * size), bytes)
        done.append(rounds.count)

    trio.lowlevel.add_instrument(rounds)
    try:
        async with trio.open_nursery() as nursery:
            for size in sizes:
                nursery.start_soon(parse, size)
    finally:
        trio.lowlevel.remove_instrument(rounds)
    return done


async def test_large_bodies_that_arrive_together_are_done_far_apart() -> None:
    done = await rounds_of(*[SMALL + 1] * 4)
    assert all(later - earlier > ROUNDS for earlier, later in pairwise(done[:-1]))


async def test_a_large_body_alone_waits_for_nothing() -> None:
    assert (await rounds_of(SMALL + 1))[0] <= 2


async def test_small_bodies_wait_for_no_turn() -> None:
    done = await rounds_of(*[SMALL] * 3, *[SMALL + 1] * 3)
    assert done[2] <= 2


@pytest.mark.parametrize(("size", "leaves"), [(SMALL, False), (LARGE, False), (LARGE + 1, True)])
async def test_the_largest_bodies_are_parsed_on_a_thread(size: int, leaves: bool) -> None:
    bodies = Bodies(cast(Scheduler, None), BodyLimits(10**6, 60.0))
    thread = await bodies.parse(request(b"x" * size), lambda _: threading.get_ident())
    assert (thread != threading.get_ident()) == leaves


@pytest.mark.parametrize(("scores", "leaves"), [(0, False), (MANY_SCORES, False), (MANY_SCORES + 1, True)])
async def test_many_scores_are_written_on_a_thread(scores: int, leaves: bool) -> None:
    thread = await written(scores, lambda: b"%d" % threading.get_ident())
    assert (int(thread) != threading.get_ident()) == leaves
