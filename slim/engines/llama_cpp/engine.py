"""Continuous batching over llama.cpp: one decode for all running jobs in every step.

Knows no text, stop string, queue or clock. Jobs sit in KV sequences by slot number; a step decodes one token of each
job whose prompt is complete and, in the same batch, prompt chunks up to a budget. What belongs to one job alone (its
constraint, its logits) can fail that job alone.
"""

import logging
from collections.abc import Sequence
from pathlib import Path

import attrs
from attrs import define, field, frozen

from ...types import EngineEvent, EngineInfo, EngineJob, Failed, Finished, FinishReason, Progress, TokenScore
from ..sampling import Array, score
from ..slots import SCORED, Chunk, Slot, SlotTable
from .batch import Batch
from .native import AbortFlag, Context, ContextShape, LlamaError, Model, library
from .sampling import SAMPLERS, DryMaker, LlamaSampler
from .vocab import Vocabulary

log = logging.getLogger("slim.llama")


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


@define(kw_only=True, eq=False)
class LlamaEngine:
    """One GGUF model and its slots. See `slim.engines.base.Engine` for the contract."""

    model_path: Path
    slots: int
    context: int
    """Tokens that one job may hold; the model's trained context bounds it too."""
    threads: int
    prefill_chunk: int
    """Prompt tokens that one step computes at most."""
    gpu_layers: int = 0
    kv_type: str = "f16"
    """f16 or q8_0."""
    mlock: bool = False
    step_seconds: float = field(init=False, default=0.0)
    _abort: AbortFlag = field(init=False, factory=AbortFlag)
    _samplers: dict[int, LlamaSampler] = field(init=False, factory=dict)
    """By slot number."""
    _model: Model | None = field(init=False, default=None)
    _native: Context | None = field(init=False, default=None)
    _table: SlotTable = field(init=False, default=attrs.Factory(lambda self: SlotTable(self.slots), takes_self=True))
    _vocab: Vocabulary = field(init=False)
    _dry: DryMaker = field(init=False)
    _batch: Batch = field(init=False)
    _shape: ContextShape = field(init=False)

    def load(self) -> EngineInfo:
        """Raises LlamaError with one line when the file or the memory is wrong."""
        self._model = Model(self.model_path, gpu_layers=self.gpu_layers, mlock=self.mlock)
        self._vocab = Vocabulary(library(), self._model.handle)
        trained = self._model.trained_context
        if trained < self.context:
            log.warning("the model was trained for %d tokens; a request gets no more than that", trained)
        self._shape = ContextShape(
            sequences=self.slots,
            tokens=min(self.context, trained),
            batch=self.slots + self.prefill_chunk,
            threads=self.threads,
            kv_type=self.kv_type,
            scored=SCORED,
        )
        self._dry = DryMaker(library(), self._vocab.handle, self._shape.tokens)
        self._batch = Batch(library(), capacity=self._shape.batch, sequences=self.slots)
        self._native = Context(self._model, self._shape, self._abort)
        return EngineInfo(
            slots=self.slots,
            context=self._shape.tokens,
            kv_tokens=self._shape.tokens * self.slots,
            description=f"{self._model.description}, {self.threads} threads, KV {self.kv_type}",
            chat_template=self._model.chat_template,
            samplers=SAMPLERS,
        )

    @property
    def tokenizer(self) -> Vocabulary:
        return self._vocab

    @property
    def kv_used(self) -> int:
        return self._table.held

    def add(self, job: EngineJob) -> None:
        """Raises ValueError for a job that would break the batch of the others."""
        if not job.tokens or len(job.tokens) + job.max_tokens > self._shape.tokens:
            raise ValueError(f"{len(job.tokens)} + {job.max_tokens} tokens don't fit in {self._shape.tokens}")
        named = (*job.tokens, *job.stop_token_ids, *job.shown, *(token for token, _ in job.sampling.logit_bias))
        if min(named) < 0 or max(named) >= len(self._vocab):
            raise ValueError("a token id is outside the model's vocabulary")
        self._share()  # before the job takes a slot whose KV an older one waits for
        slot = self._table.add(job)
        if not slot.inherits:
            self._running.forget(slot.number)
        self._samplers[slot.number] = LlamaSampler(job, self._vocab.end, self._dry)

    def cancel(self, job_id: str) -> None:
        slot = self._table.remove(job_id)
        if slot is not None:
            self._samplers.pop(slot.number).close()

    def step(self) -> Sequence[EngineEvent]:
        """Raises LlamaError when the decode failed or was interrupted."""
        self._share()
        rows = self._plan()
        events: list[EngineEvent] = []
        if not rows:
            return events
        self._batch.clear()
        last = [self._put(row) for row in rows]
        self._running.decode(self._batch)
        for row, index in zip(rows, last, strict=True):
            events += self._advance(row, index)
        return events

    def reset(self) -> None:
        """Raises LlamaError when the memory for a new context isn't there."""
        self._close_context()
        self._abort.clear()
        if self._model is None:
            raise LlamaError("no model is loaded")
        self._native = Context(self._model, self._shape, self._abort)

    def interrupt(self) -> None:
        """The running step raises, or the next one does when none runs; `reset` lets steps run again."""
        self._abort.set()

    def close(self) -> None:
        self._close_context()
        if self._model is not None:
            self._dry.close()
            self._model.close()
            self._model = None

    @property
    def _running(self) -> Context:
        if self._native is None:
            raise LlamaError("no model is loaded")
        return self._native

    def _share(self) -> None:
        """Give KV that is there to the jobs that wait for it."""
        for offer in self._table.takeovers():
            if self._running.take_over(offer.source, offer.slot.number, offer.tokens):
                self._table.took(offer)
            else:
                self._table.refused(offer)

    def _plan(self) -> list[Row]:
        """By slot number: KV streams share one graph only while the ids of a batch ascend without gaps."""
        rows = [Row(slot, (slot.last_token,)) for slot in self._table.decoding()]
        for chunk in self._table.prefill(self.prefill_chunk):
            rows.append(Row(chunk.slot, chunk.slot.job.tokens[chunk.start : chunk.end], chunk))
        return sorted(rows, key=lambda row: row.slot.number)

    def _put(self, row: Row) -> int:
        slot = row.slot
        return self._batch.put(
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
                events += self._choose(slot, self._running.row(last))
            elif not slot.prefilling:
                events.append(Finished(job.id, FinishReason.LENGTH))
        except RuntimeError as error:  # its constraint's, or a NoTokenError
            events.append(Failed(job.id, str(error)))
        if events and isinstance(events[-1], Finished | Failed):
            self.cancel(job.id)
        return events

    def _choose(self, slot: Slot, logits: Array) -> list[EngineEvent]:
        """Raises RuntimeError where the job can't go on."""
        job, sampler, vocab = slot.job, self._samplers[slot.number], self._vocab
        token = sampler.choose(logits)
        scored = None if job.logprobs is None else score(logits, token, job.logprobs, vocab.name)
        if slot.ends(token, vocab.end):
            return [Finished(job.id, FinishReason.STOP, scored)]
        sampler.accept(token)
        data = vocab.name(token) if token in job.shown else vocab.pieces[token]
        return slot.take(token, data, scored)

    def _prompt_scores(self, chunk: Chunk, start: int) -> list[EngineEvent]:
        """Scores by the rows from batch index `start` on. Raises RuntimeError where the logits are no numbers."""
        vocab, job = self._vocab, chunk.slot.job

        def score_at(place: int, token: int) -> TokenScore:
            return score(self._running.row(start + place), token, job.logprobs or 0, vocab.name)

        return chunk.scores(TokenScore(vocab.name(job.tokens[0]), None), score_at)

    def _close_context(self) -> None:
        """The jobs are gone with it."""
        self._table.clear()
        while self._samplers:
            self._samplers.popitem()[1].close()
        if self._native is not None:
            self._native.close()
            self._native = None
