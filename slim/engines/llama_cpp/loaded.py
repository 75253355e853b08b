"""A model that is loaded and the context it runs in: what both engines hold. Knows no job and no kind of context."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from attrs import define, field, frozen

from .batch import Batch
from .native import AbortFlag, Context, ContextShape, LlamaError, Model, library
from .vocab import Vocabulary

log = logging.getLogger("slim.llama")

AnyContext = TypeVar("AnyContext", bound=Context)


@frozen(kw_only=True)
class LlamaOptions:
    """Which model, and how it runs."""

    model_path: Path
    slots: int
    context: int
    """Tokens that one job may hold; the model's trained context bounds it too."""
    threads: int
    prefill_chunk: int
    """Prompt tokens that one step computes at most. A text that is embedded may alone have more."""
    gpu_layers: int = 0
    kv_type: str = "f16"
    """f16 or q8_0."""
    mlock: bool = False
    prompt_cache: int = 0
    """Bytes of RAM for the KV of prompts that have left their slots."""


@define(eq=False)
class Loaded(Generic[AnyContext]):
    """First `load`, then `open`. `close` it in any state, as often as you like."""

    options: LlamaOptions
    _make: Callable[[Model, ContextShape, AbortFlag], AnyContext]
    """Makes a context; it raises LlamaError where it can't."""
    vocab: Vocabulary = field(init=False)
    longest: int = field(init=False)
    """Tokens that one job may hold."""
    batch: Batch = field(init=False)
    """The tokens of one decode."""
    _abort: AbortFlag = field(init=False, factory=AbortFlag)
    _model: Model | None = field(init=False, default=None)
    _shape: ContextShape | None = field(init=False, default=None)
    _context: AnyContext | None = field(init=False, default=None)

    def load(self) -> Model:
        """Sets `vocab` and `longest`. Raises LlamaError with one line when the file is wrong."""
        options = self.options
        self._model = Model(options.model_path, gpu_layers=options.gpu_layers, mlock=options.mlock)
        self.vocab = Vocabulary(library(), self._model.handle)
        trained = self._model.trained_context
        if trained < options.context:
            log.warning("the model was trained for %d tokens; the context is no larger than that", trained)
        self.longest = min(options.context, trained)
        return self._model

    def open(self, *, batch: int, scored: int = 0) -> AnyContext:
        """Sets `batch` and `context`. Raises LlamaError with one line when the memory does not suffice.

        `batch` and `scored` are those of ContextShape.
        """
        options = self.options
        self.batch = Batch(library(), capacity=batch, sequences=options.slots)
        self._shape = ContextShape(
            sequences=options.slots,
            tokens=self.longest,
            batch=batch,
            threads=options.threads,
            kv_type=options.kv_type,
            scored=scored,
        )
        return self._start()

    @property
    def context(self) -> AnyContext:
        """Raises LlamaError before `open` and after `close`."""
        if self._context is None:
            raise LlamaError("no model is loaded")
        return self._context

    def reset(self) -> None:
        """Make the context again. Raises LlamaError when its memory isn't there."""
        self._stop()
        self._abort.clear()
        self._start()

    def interrupt(self) -> None:
        """From any thread: the running decode raises, or the next one does when none runs, until `reset`."""
        self._abort.set()

    def close(self) -> None:
        self._stop()
        if self._model is not None:
            self._model.close()
            self._model = None

    def _start(self) -> AnyContext:
        if self._model is None or self._shape is None:
            raise LlamaError("no model is loaded")
        self._context = self._make(self._model, self._shape, self._abort)
        return self._context

    def _stop(self) -> None:
        if self._context is not None:
            self._context.close()
            self._context = None
