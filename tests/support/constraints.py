"""Stand-ins for a grammar: what a job's constraint may be, without a library that compiles any."""

from collections.abc import Iterable, Sequence

from slim.errors import Unanswerable


def bits(tokens: Iterable[int]) -> bytes:
    """A mask that has just these tokens."""
    mask = bytearray()
    for token in tokens:
        mask.extend(bytes(max(token // 8 + 1 - len(mask), 0)))
        mask[token // 8] |= 1 << token % 8
    return bytes(mask)


class OneOf:
    """The output is one of some token sequences. After it an end token may come, or nothing when there are none."""

    def __init__(self, *sequences: Sequence[int], end: Iterable[int] = ()) -> None:
        self.sequences = [tuple(sequence) for sequence in sequences]
        self.end = frozenset(end)
        self.accepted: list[int] = []

    def mask(self) -> bytes:
        done = len(self.accepted)
        rest = [sequence[done:] for sequence in self.sequences if sequence[:done] == tuple(self.accepted)]
        return bits({sequence[0] for sequence in rest if sequence} | (self.end if () in rest else frozenset()))

    def accept(self, token_id: int) -> None:
        self.accepted.append(token_id)
        if not any(sequence[: len(self.accepted)] == tuple(self.accepted) for sequence in self.sequences):
            raise Unanswerable(f"token {token_id} was not allowed")

    @property
    def complete(self) -> bool:
        return not self.end and tuple(self.accepted) in self.sequences


class Faulty(OneOf):
    """Breaks when it is asked for its `turn`th mask, or told its `turn`th token."""

    def __init__(self, *sequences: Sequence[int], mask: int = 0, accept: int = 0) -> None:
        super().__init__(*sequences)
        self._mask_turn, self._accept_turn = mask, accept

    def mask(self) -> bytes:
        if len(self.accepted) + 1 == self._mask_turn:
            raise Unanswerable("the grammar is too hard")
        return super().mask()

    def accept(self, token_id: int) -> None:
        super().accept(token_id)
        if len(self.accepted) == self._accept_turn:
            raise Unanswerable("the grammar is lost")
