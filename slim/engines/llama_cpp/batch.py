"""The tokens of one decode, in numpy arrays that llama.cpp reads in place. Knows no slot and no model.

Filling ctypes structures token by token costs more than a small model's whole sampling; a slice assignment does not.
"""

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np


class Batch:
    """Room for `capacity` tokens of sequences 0 to `sequences` - 1. Refilled for every step."""

    def __init__(self, lib: Any, *, capacity: int, sequences: int) -> None:
        self._token = np.zeros(capacity, np.int32)
        self._position = np.zeros(capacity, np.int32)
        self._count = np.ones(capacity, np.int32)
        self._ids = np.zeros(capacity, np.uint64)
        self._output = np.zeros(capacity, np.int8)
        self._numbers = np.arange(sequences, dtype=np.int32)
        base, width = self._numbers.ctypes.data, self._numbers.itemsize
        self._id_address = [base + width * number for number in range(sequences)]
        self.native = lib.llama_batch()
        self.native.n_tokens = 0
        types = dict(lib.llama_batch._fields_)
        for name, array in (
            ("token", self._token),
            ("pos", self._position),
            ("n_seq_id", self._count),
            ("seq_id", self._ids),
            ("logits", self._output),
        ):
            setattr(self.native, name, ctypes.cast(array.ctypes.data, types[name]))

    def clear(self) -> None:
        self.native.n_tokens = 0

    def put(self, tokens: Sequence[int], *, position: int, sequence: int, output: bool, every: bool = False) -> int:
        """Append a sequence's tokens from `position` on; `output` asks for logits after the last, `every` after each.

        Returns the batch index of that last token. Raises ValueError when there is no room: llama.cpp would abort.
        """
        start = int(self.native.n_tokens)
        end = start + len(tokens)
        if end > len(self._token):
            raise ValueError(f"a batch of {end} tokens is larger than {len(self._token)}")
        self._token[start:end] = tokens
        self._position[start:end] = np.arange(position, position + len(tokens))
        self._ids[start:end] = self._id_address[sequence]
        self._output[start:end] = every
        self._output[end - 1] = output or every
        self.native.n_tokens = end
        return end - 1
