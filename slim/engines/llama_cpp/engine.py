"""Continuous batching over llama.cpp: one decode for all running jobs in every step.

Knows no text, stop string, queue or clock. Jobs sit in KV sequences by slot number; a step decodes one token of each
job whose prompt is complete and, in the same batch, prompt chunks up to a budget.
"""

import logging
from collections.abc import Sequence
from pathlib import Path

import attrs
from attrs import define, field, frozen

from ...types import EngineEvent, EngineInfo, EngineJob, Finished, FinishReason, Progress, Token
from ..slots import Slot, SlotTable
from .batch import Batch
from .native import AbortFlag, Context, ContextShape, LlamaError, Model, library
from .sampling import Chain, is_greedy
from .vocab import Vocabulary

log = logging.getLogger("slim.llama")


@frozen(eq=False)
class Row:
    """What one slot puts into a step's batch."""

    slot: Slot
    tokens: Sequence[int]
    output: bool
    """A new token is chosen after the last of these."""


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
    _chains: dict[int, Chain] = field(init=False, factory=dict)
    """By slot number; greedy jobs have none."""
    _model: Model | None = field(init=False, default=None)
    _native: Context | None = field(init=False, default=None)
    _table: SlotTable = field(init=False, default=attrs.Factory(lambda self: SlotTable(self.slots), takes_self=True))
    _vocab: Vocabulary = field(init=False)
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
        )
        self._batch = Batch(library(), capacity=self._shape.batch, sequences=self.slots)
        self._native = Context(self._model, self._shape, self._abort)
        return EngineInfo(
            slots=self.slots,
            context=self._shape.tokens,
            kv_tokens=self._shape.tokens * self.slots,
            description=f"{self._model.description}, {self.threads} threads, KV {self.kv_type}",
            chat_template=self._model.chat_template,
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
        if min(job.tokens) < 0 or max(job.tokens) >= len(self._vocab):
            raise ValueError("a token id is outside the model's vocabulary")
        slot = self._table.add(job)
        if not is_greedy(job.sampling):
            self._chains[slot.number] = Chain(library(), job.sampling)

    def cancel(self, job_id: str) -> None:
        slot = self._table.remove(job_id)
        if slot is not None:
            self._clear(slot)

    def step(self) -> Sequence[EngineEvent]:
        """Raises LlamaError when the decode failed or was interrupted."""
        rows = self._plan()
        events: list[EngineEvent] = []
        if not rows:
            return events
        self._batch.clear()
        last = [
            self._batch.put(row.tokens, position=row.slot.held, sequence=row.slot.number, output=row.output)
            for row in rows
        ]
        self._running.decode(self._batch)
        for row, index in zip(rows, last, strict=True):
            events += self._advance(row, index)
        return events

    def reset(self) -> None:
        """Raises LlamaError when the memory for a new context isn't there."""
        self._close_context()
        self._table.clear()
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
            self._model.close()
            self._model = None

    @property
    def _running(self) -> Context:
        if self._native is None:
            raise LlamaError("no model is loaded")
        return self._native

    def _plan(self) -> list[Row]:
        """By slot number: KV streams share one graph only while the ids of a batch ascend without gaps."""
        rows = [Row(slot, (slot.last_token,), output=True) for slot in self._table.decoding()]
        for chunk in self._table.prefill(self.prefill_chunk):
            rows.append(Row(chunk.slot, chunk.slot.job.tokens[chunk.start : chunk.end], chunk.completes))
        return sorted(rows, key=lambda row: row.slot.number)

    def _advance(self, row: Row, index: int) -> list[EngineEvent]:
        """Note that the row is computed, and choose the job's next token where it asked for one."""
        slot, job, events = row.slot, row.slot.job, list[EngineEvent]()
        prompt_row = slot.prefilling
        self._table.hold(slot, len(row.tokens))
        if prompt_row:
            events.append(Progress(job.id, slot.held, len(job.tokens)))
        if not row.output:
            return events
        chain = self._chains.get(slot.number)
        token = chain.sample(self._running.handle, index) if chain else self._running.likeliest(index)
        if token in self._vocab.end:
            return [*events, self._finish(slot, FinishReason.STOP)]
        slot.last_token = token
        slot.made += 1
        events.append(Token(job.id, token, self._vocab.pieces[token]))
        if slot.made == job.max_tokens:
            events.append(self._finish(slot, FinishReason.LENGTH))
        return events

    def _finish(self, slot: Slot, reason: FinishReason) -> Finished:
        self._table.remove(slot.job.id)
        self._clear(slot)
        return Finished(slot.job.id, reason)

    def _clear(self, slot: Slot) -> None:
        self._running.forget(slot.number)
        chain = self._chains.pop(slot.number, None)
        if chain is not None:
            chain.free()

    def _close_context(self) -> None:
        while self._chains:
            self._chains.popitem()[1].free()
        if self._native is not None:
            self._native.close()
            self._native = None
