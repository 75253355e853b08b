"""Slots and the plan of one step, the same for every engine. Pure: knows no model library and no clock.

A job holds one slot from `add` until it ends. A step decodes one token of every job whose prompt is complete and fills
what is left of its prefill budget with prompt chunks, in order of arrival. Mixed steps let new requests in without
stopping the running ones.

Jobs with the same `prompt_id` compute their prompt once: the others wait for the first and then take its KV over, up to
the prompt's last token, which each computes again for logits of its own. A job that has ended leaves its KV in the slot
until another job takes that slot, so that later siblings find it.
"""

import heapq
from collections.abc import Callable

from attrs import define, field, frozen

from ..types import EngineEvent, EngineJob, Finished, FinishReason, PromptScores, Token, TokenScore

SCORED = 63
"""Prompt tokens that one step scores at most: each costs a row of logits, 4 bytes for each token of the vocabulary.

Below 64, because from there on llama.cpp's flash attention takes another kernel. So a prompt's scores don't depend on
where other jobs make it be cut; with 64 they moved by 0.03 in the mean, and by 0.3 at most.
"""


@define(eq=False)
class Slot:
    """A running job and how far it is. `eq=False`: identity is meant."""

    number: int
    """Also the KV sequence id."""
    job: EngineJob
    held: int = 0
    """Tokens whose KV is computed or taken over."""
    cached: int = 0
    """How many of the prompt's tokens were taken over."""
    last_token: int = -1
    """The newest token, not yet in the KV cache; -1 while there is none."""
    made: int = 0
    """New tokens so far."""
    shares: bool = False
    """May wait for the prompt of another job with the same one, and take its KV over."""
    inherits: bool = False
    """Its KV still holds this prompt, from the job before. Else the engine empties it before the first chunk."""

    @property
    def prefilling(self) -> bool:
        return self.held < len(self.job.tokens)

    @property
    def scores_prompt(self) -> bool:
        """A prompt that was taken over is not scored: the first of its siblings has done that."""
        return self.job.score_prompt and not self.cached

    def ends(self, token: int, end: frozenset[int]) -> bool:
        """The token ends the job and makes no Token event; `end` are the vocabulary's end tokens."""
        return token in end or token in self.job.stop_token_ids

    def take(self, token: int, data: bytes, score: TokenScore | None) -> list[EngineEvent]:
        """The job goes on with this token: its events, where the last may be Finished."""
        self.last_token = token
        self.made += 1
        events: list[EngineEvent] = [Token(self.job.id, token, data, score)]
        if self.job.constraint is not None and self.job.constraint.complete:
            events.append(Finished(self.job.id, FinishReason.STOP))
        elif self.made == self.job.max_tokens:
            events.append(Finished(self.job.id, FinishReason.LENGTH))
        return events


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

    def scores(self, first: TokenScore, score: Callable[[int, int], TokenScore]) -> list[EngineEvent]:
        """The event with the scores of the prompt tokens that this chunk makes known, or none.

        `first` is for the prompt's first token, `score` takes the place of a row within the chunk and the token there.
        """
        tokens = self.slot.job.tokens
        scores = [first] if self.start == 0 else []
        scores += [
            score(place - self.start, tokens[place + 1]) for place in range(self.start, min(self.end, len(tokens) - 1))
        ]
        return [PromptScores(self.slot.job.id, tuple(scores))] if scores else []


@frozen(eq=False)
class Takeover:
    """The slot can have the first `tokens` tokens of its prompt from slot `source`, maybe itself."""

    slot: Slot
    source: int
    tokens: int


