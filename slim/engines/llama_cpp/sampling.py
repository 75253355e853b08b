"""The samplers that llama.cpp has and numpy doesn't: DRY, XTC and Mirostat, on rows that our own sampler has prepared.

Knows no slot and no batch. DRY belongs to the penalties, XTC comes after `min_p`, Mirostat in place of every cut.
"""

import ctypes
from typing import Any

import numpy as np

from ...types import Dry, EngineJob, Mirostat
from ..sampling import ALLOWED_ABOVE, Array, NoTokenError, Sampler, is_greedy

NATIVE = frozenset({"dry", "xtc", "mirostat"})
RANDOM_SEED = 0xFFFFFFFF
"""LLAMA_DEFAULT_SEED: llama.cpp then takes a seed from the system."""
MIROSTAT_TOKENS = 100
"""Likely tokens that version 1 estimates the distribution's shape from, as in its paper."""
CANDIDATE = np.dtype([("id", np.int32), ("logit", np.float32), ("chance", np.float32)])
"""llama_token_data."""


def native_seed(seed: int | None) -> int:
    """Any integer as one of llama.cpp's 32-bit seeds, the same each time, and never the one that means random."""
    return RANDOM_SEED if seed is None else seed % RANDOM_SEED


class LlamaSampler(Sampler):
    """`close` it exactly once."""

    def __init__(self, job: EngineJob, end: frozenset[int], lib: Any, vocab: Any, *, size: int, context: int) -> None:
        """`vocab` is llama.cpp's vocabulary with `size` tokens; a job holds at most `context` of them."""
        super().__init__(job, end)
        self._lib = lib
        self._dry = self._xtc = self._mirostat = None
        sampling, seed = job.sampling, native_seed(job.sampling.seed)
        if sampling.dry is not None:
            self._dry = _dry(lib, vocab, sampling.dry, context)
            for token in job.tokens:
                lib.llama_sampler_accept(self._dry, token)
        if is_greedy(sampling):
            return
        if sampling.mirostat is not None:
            self._mirostat = _mirostat(lib, sampling.mirostat, seed, size)
        elif sampling.xtc is not None:
            self._xtc = lib.llama_sampler_init_xtc(sampling.xtc.probability, sampling.xtc.threshold, 1, seed)

    def accept(self, token: int) -> None:
        super().accept(token)
        if self._dry is not None:
            self._lib.llama_sampler_accept(self._dry, token)

    def close(self) -> None:
        for native in (self._dry, self._xtc, self._mirostat):
            if native is not None:
                self._lib.llama_sampler_free(native)

    @property
    def _changes_logits(self) -> bool:
        return self._dry is not None or super()._changes_logits

    @property
    def _cuts(self) -> bool:
        return self._xtc is not None or super()._cuts

    def _penalise(self, row: Array) -> None:
        super()._penalise(row)
        if self._dry is not None:
            row[:] = self._apply(self._dry, np.arange(len(row)), row)[0]["logit"]

    def _draw(self, row: Array) -> int:
        if self._mirostat is None:
            return super()._draw(row)
        ids = np.flatnonzero(row > ALLOWED_ABOVE)
        if len(ids) < 2:
            return self._likeliest(row)
        logits = row[ids]
        logits = (logits - logits.max()) * np.float32(1 / self.sampling.temperature)
        candidates, selected = self._apply(self._mirostat, ids, logits)
        if not 0 <= selected < len(candidates):
            raise NoTokenError("mirostat chose no token")
        return int(candidates[selected]["id"])

    def _survivors(self, row: Array) -> tuple[Array | None, Array]:
        ids, weights = super()._survivors(row)
        if self._xtc is None:
            return ids, weights
        with np.errstate(divide="ignore"):
            logits = np.log(weights)
        candidates, _ = self._apply(self._xtc, np.arange(len(weights)) if ids is None else ids, logits)
        return candidates["id"], np.exp(candidates["logit"])

    def _apply(self, native: Any, ids: Array, logits: Array) -> tuple[Array, int]:
        """What the native sampler leaves of the candidates, and the index it selected among them, or -1."""
        lib, data = self._lib, np.empty(len(ids), CANDIDATE)
        data["id"], data["logit"], data["chance"] = ids, logits, 0
        start = data.ctypes.data
        array = lib.llama_token_data_array(ctypes.cast(start, lib.llama_token_data_p), len(data), -1, False)
        lib.llama_sampler_apply(native, ctypes.byref(array))
        first = (ctypes.addressof(array.data.contents) - start) // CANDIDATE.itemsize
        return data[first : first + array.size], int(array.selected)


def _dry(lib: Any, vocab: Any, dry: Dry, context: int) -> Any:
    breakers = (ctypes.c_char_p * len(dry.breakers))(*(text.encode("utf-8", "replace") for text in dry.breakers))
    last_n = context if dry.last_n < 0 else dry.last_n
    return lib.llama_sampler_init_dry(
        vocab, dry.multiplier, dry.base, dry.allowed_length, last_n, breakers, len(dry.breakers)
    )


def _mirostat(lib: Any, mirostat: Mirostat, seed: int, size: int) -> Any:
    if mirostat.version == 1:
        return lib.llama_sampler_init_mirostat(size, seed, mirostat.tau, mirostat.eta, MIROSTAT_TOKENS)
    return lib.llama_sampler_init_mirostat_v2(seed, mirostat.tau, mirostat.eta)
