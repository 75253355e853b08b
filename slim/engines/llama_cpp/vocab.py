"""Text to token ids and back to bytes. Knows no context and no job.

The bytes of every token are read once, at load. llama_cpp's own `detokenize` loses long tokens of spaces, and one
lookup per token is cheaper than one native call.
"""

import ctypes
from collections.abc import Sequence
from typing import Any

from ...types import Segment

PIECE_BYTES = 32
"""First guess for one token; longer ones are asked for again."""


class Vocabulary:
    """The tokenizer of one model. Only reads after it is made, so any thread may use it while the model is loaded."""

    def __init__(self, lib: Any, model: Any) -> None:
        self._lib = lib
        self._vocab = lib.llama_model_get_vocab(model)
        ids = range(lib.llama_vocab_n_tokens(self._vocab))
        self.pieces = [self._piece(token) for token in ids]
        """The bytes of every token id; none for control tokens."""
        self.end = frozenset(token for token in ids if lib.llama_vocab_is_eog(self._vocab, token))
        """The ids that end a generation."""

    def __len__(self) -> int:
        return len(self.pieces)

    def encode(self, segments: Sequence[Segment]) -> tuple[int, ...]:
        """Token ids of the segments, with the model's leading token before the first where it wants one.

        An empty text gives the model's leading token, or an end token: a generation needs something to start from.
        """
        tokens: list[int] = []
        for number, segment in enumerate(segments):
            tokens += self._tokenize(segment, leading=number == 0)
        return tuple(tokens) or (self._starter(),)

    def _piece(self, token: int) -> bytes:
        size = PIECE_BYTES
        while True:
            buffer = ctypes.create_string_buffer(size)
            length = self._lib.llama_token_to_piece(self._vocab, token, buffer, size, 0, False)
            if length >= 0:
                return buffer.raw[:length]
            size = -length

    def _tokenize(self, segment: Segment, *, leading: bool) -> Sequence[int]:
        # A lone surrogate, which JSON can write, has no UTF-8 form.
        text = segment.text.encode("utf-8", "replace")
        room = len(text) // 2 + 8
        while True:
            tokens = (ctypes.c_int32 * room)()
            count = self._lib.llama_tokenize(self._vocab, text, len(text), tokens, room, leading, segment.parse_special)
            if count >= 0:
                return tokens[:count]
            room = -count

    def _starter(self) -> int:
        lib = self._lib
        for special in (lib.llama_vocab_bos, lib.llama_vocab_eos, lib.llama_vocab_eot):
            token = int(special(self._vocab))
            if token >= 0:
                return token
        return 0
