"""Log-likelihoods computed in this process over llama.cpp's own API, without the package under test.

One text at a time, whole, in a context of its own making: the plainest way there is to the numbers.
"""

import ctypes
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np


class Model:
    """A GGUF file that says how likely texts are."""

    def __init__(self, lib: Any, handle: Any, context: Any) -> None:
        self._lib = lib
        self._vocab = lib.llama_model_get_vocab(handle)
        self._context = context
        self._width = lib.llama_vocab_n_tokens(self._vocab)

    def encode(self, text: str) -> list[int]:
        """Token ids of the text alone, control tokens written in it parsed."""
        data = text.encode()
        ids = (self._lib.llama_token * (len(data) + 1))()
        count = self._lib.llama_tokenize(self._vocab, data, len(data), ids, len(ids), False, True)
        assert count >= 0
        return list(ids[:count])

    def log_probabilities(self, tokens: Sequence[int]) -> np.ndarray:
        """A row for each token: the natural logarithms of what may follow it, by id."""
        batch = self._lib.llama_batch_init(len(tokens), 0, 1)
        try:
            for place, token in enumerate(tokens):
                batch.token[place], batch.pos[place], batch.logits[place] = token, place, 1
                batch.n_seq_id[place], batch.seq_id[place][0] = 1, 0
            batch.n_tokens = len(tokens)
            self._lib.llama_memory_clear(self._lib.llama_get_memory(self._context), True)
            assert self._lib.llama_decode(self._context, batch) == 0
            logits = np.ctypeslib.as_array(self._lib.llama_get_logits(self._context), (len(tokens), self._width))
            rows = logits.astype(np.float64)
        finally:
            self._lib.llama_batch_free(batch)
        rows -= rows.max(axis=1, keepdims=True)
        rows -= np.log(np.exp(rows).sum(axis=1, keepdims=True))
        return rows

    def continuation(self, before: str, after: str) -> tuple[float, int, bool]:
        """How likely `after` is behind `before`: the sum, its number of tokens, whether each is the likeliest.

        The border between both is where lm-eval draws it: the tokens of both together, less as many as `before` has.
        """
        tokens, split = self.encode(before + after), len(self.encode(before))
        rows = self.log_probabilities(tokens)[split - 1 : -1]
        ids = tokens[split:]
        total = float(sum(row[token] for row, token in zip(rows, ids, strict=True)))
        return total, len(ids), all(row.argmax() == token for row, token in zip(rows, ids, strict=True))

    def likeliest_next(self, text: str) -> int:
        """The id of the token that a greedy generation would go on with."""
        return int(self.log_probabilities(self.encode(text))[-1].argmax())

    @property
    def end(self) -> int:
        """The id of the token that ends an answer."""
        return int(self._lib.llama_vocab_eos(self._vocab))


@contextmanager
def model(path: Path, context: int) -> Iterator[Model]:
    """The model with room for texts of so many tokens."""
    import llama_cpp.llama_cpp as lib

    quiet = lib.llama_log_callback(lambda level, text, data: None)
    lib.llama_log_set(quiet, ctypes.c_void_p(0))
    lib.llama_backend_init()
    handle = lib.llama_model_load_from_file(os.fsencode(path), lib.llama_model_default_params())
    params = lib.llama_context_default_params()
    params.n_ctx = params.n_batch = params.n_ubatch = params.n_outputs_max = context
    params.n_threads = params.n_threads_batch = 1  # more would spin while they wait, and take the cores from the server
    made = lib.llama_init_from_model(handle, params)
    try:
        yield Model(lib, handle, made)
    finally:
        lib.llama_free(made)
        lib.llama_model_free(handle)
