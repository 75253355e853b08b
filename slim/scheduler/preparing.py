"""Preparing prompts off the event loop, on two threads. Knows nothing of jobs.

The wait for a thread can be cancelled, the thread can't: it goes on to its end. Until then the vocabulary that it reads
must stay, so whoever closes a model waits for `finish` first.
"""

from collections.abc import Callable
from typing import TypeVar

import trio

from ..preparation import Model, Prepared
from ..types import ChatPrompt, Generation, Segment

T = TypeVar("T")

THREADS = 2
"""Preparing is short and may not take the cores from the engine."""

SHORT = 128
"""Characters. So short a prompt is tokenized in 90 to 160 microseconds, and the way to a thread and back takes 190."""


class Preparing:
    """Prepares prompts for all jobs of a scheduler."""

    def __init__(self) -> None:
        self._limiter = trio.CapacityLimiter(THREADS)

    @property
    def waiting(self) -> int:
        """Calls that wait for a thread."""
        return self._limiter.statistics().tasks_waiting

    async def prepare(self, model: Model, request: Generation) -> Prepared:
        """Leaves at once when it is cancelled. Raises InvalidRequest."""
        if is_short(request):
            return model.prepare(request)
        return await self.run(lambda: model.prepare(request))

    async def run(self, work: Callable[[], T]) -> T:
        """Do the work in one of the threads. Leaves at once when it is cancelled."""
        return await trio.to_thread.run_sync(work, limiter=self._limiter, abandon_on_cancel=True)

    async def finish(self) -> None:
        """Return when no thread reads a vocabulary any more. Nothing may be prepared afterwards."""
        with trio.CancelScope(shield=True):
            for _ in range(THREADS):
                await self._limiter.acquire_on_behalf_of(object())


def is_short(request: Generation) -> bool:
    """Whether the request costs the event loop less than the way to a thread."""
    prompt = request.prompt
    if isinstance(prompt, ChatPrompt) or request.grammar is not None:
        return False
    return sum(len(part.text) if isinstance(part, Segment) else 1 for part in prompt) <= SHORT
