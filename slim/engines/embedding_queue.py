"""The texts that wait in an embedding engine, and which of them its next step takes. Pure: knows no model library.

A text is computed whole, in one step: pooling needs all its tokens together.
"""

from attrs import define, field

from ..types import EngineJob


@define
class EmbeddingQueue:
    """Oldest first. At most `size` texts at a time, which is also the most that one step takes."""

    size: int
    context: int
    """Tokens of one text at most."""
    vocabulary: int
    """Token ids are below this."""
    _jobs: dict[str, EngineJob] = field(init=False, factory=dict)

    def add(self, job: EngineJob) -> None:
        """Raises ValueError for a job that would break the others' batch, and RuntimeError for one too many."""
        if not 0 < len(job.tokens) <= self.context:
            raise ValueError(f"{len(job.tokens)} tokens don't fit in {self.context}")
        if min(job.tokens) < 0 or max(job.tokens) >= self.vocabulary:
            raise ValueError("a token id is outside the model's vocabulary")
        if job.max_tokens:
            raise ValueError("this engine embeds and makes no new tokens")
        if len(self._jobs) == self.size or job.id in self._jobs:
            raise RuntimeError(f"no slot for job {job.id}")
        self._jobs[job.id] = job

    def remove(self, job_id: str) -> None:
        """An unknown id is ignored."""
        self._jobs.pop(job_id, None)

    def clear(self) -> None:
        self._jobs.clear()

    def batch(self, budget: int) -> list[EngineJob]:
        """The oldest texts that have at most `budget` tokens together, and the very oldest whatever it has.

        None overtakes another, so none waits for ever. They stay until they are removed.
        """
        chosen: list[EngineJob] = []
        for job in self._jobs.values():
            budget -= len(job.tokens)
            if chosen and budget < 0:
                break
            chosen.append(job)
        return chosen
