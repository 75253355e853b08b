"""A deterministic engine that embeds without a model: the counterpart of `FakeEngine` on an embedding server.

A text's vector is the mean of one vector per token, made from a stable hash: the same words in another order give the
same vector, and texts that share words are alike.
"""

import math
from collections.abc import Callable, Sequence
from hashlib import sha256

from ..types import Embedding, EngineEvent, EngineInfo, EngineJob, Finished, FinishReason, Progress
from .embedding_queue import EmbeddingQueue
from .fake import no_time
from .fake_vocab import FakeTokenizer

SIZE = 32
"""Numbers of one vector: the bytes of a hash."""


class FakeEmbeddingEngine:
    """See `slim.engines.base.Engine` for the contract."""

    def __init__(
        self,
        *,
        slots: int = 4,
        context: int = 2048,
        prefill_chunk: int = 128,
        step_seconds: Callable[[int, int], float] = no_time,
    ) -> None:
        """`step_seconds` gets the jobs that decode (none) and the prompt tokens of a step, and returns seconds."""
        self.slots = slots
        self.context = context
        self.prefill_chunk = prefill_chunk
        self.step_seconds = 0.0
        self.tokenizer = FakeTokenizer()
        self._cost = step_seconds
        self._queue = EmbeddingQueue(slots, context, len(self.tokenizer.pieces))

    def load(self) -> EngineInfo:
        return EngineInfo(self.slots, self.context, self.context, "fake", embedding_size=SIZE)

    @property
    def kv_used(self) -> int:
        """Nothing is kept between two steps."""
        return 0

    def add(self, job: EngineJob) -> None:
        self._queue.add(job)

    def waits(self, job: EngineJob) -> bool:
        """Texts have nothing in common that could be kept."""
        return False

    def cancel(self, job_id: str) -> None:
        self._queue.remove(job_id)

    def step(self) -> Sequence[EngineEvent]:
        self.step_seconds = 0.0
        events: list[EngineEvent] = []
        for job in (jobs := self._queue.batch(self.prefill_chunk)):
            self._queue.remove(job.id)
            total = len(job.tokens)
            events.append(Progress(job.id, total, total))
            events.append(Embedding(job.id, _vector(job.tokens)))
            events.append(Finished(job.id, FinishReason.STOP))
        if jobs:
            self.step_seconds = self._cost(0, sum(len(job.tokens) for job in jobs))
        return events

    def reset(self) -> None:
        self._queue.clear()

    def interrupt(self) -> None:
        """A step takes no time, so there is nothing to end early."""

    def close(self) -> None:
        self._queue.clear()


def _vector(tokens: Sequence[int]) -> tuple[float, ...]:
    sums = [0.0] * SIZE
    for token in tokens:
        for place, byte in enumerate(sha256(b"%d" % token).digest()):
            sums[place] += byte - 127.5
    length = math.hypot(*sums)
    return tuple(value / length for value in sums)
