"""Embeddings over llama.cpp: whole texts go in, one vector of each comes out. Knows no text, queue or clock.

Every step computes as many whole texts as fit into one batch, pools each over its tokens after the model's last norm,
and forgets them. Nothing stays in the KV cache, so it is as large as one batch and no larger.
"""

from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np
from attrs import define, field

from ...types import Embedding, EngineEvent, EngineInfo, EngineJob, Failed, Finished, FinishReason, Progress
from ..embedding_queue import EmbeddingQueue
from .loaded import LlamaOptions, Loaded
from .native import AbortFlag, Context, ContextShape, LlamaError, Model
from .vocab import Vocabulary

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


@define(eq=False)
class LlamaEmbeddingEngine:
    """One GGUF model that embeds. See `slim.engines.base.Engine` for the contract."""

    options: LlamaOptions
    pooling: str = "auto"
    """auto, mean, cls or last; auto is what the model's file says, and mean where it says nothing."""
    step_seconds: float = field(init=False, default=0.0)
    _loaded: Loaded[PooledContext] = field(
        init=False, default=attrs.Factory(lambda self: Loaded(self.options, self._open), takes_self=True)
    )
    _queue: EmbeddingQueue = field(init=False)

    def load(self) -> EngineInfo:
        """Raises LlamaError with one line when the file or the memory is wrong, or when the model doesn't embed."""
        options, loaded = self.options, self._loaded
        model = loaded.load()
        self._queue = EmbeddingQueue(options.slots, loaded.longest, len(loaded.vocab))
        # A multiple of the slots: llama.cpp sizes its buffers for equal texts and aborts where there are none.
        batch = -(-max(loaded.longest, options.prefill_chunk) // options.slots) * options.slots
        context = loaded.open(batch=batch)
        name = next(name for name, number in POOLINGS.items() if number == context.pooling)
        return EngineInfo(
            slots=options.slots,
            context=loaded.longest,
            kv_tokens=batch,
            description=f"{model.description}, embeddings ({name} pooling), {options.threads} threads",
            embedding_size=context.size,
        )

    def _open(self, model: Model, shape: ContextShape, abort: AbortFlag) -> PooledContext:
        context = PooledContext(model, shape, abort, POOLINGS.get(self.pooling, OWN_POOLING))
        own = context.pooling
        if own in POOLINGS.values():
            return context
        context.close()
        if own == RANKING:
            raise LlamaError("the model ranks pairs of texts and makes no embeddings; SLM_POOLING can overrule that")
        return PooledContext(model, shape, abort, POOLINGS["mean"])

    @property
    def tokenizer(self) -> Vocabulary:
        return self._loaded.vocab

    @property
    def kv_used(self) -> int:
        """Nothing is kept between two steps."""
        return 0

    def add(self, job: EngineJob) -> None:
        """Raises ValueError for a job that would break the batch of the others."""
        self._queue.add(job)

    def waits(self, job: EngineJob) -> bool:
        """Texts have nothing in common that could be kept."""
        return False

    def cancel(self, job_id: str) -> None:
        self._queue.remove(job_id)

    def step(self) -> Sequence[EngineEvent]:
        """Raises LlamaError when the computation failed or was interrupted."""
        events: list[EngineEvent] = []
        jobs = self._queue.batch(self.options.prefill_chunk)
        if not jobs:
            return events
        self._loaded.batch.clear()
        for sequence, job in enumerate(jobs):
            self._loaded.batch.put(job.tokens, position=0, sequence=sequence, output=True)
        self._loaded.context.decode(self._loaded.batch)
        for sequence, job in enumerate(jobs):
            self._queue.remove(job.id)
            events.append(Progress(job.id, len(job.tokens), len(job.tokens)))
            events += self._result(job, self._loaded.context.vector(sequence))
        self._loaded.context.forget_all()
        return events

    def _result(self, job: EngineJob, vector: Any) -> list[EngineEvent]:
        length = float(np.linalg.norm(vector))
        if not 0 < length < np.inf:
            return [Failed(job.id, f"the embedding has the length {length}")]
        return [Embedding(job.id, tuple((vector / length).tolist())), Finished(job.id, FinishReason.STOP)]

    def reset(self) -> None:
        """Raises LlamaError when the memory for a new context isn't there."""
        self._loaded.reset()
        self._queue.clear()

    def interrupt(self) -> None:
        """The running step raises, or the next one does when none runs; `reset` lets steps run again."""
        self._loaded.interrupt()

    def close(self) -> None:
        self._loaded.close()
