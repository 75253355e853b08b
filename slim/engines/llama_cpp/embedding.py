"""Embeddings over llama.cpp: whole texts go in, one vector of each comes out. Knows no text, queue or clock.

Every step computes as many whole texts as fit into one batch, pools each over its tokens after the model's last norm,
and forgets them. Nothing stays in the KV cache, so it is as large as one batch and no larger.
"""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from attrs import define, field

from ...types import Embedding, EngineEvent, EngineInfo, EngineJob, Failed, Finished, FinishReason, Progress
from ..texts import TextQueue
from .batch import Batch
from .native import AbortFlag, Context, ContextShape, LlamaError, Model, library
from .vocab import Vocabulary

log = logging.getLogger("slim.llama")

OWN_POOLING, RANKING = -1, 4
"""LLAMA_POOLING_TYPE_UNSPECIFIED, which asks for what the model's file says, and _RANK."""
POOLINGS = {"mean": 1, "cls": 2, "last": 3}
"""LLAMA_POOLING_TYPE numbers of the poolings that make an embedding."""


class PooledContext(Context):
    """A context that gives one vector for each sequence of a batch.

    `decode` serves models that only encode too: llama.cpp sees that they have no KV cache.
    """

    def __init__(self, model: Model, shape: ContextShape, abort: AbortFlag, pooling: int) -> None:
        """Raises LlamaError when the memory does not suffice."""
        self._asked_pooling = pooling
        super().__init__(model, shape, abort)
        self.size = int(self._lib.llama_model_n_embd_out(model.handle))
        """Numbers of one vector."""

    def _params(self) -> Any:
        params = super()._params()
        params.embeddings = True
        params.pooling_type = self._asked_pooling
        # One KV stream for all: with one for each, llama.cpp cuts texts of different lengths into several graphs, and
        # a vector is then pooled over the last piece of its text only.
        params.kv_unified = True
        params.n_ctx = self._shape.batch
        params.n_outputs_max = self._shape.batch
        return params

    @property
    def pooling(self) -> int:
        return int(self._lib.llama_pooling_type(self.handle))

    def vector(self, sequence: int) -> Any:
        """The pooled vector of a sequence of the last batch, as an array that the next one overwrites."""
        numbers = self._lib.llama_get_embeddings_seq(self.handle, sequence)
        if not numbers:
            raise LlamaError(f"no embedding of sequence {sequence}")
        return np.ctypeslib.as_array(numbers, (self.size,))

    def forget_all(self) -> None:
        if self._memory:
            self._lib.llama_memory_clear(self._memory, False)


@define(kw_only=True, eq=False)
class LlamaEmbeddingEngine:
    """One GGUF model that embeds. See `slim.engines.base.Engine` for the contract."""

    model_path: Path
    slots: int
    context: int
    """Tokens of one text at most; the model's trained context bounds it too."""
    threads: int
    prefill_chunk: int
    """Tokens that one step computes at most, but for a text that alone has more."""
    pooling: str = "auto"
    """auto, mean, cls or last; auto is what the model's file says, and mean where it says nothing."""
    gpu_layers: int = 0
    kv_type: str = "f16"
    """f16 or q8_0."""
    mlock: bool = False
    step_seconds: float = field(init=False, default=0.0)
    _abort: AbortFlag = field(init=False, factory=AbortFlag)
    _model: Model | None = field(init=False, default=None)
    _native: PooledContext | None = field(init=False, default=None)
    _texts: TextQueue = field(init=False)
    _vocab: Vocabulary = field(init=False)
    _batch: Batch = field(init=False)
    _shape: ContextShape = field(init=False)

    def load(self) -> EngineInfo:
        """Raises LlamaError with one line when the file or the memory is wrong, or when the model doesn't embed."""
        self._model = Model(self.model_path, gpu_layers=self.gpu_layers, mlock=self.mlock)
        self._vocab = Vocabulary(library(), self._model.handle)
        trained = self._model.trained_context
        if trained < self.context:
            log.warning("the model was trained for %d tokens; a text gets no more than that", trained)
        longest = min(self.context, trained)
        self._shape = ContextShape(
            sequences=self.slots,
            tokens=longest,
            # A multiple of the slots: llama.cpp sizes its buffers for equal texts and aborts where there are none.
            batch=-(-max(longest, self.prefill_chunk) // self.slots) * self.slots,
            threads=self.threads,
            kv_type=self.kv_type,
        )
        self._texts = TextQueue(self.slots, longest, len(self._vocab))
        self._batch = Batch(library(), capacity=self._shape.batch, sequences=self.slots)
        self._native = self._open(self._model)
        name = next(name for name, number in POOLINGS.items() if number == self._native.pooling)
        return EngineInfo(
            slots=self.slots,
            context=longest,
            kv_tokens=self._shape.batch,
            description=f"{self._model.description}, embeddings ({name} pooling), {self.threads} threads",
            embedding_size=self._native.size,
        )

    def _open(self, model: Model) -> PooledContext:
        asked = POOLINGS.get(self.pooling, OWN_POOLING)
        context = PooledContext(model, self._shape, self._abort, asked)
        own = context.pooling
        if own in POOLINGS.values():
            return context
        context.close()
        if own == RANKING:
            raise LlamaError("the model ranks pairs of texts and makes no embeddings; SLM_POOLING can overrule that")
        return PooledContext(model, self._shape, self._abort, POOLINGS["mean"])

    @property
    def tokenizer(self) -> Vocabulary:
        return self._vocab

    @property
    def kv_used(self) -> int:
        """Nothing is kept between two steps."""
        return 0

    def add(self, job: EngineJob) -> None:
        """Raises ValueError for a job that would break the batch of the others."""
        self._texts.add(job)

    def cancel(self, job_id: str) -> None:
        self._texts.remove(job_id)

    def step(self) -> Sequence[EngineEvent]:
        """Raises LlamaError when the computation failed or was interrupted."""
        events: list[EngineEvent] = []
        jobs = self._texts.batch(self.prefill_chunk)
        if not jobs:
            return events
        self._batch.clear()
        for sequence, job in enumerate(jobs):
            self._batch.put(job.tokens, position=0, sequence=sequence, output=True)
        self._running.decode(self._batch)
        for sequence, job in enumerate(jobs):
            self._texts.remove(job.id)
            events.append(Progress(job.id, len(job.tokens), len(job.tokens)))
            events += self._result(job, self._running.vector(sequence))
        self._running.forget_all()
        return events

    def _result(self, job: EngineJob, vector: Any) -> list[EngineEvent]:
        length = float(np.linalg.norm(vector))
        if not 0 < length < np.inf:
            return [Failed(job.id, f"the embedding has the length {length}")]
        return [Embedding(job.id, tuple((vector / length).tolist())), Finished(job.id, FinishReason.STOP)]

    def reset(self) -> None:
        """Raises LlamaError when the memory for a new context isn't there."""
        self._close_context()
        self._abort.clear()
        if self._model is None:
            raise LlamaError("no model is loaded")
        self._texts.clear()
        self._native = self._open(self._model)

    def interrupt(self) -> None:
        """The running step raises, or the next one does when none runs; `reset` lets steps run again."""
        self._abort.set()

    def close(self) -> None:
        self._close_context()
        if self._model is not None:
            self._model.close()
            self._model = None

    @property
    def _running(self) -> PooledContext:
        if self._native is None:
            raise LlamaError("no model is loaded")
        return self._native

    def _close_context(self) -> None:
        if self._native is not None:
            self._native.close()
            self._native = None
