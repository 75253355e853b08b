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
        self.handle = lib.llama_model_get_vocab(model)
        """llama.cpp's vocabulary."""
        ids = range(lib.llama_vocab_n_tokens(self.handle))
        self.pieces = [self._piece(token) for token in ids]
        """The bytes that each token id adds to a text; none for control tokens."""
        self._names = {token: self._piece(token, special=True) for token in ids if not self.pieces[token]}
        self.control: dict[str, int] = {}
        """Ids of the control tokens by the text that stands for them; the lowest where several have the same."""
        for token, name in self._names.items():
            if name:
                self.control.setdefault(name.decode("utf-8", "replace"), token)
        self.end = frozenset(token for token in ids if lib.llama_vocab_is_eog(self.handle, token))
        """The ids that end a generation."""
        self.bos = self._special(lib.llama_vocab_bos)
        self.eos = self._special(lib.llama_vocab_eos)
        self._before, self._after = self._frame()

    def __len__(self) -> int:
        return len(self.pieces)

    def encode(self, segments: Sequence[Segment], *, leading: bool = True) -> tuple[int, ...]:
        """Token ids of the segments, with the tokens that the model wants round a text (mostly one before it, or none).

        What the text itself begins or ends with is not put there again. Without `leading` the text alone. With it an
        empty text gives at least one token: a generation needs something to start from.
        """
        tokens = [token for segment in segments for token in self._tokenize(segment)]
        if not leading:
            return tuple(tokens)
        before, after = self._before, self._after
        if tokens[: len(before)] == before:
            before = []
        if after and tokens[-len(after) :] == after:
            after = []
        return (*before, *tokens, *after) or (self._starter(),)

    def name(self, token: int) -> bytes:
        """The bytes of a token as scores show it: of a control token its name."""
        return self.pieces[token] or self._names[token]

    def _special(self, which: Any) -> str:
        token = int(which(self.handle))
        return self.name(token).decode("utf-8", "replace") if token >= 0 else ""

    def _piece(self, token: int, *, special: bool = False) -> bytes:
        size = PIECE_BYTES
        while True:
            buffer = ctypes.create_string_buffer(size)
            length = self._lib.llama_token_to_piece(self.handle, token, buffer, size, 0, special)
            if length >= 0:
                return buffer.raw[:length]
            size = -length

    def _frame(self) -> tuple[list[int], list[int]]:
        """The tokens before and after a text: found by trial, because each kind of vocabulary has its own rule."""
        letter = Segment("a", False)
        plain, framed = self._tokenize(letter), self._tokenize(letter, framed=True)
        for start in range(len(framed) - len(plain) + 1):
            if framed[start : start + len(plain)] == plain:
                return framed[:start], framed[start + len(plain) :]
        return [], []

    def _tokenize(self, segment: Segment, *, framed: bool = False) -> list[int]:
        # A lone surrogate, which JSON can write, has no UTF-8 form.
        text = segment.text.encode("utf-8", "replace")
        room = len(text) // 2 + 8
        while True:
            tokens = (ctypes.c_int32 * room)()
            count = self._lib.llama_tokenize(self.handle, text, len(text), tokens, room, framed, segment.parse_special)
            if count >= 0:
                return tokens[:count]
            room = -count

    def _starter(self) -> int:
        lib = self._lib
        for special in (lib.llama_vocab_bos, lib.llama_vocab_eos, lib.llama_vocab_eot):
            token = int(special(self.handle))
            if token >= 0:
                return token
        return 0
