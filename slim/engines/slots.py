"""Slots and the plan of one step, the same for every engine. Pure: knows no model library and no clock.

A job holds one slot from `add` until it ends. A step decodes one token of every job whose prompt is complete and fills
what is left of its prefill budget with prompt chunks, in order of arrival. Mixed steps let new requests in without
stopping the running ones.
"""

import heapq

from attrs import define, field, frozen

from ..types import EngineJob


@define(eq=False)
class Slot:
    """A running job and how far it is. `eq=False`: identity is meant."""

    number: int
    """Also the KV sequence id."""
    job: EngineJob
    held: int = 0
    """Tokens whose KV is computed."""
    last_token: int = -1
    """The newest token, not yet in the KV cache; -1 while the prompt isn't complete."""
    made: int = 0
    """New tokens so far."""

    @property
    def prefilling(self) -> bool:
        return self.held < len(self.job.tokens)


@frozen(eq=False)
class Chunk:
    """Prompt tokens `start` to `end` of one slot, to be computed in this step."""

    slot: Slot
    start: int
    end: int

    @property
    def completes(self) -> bool:
        """The prompt is complete after this chunk, so the step samples the job's first token."""
        return self.end == len(self.slot.job.tokens)


@define
class SlotTable:
    """Who runs where. Lowest free number first: KV streams are fast only while the ids in use have no gaps."""

    size: int
    _free: list[int] = field(init=False)
    _by_id: dict[str, Slot] = field(init=False, factory=dict)
    held: int = field(init=False, default=0)
    """Tokens held by all running jobs."""

    def __attrs_post_init__(self) -> None:
        self._free = list(range(self.size))

    def add(self, job: EngineJob) -> Slot:
        """Take the lowest free slot. Raises RuntimeError when none is free or the id runs already."""
        if not self._free or job.id in self._by_id:
            raise RuntimeError(f"no slot for job {job.id}")
        slot = Slot(heapq.heappop(self._free), job)
        self._by_id[job.id] = slot
        return slot

    def remove(self, job_id: str) -> Slot | None:
        """Free the job's slot and return it, or None when it holds none."""
        slot = self._by_id.pop(job_id, None)
        if slot is not None:
            heapq.heappush(self._free, slot.number)
            self.held -= slot.held
        return slot

    def hold(self, slot: Slot, tokens: int) -> None:
        """The KV of so many more of the slot's tokens is computed."""
        slot.held += tokens
        self.held += tokens

    def clear(self) -> None:
        for job_id in list(self._by_id):
            self.remove(job_id)

    def decoding(self) -> list[Slot]:
        """Slots whose prompt is complete, oldest job first."""
        return [slot for slot in self._by_id.values() if not slot.prefilling]

    def prefill(self, budget: int) -> list[Chunk]:
        """Prompt chunks for this step, at most `budget` tokens together, oldest job first."""
        chunks = []
        for slot in self._by_id.values():
            if budget <= 0:
                break
            if slot.prefilling:
                end = min(slot.held + budget, len(slot.job.tokens))
                chunks.append(Chunk(slot, slot.held, end))
                budget -= end - slot.held
        return chunks
