"""Slots and the plan of one step, the same for every engine. Pure: knows no model library and no clock.

A job holds one slot from `add` until it ends. A step decodes one token of every job whose prompt is complete and fills
what is left of its prefill budget with prompt chunks, in order of arrival. Mixed steps let new requests in without
stopping the running ones.

What a job has computed stays in its slot when it ends, until another job takes that slot. A new job begins with the
longest prefix of its prompt that any slot holds, running or not. While a running job is still computing such a prefix,
the new one `waits`, outside of the slots.
"""

import heapq
from collections.abc import Callable, Iterator

from attrs import define, field, frozen

from ..types import EngineEvent, EngineJob, Finished, FinishReason, PromptScores, Token, TokenScore
from .prefixes import WIDE, WORTH, Content, covers, is_sibling, usable

SCORED = WIDE - 1
"""Prompt tokens that one step scores at most: each costs a row of logits, 4 bytes for each token of the vocabulary.

So a prompt's scores don't depend on where other jobs make it be cut; with WIDE rows they moved by 0.03 in the mean, and
by 0.3 at most.
"""


@define(eq=False)
class Slot:
    """A running job and how far it is. `eq=False`: identity is meant."""

    number: int
    """Also the KV sequence id."""
    job: EngineJob
    cached: int = 0
    """How many of the prompt's tokens it began with."""
    held: int = field(init=False)
    """Tokens whose KV it has."""
    last_token: int = field(init=False, default=-1)
    """The newest token, not yet in the KV cache; -1 while there is none."""
    _output: list[int] = field(init=False, factory=list)

    def __attrs_post_init__(self) -> None:
        self.held = self.cached

    @property
    def made(self) -> int:
        """New tokens so far."""
        return len(self._output)

    @property
    def prefilling(self) -> bool:
        return self.held < len(self.job.tokens)

    @property
    def scores_prompt(self) -> bool:
        """A prompt that was not computed here is not scored: the first of its siblings has done that."""
        return self.job.score_prompt and not self.cached

    @property
    def content(self) -> Content:
        """What its KV holds."""
        tokens = (*self.job.tokens, *self._output)[: self.held]
        return self._content(tokens, "" if self.prefilling else self.job.prompt_id)

    @property
    def coming(self) -> Content:
        """What its KV will hold when the prompt is complete."""
        return self._content(self.job.tokens, self.job.prompt_id)

    def _content(self, tokens: tuple[int, ...], prompt_id: str) -> Content:
        return Content(tokens, self.job.tenant, prompt_id, self.scores_prompt)

    def ends(self, token: int, end: frozenset[int]) -> bool:
        """The token ends the job and makes no Token event; `end` are the vocabulary's end tokens."""
        return token in end or token in self.job.stop_token_ids

    def take(self, token: int, data: bytes, score: TokenScore | None) -> list[EngineEvent]:
        """The job goes on with this token: its events, where the last may be Finished."""
        self.last_token = token
        self._output.append(token)
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


@frozen
class Donor:
    """Slot `number` holds the first `tokens` tokens of a job's prompt."""

    number: int
    tokens: int


@define
class SlotTable:
    """Who runs where. Lowest free number first: KV streams are fast only while the ids in use have no gaps."""

    size: int
    chunk: int
    """Prompts are cut at its multiples: see `prefill`."""
    _free: list[int] = field(init=False)
    _by_id: dict[str, Slot] = field(init=False, factory=dict)
    _left: dict[int, Content] = field(init=False, factory=dict)
    """By free slot: what its KV still holds."""
    held: int = field(init=False, default=0)
    """Tokens held by all running jobs."""

    def __attrs_post_init__(self) -> None:
        self._free = list(range(self.size))

    def waits(self, job: EngineJob, known: int = 0) -> bool:
        """Whether a running job is about to have computed what this one then needs not. The caller asks again.

        `known` tokens of the prompt can be had from elsewhere.
        """
        donor = self.donor(job)
        least = max(known, donor.tokens if donor is not None else 0) + 1
        for slot in self._by_id.values():
            if slot.prefilling and slot.job.cache_prompt:
                worth = 0 if is_sibling(slot.coming, job) else WORTH
                if usable(slot.coming, job, self.chunk) >= least + worth:
                    return True
        return False

    def donor(self, job: EngineJob) -> Donor | None:
        """Where most of its prompt is, best in the slot that it will get."""
        best = Donor(-1, 0)
        for number, content in self._contents():
            tokens = usable(content, job, self.chunk)
            if tokens > best.tokens or (tokens == best.tokens > 0 and self._free and number == self.next_number):
                best = Donor(number, tokens)
        return best if best.tokens else None

    @property
    def next_number(self) -> int:
        """The slot that the next job gets. Only while one is free."""
        return self._free[0]

    def left(self, number: int) -> Content | None:
        """What a free slot's KV still holds and no other slot's does."""
        content = self._left.get(number)
        others = (other for place, other in self._contents() if place != number)
        return None if content is None or any(covers(other, content) for other in others) else content

    def check(self, job: EngineJob) -> None:
        """Raise RuntimeError when no slot is free for the job, or its id runs already."""
        if not self._free or job.id in self._by_id:
            raise RuntimeError(f"no slot for job {job.id}")

    def add(self, job: EngineJob, cached: int = 0) -> Slot:
        """Take the lowest free slot, whose KV now holds so many of the prompt's tokens and nothing else.

        Raises what `check` raises: ask it before you touch that KV.
        """
        self.check(job)
        slot = Slot(heapq.heappop(self._free), job, cached)
        self._left.pop(slot.number, None)
        self._by_id[job.id] = slot
        self.held += cached
        return slot

    def remove(self, job_id: str) -> Slot | None:
        """Free the job's slot and return it, or None when it holds none."""
        slot = self._by_id.pop(job_id, None)
        if slot is not None:
            heapq.heappush(self._free, slot.number)
            self.held -= slot.held
            if slot.job.cache_prompt and slot.held:
                self._left[slot.number] = slot.content
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

    def decoding(self) -> list[Slot]:
        """Slots whose prompt is complete, oldest job first."""
        return [slot for slot in self._by_id.values() if not slot.prefilling]

    def prefill(self) -> list[Chunk]:
        """Prompt chunks for this step, at most `chunk` tokens together, oldest job first.

        A prompt is cut at multiples of `chunk` and nowhere else, whatever runs beside it: how many rows a sequence has
        in a step decides which kernels compute them, and so the last bits of its logits. At most SCORED tokens are of
        prompts that are scored; so few may be cut anywhere.
        """
        chunks: list[Chunk] = []
        left, scored = self.chunk, SCORED
        for slot in self._by_id.values():
            if not slot.prefilling:
                continue
            rest = len(slot.job.tokens) - slot.held
            if slot.scores_prompt:
                size = min(rest, left, scored)
                scored -= size
            else:
                size = min(rest, self.chunk - slot.held % self.chunk)
            if 0 < size <= left:
                chunks.append(Chunk(slot, slot.held, slot.held + size))
                left -= size
        return chunks

    def _contents(self) -> Iterator[tuple[int, Content]]:
        """What every slot's KV holds, as far as jobs may share it."""
        yield from self._left.items()
        for slot in self._by_id.values():
            if slot.job.cache_prompt and slot.held:
                yield slot.number, slot.content
