"""DRY, the one sampler that is llama.cpp's own. Knows no slot, no batch and no other sampling.

It penalises tokens that would go on with a sequence that was there before; finding those is native work.
"""

import ctypes
from typing import Any

import numpy as np
from attrs import define, field

from ...types import Dry, EngineJob
from ..sampling import Array, Sampler

KEPT = 8
"""Prepared samplers that stay for the next job: preparing one means looking for its breakers in every token."""
CANDIDATE = np.dtype([("id", np.int32), ("logit", np.float32), ("chance", np.float32)])
"""llama_token_data."""


@define(eq=False)
class DryMaker:
    """Makes native DRY samplers for one vocabulary. `close` it once."""

    lib: Any
    vocab: Any
    """llama.cpp's vocabulary."""
    context: int
    """Tokens that a job may hold: as far as a sampler without a limit looks back."""
    _prepared: dict[Dry, Any] = field(init=False, factory=dict)

    def make(self, dry: Dry) -> Any:
        """A sampler that has seen no token yet. `llama_sampler_free` it once."""
        prepared = self._prepared.pop(dry, None)
        self._prepared[dry] = self._prepare(dry) if prepared is None else prepared
        if len(self._prepared) > KEPT:
            self.lib.llama_sampler_free(self._prepared.pop(next(iter(self._prepared))))
        return self.lib.llama_sampler_clone(self._prepared[dry])

    def _prepare(self, dry: Dry) -> Any:
        breakers = [text.encode("utf-8", "replace") for text in dry.breakers]
        return self.lib.llama_sampler_init_dry(
            self.vocab,
            dry.multiplier,
            dry.base,
            dry.allowed_length,
            self.context if dry.last_n < 0 else min(dry.last_n, self.context),
            (ctypes.c_char_p * len(breakers))(*breakers),
            len(breakers),
        )

    def close(self) -> None:
        while self._prepared:
            self.lib.llama_sampler_free(self._prepared.popitem()[1])


class LlamaSampler(Sampler):
    """`close` it exactly once."""

    def __init__(self, job: EngineJob, end: frozenset[int], maker: DryMaker) -> None:
        super().__init__(job, end)
        self._lib = maker.lib
        self._dry = None if job.sampling.dry is None else maker.make(job.sampling.dry)
        if self._dry is not None:
            for token in job.tokens:
                self._lib.llama_sampler_accept(self._dry, token)

    def accept(self, token: int) -> None:
        super().accept(token)
        if self._dry is not None:
            self._lib.llama_sampler_accept(self._dry, token)

    def close(self) -> None:
        if self._dry is not None:
            self._lib.llama_sampler_free(self._dry)

    @property
    def _changes_logits(self) -> bool:
        return self._dry is not None or super()._changes_logits

    def _penalise(self, row: Array) -> None:
        super()._penalise(row)
        if self._dry is None:
            return
        candidates = np.empty(len(row), CANDIDATE)
        candidates["id"], candidates["logit"], candidates["chance"] = np.arange(len(row)), row, 0
        data = ctypes.cast(candidates.ctypes.data, self._lib.llama_token_data_p)
        array = self._lib.llama_token_data_array(data, len(row), -1, False)
        self._lib.llama_sampler_apply(self._dry, ctypes.byref(array))
        row[:] = candidates["logit"]
