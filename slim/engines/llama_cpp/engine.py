"""Continuous batching over llama.cpp: the running jobs decode together in every step.

Knows no text, stop string, queue or clock. Jobs sit in KV sequences by slot number; a step decodes one token of each
job whose prompt is complete, and prompt chunks up to a budget. What belongs to one job alone (its
constraint, its logits) can fail that job alone.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from itertools import groupby

import attrs
from attrs import define, evolve, field, frozen

from ...errors import Unanswerable
from ...types import EngineEvent, EngineInfo, EngineJob, Failed, Finished, FinishReason, Progress, TokenScore
from ..prefixes import WORTH
from ..prompt_cache import PromptCache
from ..sampling import Array, BadLogitsError, score
from ..slots import SCORED, Chunk, Slot, SlotTable
from .dry import DryMaker, LlamaSampler
from .loaded import LlamaOptions, Loaded
from .native import Context, library
from .vocab import Vocabulary

SAMPLERS = frozenset({"dry", "xtc", "mirostat"})
"""What EngineInfo tells of: not every engine has them."""


@frozen(eq=False)
class Row:
    """What one slot puts into a step's batch."""

    slot: Slot
    tokens: Sequence[int]
    chunk: Chunk | None = None
    """The prompt's part that the tokens are, None for a new token."""

    @property
    def chooses(self) -> bool:
        """A new token follows."""
        return self.slot.job.max_tokens > 0 and (self.chunk is None or self.chunk.completes)

    @property
    def scores(self) -> bool:
        return self.chunk is not None and self.slot.scores_prompt