@define
class SlotTable:
    """Who runs where. Lowest free number first: KV streams are fast only while the ids in use have no gaps."""

    size: int
    _free: list[int] = field(init=False)
    _by_id: dict[str, Slot] = field(init=False, factory=dict)
    _left: dict[int, EngineJob] = field(init=False, factory=dict)
    """By free slot: the job whose whole prompt is still in its KV."""
    held: int = field(init=False, default=0)
    """Tokens held by all running jobs."""

    def __attrs_post_init__(self) -> None:
        self._free = list(range(self.size))

    def add(self, job: EngineJob) -> Slot:
        """Take the lowest free slot. Raises RuntimeError when none is free or the id runs already."""
        if not self._free or job.id in self._by_id:
            raise RuntimeError(f"no slot for job {job.id}")
        slot = Slot(heapq.heappop(self._free), job, shares=bool(job.prompt_id) and len(job.tokens) > 1)
        before = self._left.pop(slot.number, None)
        slot.inherits = slot.shares and before is not None and _same_prompt(before, job)
        self._by_id[job.id] = slot
        return slot

    def remove(self, job_id: str) -> Slot | None:
        """Free the job's slot and return it, or None when it holds none."""
        slot = self._by_id.pop(job_id, None)
        if slot is not None:
            heapq.heappush(self._free, slot.number)
            self.held -= slot.held
            if slot.job.prompt_id and not slot.prefilling:
                self._left[slot.number] = slot.job
        return slot

    def hold(self, slot: Slot, tokens: int) -> None:
        """The KV of so many more of the slot's tokens is computed."""
        slot.held += tokens
        self.held += tokens

    def clear(self) -> None:
        """Forget every job, and what ended jobs have left."""
        for job_id in list(self._by_id):
            self.remove(job_id)
        self._left.clear()

    def takeovers(self) -> list[Takeover]:
        """What can be taken over now, oldest job first. Each must be answered by `took` or `refused` before a step."""
        offers = []
        for slot in self._by_id.values():
            if slot.shares and not slot.held:
                source = self._source(slot)
                if source is not None:
                    offers.append(Takeover(slot, source, len(slot.job.tokens) - 1))
        return offers

    def took(self, takeover: Takeover) -> None:
        """The slot's KV now holds these tokens and nothing else."""
        takeover.slot.cached = takeover.tokens
        self.hold(takeover.slot, takeover.tokens)

    def refused(self, takeover: Takeover) -> None:
        """The engine can't do it and has emptied the slot's KV, so the slot computes its prompt itself."""
        takeover.slot.shares = takeover.slot.inherits = False

    def decoding(self) -> list[Slot]:
        """Slots whose prompt is complete, oldest job first."""
        return [slot for slot in self._by_id.values() if not slot.prefilling]

    def prefill(self, budget: int) -> list[Chunk]:
        """Prompt chunks for this step, at most `budget` tokens together, oldest job first.

        A prompt is cut at multiples of `budget` and nowhere else, whatever runs beside it: how many rows a sequence has
        in a step decides which kernels compute them, and so the last bits of its logits. At most SCORED tokens are of
        prompts that are scored; so few may be cut anywhere. A slot that waits for another's KV has none.
        """
        chunks: list[Chunk] = []
        whole, scored, computing = budget, SCORED, set[str]()
        for slot in self._by_id.values():
            if not slot.prefilling or (slot.shares and not slot.held and slot.job.prompt_id in computing):
                continue
            computing.add(slot.job.prompt_id)
            left = len(slot.job.tokens) - slot.held
            size = min(left, budget, scored) if slot.scores_prompt else min(left, whole)
            if 0 < size <= budget:
                chunks.append(Chunk(slot, slot.held, slot.held + size))
                budget -= size
                scored -= size if slot.scores_prompt else 0
        return chunks

    def _source(self, slot: Slot) -> int | None:
        """A slot whose KV holds the same prompt, best the slot itself."""
        if slot.inherits:
            return slot.number
        for other in self._by_id.values():
            if not other.prefilling and _same_prompt(other.job, slot.job):
                return other.number
        return next((number for number, job in self._left.items() if _same_prompt(job, slot.job)), None)


def _same_prompt(one: EngineJob, other: EngineJob) -> bool:
    """The tokens are compared too: KV of another prompt would give a fluent answer to a question nobody asked."""
    return one.prompt_id == other.prompt_id and (one.tokens is other.tokens or one.tokens == other.tokens)
