"""The way into llama.cpp: the library, a model and a context.

Knows no job and no sampling. llama.cpp ends the process where other libraries raise, so what this module lets through
to it is checked here: a batch never outgrows its context, a row is read only where one was asked for.
"""

import ctypes
import logging
import os
from functools import cache
from importlib import import_module
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from attrs import define, field, frozen

from .batch import Batch

log = logging.getLogger("slim.llama")

LOG_WARNING, LOG_ERROR = 3, 4
"""GGML_LOG_LEVEL_WARN and _ERROR of this library; its Python bindings number the levels differently."""
FLASH_ATTENTION_ON = 1
DECODE_ABORTED = 2
KV_TYPES = {"f16": 1, "q8_0": 8}
"""GGML_TYPE numbers of the cache types that flash attention takes."""

_errors: list[str] = []
"""The first error line of llama.cpp since the last load began. Shared by the replicas: they load one file."""
_starting = Lock()
_callbacks: list[Any] = []
"""What llama.cpp may call must never be collected."""


class LlamaError(Exception):
    """llama.cpp could not do what was asked. The text is one line."""


def library() -> Any:
    """The low-level bindings, imported and started once, by whichever replica comes first."""
    with _starting:
        return _start()


@cache
def _start() -> Any:
    # Read when the libraries load. A short spin of idle OpenMP threads is faster when other programs want the CPUs.
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    os.environ.setdefault("GGML_NO_BACKTRACE", "1")
    lib = import_module("llama_cpp.llama_cpp")
    _callbacks.append(lib.llama_log_callback(_on_log))
    lib.llama_log_set(_callbacks[0], None)
    lib.llama_backend_init()
    return lib


def _on_log(level: int, text: bytes, _: object) -> None:
    if level < LOG_WARNING:
        return
    line = text.decode("utf-8", "replace").strip()
    if level == LOG_WARNING and "mlock" in line:
        log.warning("SLM_MLOCK has no effect: %s", line)
    elif level == LOG_ERROR:
        if not _errors:
            _errors.append(line)
        log.debug("%s", line)


def _failure(what: str) -> LlamaError:
    """The first error line names the cause; those after it say only that a caller failed too."""
    cause = _errors[0].partition(": ")[2] or _errors[0] if _errors else "no reason given"
    return LlamaError(f"{what}: {cause}")


@define(eq=False)
class AbortFlag:
    """Ends a running decode from any thread, with no Python and no GIL inside the decode.

    llama.cpp calls the abort callback with a pointer at every graph node and stops when it returns true. The callback
    is libc's `strlen` and the pointer is a buffer: an empty string lets it run, a non-empty one stops it.
    """

    _text: Any = field(factory=lambda: ctypes.create_string_buffer(2))

    def set(self) -> None:
        self._text[0] = b"!"

    def clear(self) -> None:
        self._text[0] = b"\0"

    def attach(self, lib: Any, params: Any) -> None:
        """Put the flag into a context's parameters. Does nothing where libc can't be reached (Windows)."""
        try:
            strlen = ctypes.CDLL(None).strlen
        except (TypeError, OSError, AttributeError):
            return
        params.abort_callback = ctypes.cast(strlen, lib.ggml_abort_callback)
        params.abort_callback_data = ctypes.cast(self._text, ctypes.c_void_p)


class Model:
    """The weights and the vocabulary of one GGUF file."""

    def __init__(self, path: Path, *, gpu_layers: int, mlock: bool) -> None:
        """Raises LlamaError when the file is missing, cut off or no GGUF."""
        self._lib = library()
        params = self._lib.llama_model_default_params()
        params.n_gpu_layers = gpu_layers
        params.load_mode = self._lib.LLAMA_LOAD_MODE_MMAP_MLOCK if mlock else self._lib.LLAMA_LOAD_MODE_MMAP
        _errors.clear()
        self.handle = self._lib.llama_model_load_from_file(os.fsencode(path), params)
        if not self.handle:
            raise _failure(f"can't load {path}")

    @property
    def trained_context(self) -> int:
        """Tokens. llama.cpp goes on past it without an error and with bad text."""
        return int(self._lib.llama_model_n_ctx_train(self.handle))

    @property
    def description(self) -> str:
        text = ctypes.create_string_buffer(256)
        self._lib.llama_model_desc(self.handle, text, len(text))
        return text.value.decode("utf-8", "replace")

    @property
    def chat_template(self) -> str | None:
        """The file's own, in Jinja."""
        text = self._lib.llama_model_chat_template(self.handle, None)
        return None if text is None else bytes(text).decode("utf-8", "replace")

    def close(self) -> None:
        self._lib.llama_model_free(self.handle)