@define(eq=False)
class LlamaEngine:
    """One GGUF model and its slots. See `slim.engines.base.Engine` for the contract."""

    options: LlamaOptions
    step_seconds: float = field(init=False, default=0.0)
    _loaded: Loaded[Context] = field(
        init=False, default=attrs.Factory(lambda self: Loaded(self.options, Context), takes_self=True)
    )
    _table: SlotTable = field(
        init=False,
        default=attrs.Factory(lambda self: SlotTable(self.options.slots, self.options.prefill_chunk), takes_self=True),
    )
    _cache: PromptCache = field(
        init=False,
        default=attrs.Factory(
            lambda self: PromptCache(self.options.prompt_cache, self.options.prefill_chunk), takes_self=True
        ),
    )
    _samplers: dict[int, LlamaSampler] = field(init=False, factory=dict)
    """By slot number."""
    _dry: DryMaker = field(init=False)
    _owned: ExitStack = field(init=False, factory=ExitStack)
    """What `load` made beside the model."""

    def load(self) -> EngineInfo:
        """Raises LlamaError with one line when the file or the memory is wrong."""
        options, loaded = self.options, self._loaded
        model = loaded.load()
        self._dry = DryMaker(library(), loaded.vocab.handle, loaded.longest)
        self._owned.callback(self._dry.close)
        loaded.open(batch=options.slots + options.prefill_chunk, scored=SCORED)
        return EngineInfo(
            slots=options.slots,
            context=loaded.longest,
            kv_tokens=loaded.longest * options.slots,
            description=f"{model.description}, {options.threads} threads, KV {options.kv_type}",
            chat_template=model.chat_template,
            samplers=SAMPLERS,
        )

    @property
    def tokenizer(self) -> Vocabulary:
        return self._loaded.vocab

    @property
    def kv_used(self) -> int:
        return self._table.held

    def add(self, job: EngineJob) -> None:
        """Raises ValueError for a job that would break the batch of the others."""
        if not job.tokens or len(job.tokens) + job.max_tokens > self._loaded.longest:
            raise ValueError(f"{len(job.tokens)} + {job.max_tokens} tokens don't fit in {self._loaded.longest}")
        named = (*job.tokens, *job.stop_token_ids, *job.shown, *(token for token, _ in job.sampling.logit_bias))
        if min(named) < 0 or max(named) >= len(self._loaded.vocab):
            raise ValueError("a token id is outside the model's vocabulary")
        self._table.check(job)
        slot = self._table.add(job, self._begin(job))
        self._samplers[slot.number] = LlamaSampler(job, self._loaded.vocab.end, self._dry)

    def waits(self, job: EngineJob) -> bool:
        return self._table.waits(job, self._cache.best(job)[1])

    def cancel(self, job_id: str) -> None:
        slot = self._table.remove(job_id)
        if slot is not None:
            self._samplers.pop(slot.number).close()

    def step(self) -> Sequence[EngineEvent]:
        """Raises LlamaError when the decode failed or was interrupted."""
        events: list[EngineEvent] = []
        for rows in self._plan():
            self._loaded.batch.clear()
            last = [self._put(row) for row in rows]
            self._loaded.context.decode(self._loaded.batch)
            for row, index in zip(rows, last, strict=True):
                events += self._advance(row, index)
        return events

    def reset(self) -> None:
        """Raises LlamaError when the memory for a new context isn't there."""
        self._forget_jobs()
        self._loaded.reset()

    def interrupt(self) -> None:
        """The running step raises, or the next one does when none runs; `reset` lets steps run again."""
        self._loaded.interrupt()

    def close(self) -> None:
        self._forget_jobs()
        self._owned.close()
        self._loaded.close()

    def _begin(self, job: EngineJob) -> int:
        """Put what is known of the job's prompt into the KV of the slot that it gets. Returns how many tokens."""
        number, context = self._table.next_number, self._loaded.context
        donor = self._table.donor(job)
        stored, tokens = self._cache.best(job)
        if stored is not None and (donor is None or tokens > donor.tokens):
            state = self._cache.use(stored)  # which may have to make room for what the slot holds
            self._keep(number)
            context.forget(number)
            return tokens if context.restore(number, state) and context.take_over(number, number, tokens) else 0
        if donor is not None and donor.number == number:
            self._keep(number, but=donor.tokens)
        else:
            self._keep(number)
            context.forget(number)
        return donor.tokens if donor is not None and context.take_over(donor.number, number, donor.tokens) else 0

    def _keep(self, number: int, but: int = 0) -> None:
        """Copy what an ended job has left in its slot to RAM, where that is worth it: all `but` so many tokens go."""
        content = self._table.left(number)
        if content is not None and len(content.tokens) - but >= WORTH and self._cache.wants(content):
            self._cache.put(content, self._loaded.context.save(number))

    def _plan(self) -> list[list[Row]]:
        """The step's decodes: each of sequences with as many tokens as the others, by slot number.

        llama.cpp cuts a batch of KV streams where the shortest sequence ends, and how many tokens of a sequence it
        computes at once decides the kernel, and so the last bits. Streams share a graph only while their ids ascend
        without gaps.
        """
        rows = [Row(slot, (slot.last_token,)) for slot in self._table.decoding()]
        for chunk in self._table.prefill():
            rows.append(Row(chunk.slot, chunk.slot.job.tokens[chunk.start : chunk.end], chunk))
        rows.sort(key=lambda row: (len(row.tokens), row.slot.number))
        return [list(group) for _, group in groupby(rows, key=lambda row: len(row.tokens))]

    def _put(self, row: Row) -> int:
        slot = row.slot
        return self._loaded.batch.put(
            row.tokens, position=slot.held, sequence=slot.number, output=row.chooses, every=row.scores
        )

    def _advance(self, row: Row, last: int) -> list[EngineEvent]:
        """Note that the row is computed up to batch index `last`, and choose the job's next token where it is due."""
        slot, job, events = row.slot, row.slot.job, list[EngineEvent]()
        self._table.hold(slot, len(row.tokens))
        try:
            if row.chunk is not None:
                events.append(Progress(job.id, slot.held, len(job.tokens), slot.cached))
                if row.scores:
                    events += self._prompt_scores(row.chunk, last + 1 - len(row.tokens))
            if row.chooses:
                events += self._choose(slot, self._loaded.context.row(last))
            elif not slot.prefilling:
                events.append(Finished(job.id, FinishReason.LENGTH))
        except (Unanswerable, BadLogitsError) as error:
            events.append(Failed(job.id, str(error), isinstance(error, Unanswerable)))
        if events and isinstance(events[-1], Finished | Failed):
            self.cancel(job.id)
        return events

    def _choose(self, slot: Slot, logits: Array) -> list[EngineEvent]:
        """Raises Unanswerable and BadLogitsError where the job can't go on."""
        job, sampler, vocab = slot.job, self._samplers[slot.number], self._loaded.vocab
        token = sampler.choose(logits)
        ends = slot.ends(token, vocab.end)
        data = b"" if ends else vocab.name(token) if token in job.shown else vocab.pieces[token]
        scored = None
        if job.logprobs is not None:
            scored = evolve(score(logits, token, job.logprobs, vocab.name), is_text=bool(data))
        if ends:
            return [Finished(job.id, FinishReason.STOP, scored)]
        sampler.accept(token)
        return slot.take(token, data, scored)

    def _prompt_scores(self, chunk: Chunk, start: int) -> list[EngineEvent]:
        """Scores by the rows from batch index `start` on. Raises BadLogitsError where the logits are no numbers."""
        vocab, job = self._loaded.vocab, chunk.slot.job

        def score_at(place: int, token: int) -> TokenScore:
            return score(self._loaded.context.row(start + place), token, job.logprobs or 0, vocab.name)

        return chunk.scores(TokenScore(vocab.name(job.tokens[0]), None), score_at)

    def _forget_jobs(self) -> None:
        self._table.clear()
        while self._samplers:
            self._samplers.popitem()[1].close()
