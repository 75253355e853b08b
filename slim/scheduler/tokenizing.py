"""Tokenizing off the event loop, on two threads. Knows nothing of jobs.

The wait for a thread can be cancelled, the thread can't: it goes on to its end. Until then the vocabulary that it reads
must stay, so whoever closes a model waits for `finish` first.
"""

from collections.abc import Sequence

import trio

from ..engines.base import Tokenizer
from ..types import Segment

THREADS = 2
"""Tokenizing is short and may not take the cores from the engine."""

SHORT = 128
"""Characters. So short a prompt is tokenized in 90 to 160 microseconds, and the way to a thread and back takes 190."""


class Tokenizing:
    """Encodes prompts for all jobs of a scheduler."""

    def __init__(self) -> None:
        self._limiter = trio.CapacityLimiter(THREADS)

    async def encode(self, tokenizer: Tokenizer, prompt: Sequence[Segment]) -> tuple[int, ...]:
        """Token ids of the prompt. Leaves at once when it is cancelled."""
        if sum(len(segment.text) for segment in prompt) <= SHORT:
            return tokenizer.encode(prompt)
        return await trio.to_thread.run_sync(tokenizer.encode, prompt, limiter=self._limiter, abandon_on_cancel=True)

    async def finish(self) -> None:
        """Return when no thread reads a vocabulary any more. Nothing may be encoded afterwards."""
        with trio.CancelScope(shield=True):
            for _ in range(THREADS):
                await self._limiter.acquire_on_behalf_of(object())