@frozen(kw_only=True)
class ContextShape:
    """What a context is built for; it can be built again after a failed step."""

    sequences: int
    tokens: int
    """Per sequence."""
    batch: int
    """Tokens of one decode at most."""
    threads: int
    kv_type: str
    scored: int = 0
    """Rows of logits of one decode at most, beyond one for each sequence."""


class Context:
    """The KV cache and the buffers of one decode."""

    def __init__(self, model: Model, shape: ContextShape, abort: AbortFlag) -> None:
        """Raises LlamaError when the memory does not suffice."""
        self._lib = library()
        self._abort = abort
        self._shape = shape
        _errors.clear()
        self.handle = self._lib.llama_init_from_model(model.handle, self._params())
        if not self.handle:
            raise _failure("can't make a context")
        self._memory = self._lib.llama_get_memory(self.handle)
        vocab = self._lib.llama_model_get_vocab(model.handle)
        self._row = (int(self._lib.llama_vocab_n_tokens(vocab)),)

    def _params(self) -> Any:
        shape, params = self._shape, self._lib.llama_context_default_params()
        params.n_ctx = shape.tokens * shape.sequences
        params.n_seq_max = shape.sequences
        params.n_outputs_max = shape.sequences + shape.scored
        params.n_batch = params.n_ubatch = shape.batch
        params.n_threads = params.n_threads_batch = shape.threads
        params.type_k = params.type_v = KV_TYPES[shape.kv_type]
        # One KV stream for each sequence: faster than a shared one, and text alone equals text in a batch.
        params.kv_unified = False
        params.flash_attn_type = FLASH_ATTENTION_ON
        # A sliding-window cache that drops old cells gives wrong text, silently, once a sequence is cut back.
        params.swa_full = True
        params.no_perf = True
        self._abort.attach(self._lib, params)
        return params

    def decode(self, batch: Batch) -> None:
        """Compute the batch. Raises LlamaError when it broke off or didn't fit; the context may then be unusable."""
        code = self._lib.llama_decode(self.handle, batch.native)
        if code == DECODE_ABORTED:
            raise LlamaError("llama.cpp was interrupted")
        if code:
            raise LlamaError(f"llama_decode returned {code}")

    def row(self, index: int) -> Any:
        """The logits, a float32 array, at a batch index that was put with an output. Valid until the next decode."""
        logits = self._lib.llama_get_logits_ith(self.handle, index)
        if not logits:
            raise LlamaError(f"no logits at batch index {index}")
        return np.ctypeslib.as_array(logits, self._row)

    def forget(self, sequence: int) -> None:
        """Empty a sequence's KV cells. A partial removal is what some models refuse; a whole one never fails."""
        self._lib.llama_memory_seq_rm(self._memory, sequence, -1, -1)

    def take_over(self, source: int, target: int, tokens: int) -> bool:
        """Make the empty sequence `target`, or `source` itself, hold the first `tokens` tokens of `source`.

        False when the model can't cut a sequence back, as recurrent ones can't; the target is then empty.
        """
        # Not llama_memory_seq_cp: between streams it copies at the next decode, what the source then holds.
        if source != target and not self.restore(target, self.save(source)):
            return False
        done = bool(self._lib.llama_memory_seq_rm(self._memory, target, tokens, -1))
        if not done:
            self.forget(target)
        return done

    def save(self, sequence: int) -> Any:
        """A copy of a sequence's KV, an array of bytes that `restore` reads; empty where there is none to be had."""
        state = np.empty(self._lib.llama_state_seq_get_size(self.handle, sequence), np.uint8)
        size = self._lib.llama_state_seq_get_data(self.handle, _bytes_of(state), len(state), sequence)
        return state[:size]

    def restore(self, sequence: int, state: Any) -> bool:
        """Make the empty sequence hold what was saved. False, and it stays empty, where that can't be read."""
        return bool(self._lib.llama_state_seq_set_data(self.handle, _bytes_of(state), len(state), sequence))

    def close(self) -> None:
        self._lib.llama_free(self.handle)


def _bytes_of(array: Any) -> Any:
    """The array's memory, as a C function takes it."""
    return array.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
