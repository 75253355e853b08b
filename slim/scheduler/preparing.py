"""Preparing prompts off the event loop, in two lanes. Knows nothing of jobs.

A prompt without a grammar takes milliseconds, and in Python: two at once would only take turns at the interpreter, and
the event loop would wait for both (`/healthz` p99 among 32 long chats 45 ms with two threads, 25 with one). What may
take longer has a lane of its own, so that no plain prompt waits behind a large schema.

The wait for a thread can be cancelled, the thread can't: it goes on to its end. Until then the vocabulary that it reads
must stay, so whoever closes a model waits for `finish` first.
"""

from collections.abc import Callable
from typing import TypeVar

import trio

from ..preparation import Model, Prepared
from ..types import ChatPrompt, Generation, Segment

T = TypeVar("T")

QUICK_THREADS, SLOW_THREADS = 1, 2

SHORT = 128
"""Characters. So short a prompt is tokenized in 90 to 160 microseconds, and the way to a thread and back takes 190."""


class Preparing:
    """Prepares prompts for all jobs of a scheduler."""

    def __init__(self) -> None:
        self._quick = trio.CapacityLimiter(QUICK_THREADS)
        self._slow = trio.CapacityLimiter(SLOW_THREADS)

    @property
    def waiting(self) -> int:
        """Calls of `run` that wait for a thread, and prompts that wait with them."""
        return self._slow.statistics().tasks_waiting

    async def prepare(self, model: Model, request: Generation) -> Prepared:
        """Leaves at once when it is cancelled. Raises InvalidRequest."""
        if is_short(request):
            return model.prepare(request)
        return await self._run(lambda: model.prepare(request), self._quick if is_plain(request) else self._slow)

    async def run(self, work: Callable[[], T]) -> T:
        """Do any work in the slow lane. Leaves at once when it is cancelled."""
        return await self._run(work, self._slow)

    async def _run(self, work: Callable[[], T], lane: trio.CapacityLimiter) -> T:
        return await trio.to_thread.run_sync(work, limiter=lane, abandon_on_cancel=True)

    async def finish(self) -> None:
        """Return when no thread reads a vocabulary any more. Nothing may be prepared afterwards."""
        with trio.CancelScope(shield=True):
            for lane in (self._quick, self._slow):
                for _ in range(int(lane.total_tokens)):
                    await lane.acquire_on_behalf_of(object())


def is_plain(request: Generation) -> bool:
    """Whether nothing has to be compiled for it."""
    prompt = request.prompt
    return request.grammar is None and not (isinstance(prompt, ChatPrompt) and prompt.tools)


def is_short(request: Generation) -> bool:
    """Whether the request costs the event loop less than the way to a thread."""
    prompt = request.prompt
    if isinstance(prompt, ChatPrompt) or not is_plain(request):
        return False
    return sum(len(part.text) if isinstance(part, Segment) else 1 for part in prompt) <= SHORT
