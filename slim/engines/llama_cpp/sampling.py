"""How one job's tokens are drawn from the logits. Knows no slot and no batch composition.

Every job has its own chain and random state, so a seeded job draws the same numbers whatever runs beside it.
"""

from typing import Any

from ...types import Sampling

GREEDY_BELOW = 1e-5
"""A lower temperature would overflow the logits; it can only mean the likeliest token."""
RANDOM_SEED = 0xFFFFFFFF
"""LLAMA_DEFAULT_SEED: llama.cpp then takes a seed from the system."""


def is_greedy(sampling: Sampling) -> bool:
    return sampling.temperature < GREEDY_BELOW


def native_seed(seed: int | None) -> int:
    """Any integer as one of llama.cpp's 32-bit seeds, the same each time, and never the one that means random."""
    return RANDOM_SEED if seed is None else seed % RANDOM_SEED


class Chain:
    """A native sampler chain: temperature, then top_p, then one draw. `free` it exactly once."""

    def __init__(self, lib: Any, sampling: Sampling) -> None:
        self._lib = lib
        self._handle = lib.llama_sampler_chain_init(lib.llama_sampler_chain_default_params())
        lib.llama_sampler_chain_add(self._handle, lib.llama_sampler_init_temp(sampling.temperature))
        if sampling.top_p < 1:
            lib.llama_sampler_chain_add(self._handle, lib.llama_sampler_init_top_p(sampling.top_p, 1))
        # Last, because llama.cpp ends the process when no member of a chain has selected a token.
        lib.llama_sampler_chain_add(self._handle, lib.llama_sampler_init_dist(native_seed(sampling.seed)))

    def sample(self, context: Any, index: int) -> int:
        """Draw at a batch index that was put with `output`; llama.cpp ends the process at any other."""
        return int(self._lib.llama_sampler_sample(self._handle, context, index))

    def free(self) -> None:
        """Free the chain and its members."""
        self._lib.llama_sampler_free(self._handle)
