"""What the fake engine says: words, choices under a constraint, and scores, all from stable hashes. Knows no engine.

Nothing here is a language model. The same job gets the same answer in every process, another prompt or seed another.
"""

from collections.abc import Iterator
from functools import cached_property
from hashlib import sha256
from itertools import islice
from math import log

from ..errors import Unanswerable
from ..types import EngineJob, TokenScore
from .fake_vocab import CONTROL, END, FIRST_HASHED, FIRST_WORD, PIECES, SIZE, WORDS

CERTAIN = 100
"""The size of a `logit_bias` that decides: so much below bans a token, so much above chooses it."""
PATIENCE = 1000
"""Words tried before all of them count as banned."""
CLOSING = tuple(data[0] for data in (b'"', b"}", b"]", b","))
"""Bytes that bring a JSON text to its end."""
NAMES = {token: name.encode() for name, token in CONTROL.items()}


class FakeModel:
    """The choice of one job's tokens, as far as no script decides them."""

    def __init__(self, job: EngineJob) -> None:
        seed = job.sampling.seed if job.sampling.temperature > 0 else None
        self._job = job
        self._state = repr((job.tokens, seed)).encode()
        self._words = self._endless()
        self._made = 0

    def choose(self) -> int:
        """The next token. Raises Unanswerable where none may come, and what the constraint raises."""
        job, banned = self._job, self._banned()
        if job.constraint is not None:
            token = self._allowed(int.from_bytes(job.constraint.mask(), "little"), banned)
        else:
            forced = [one for one, bias in job.sampling.logit_bias if bias >= CERTAIN and one not in banned]
            words = islice(self._words, PATIENCE)
            token = forced[0] if forced else next((one for one in words if one not in banned), -1)
        if token < 0:
            raise Unanswerable("No token may come next: the request forbids all of them.")
        return token

    def accept(self, token: int) -> None:
        """The token was chosen and does not end the job. Raises what the constraint raises."""
        self._made += 1
        if self._job.constraint is not None:
            self._job.constraint.accept(token)

    def score(self, place: int, token: int, data: bytes) -> TokenScore:
        """A score of the token with these bytes at this place of prompt and output; not certain, never impossible."""
        noise = sha256(self._state + b"%d %d" % (place, token)).digest()
        rank = 0 if self._job.sampling.temperature == 0 else noise[0] % 3
        others = [WORDS[(noise[1] + step) % len(WORDS)] for step in range(len(WORDS))]
        ranked = [other for other in others if other != data]
        ranked.insert(rank, data)
        ratio = (noise[2] + 64) / 384  # of one token's chance to that of the next likelier one
        logprobs = [log(1 - ratio) + step * log(ratio) for step in range(len(ranked))]
        top = tuple(zip(ranked, logprobs, strict=True))[: self._job.logprobs or 0]
        return TokenScore(data, logprobs[rank], top)

    def _endless(self) -> Iterator[int]:
        state = self._state
        while True:
            state = sha256(state).digest()
            for byte in state:
                yield FIRST_WORD + byte % len(WORDS)

    def _banned(self) -> frozenset[int]:
        job = self._job
        banned = self._always_banned
        return banned | END | job.stop_token_ids if self._made < job.min_tokens else banned

    @cached_property
    def _always_banned(self) -> frozenset[int]:
        banned = frozenset(token for token, bias in self._job.sampling.logit_bias if bias <= -CERTAIN)
        return banned | END if self._job.ignore_eos else banned

    def _allowed(self, mask: int, banned: frozenset[int]) -> int:
        """One of the mask's tokens, -1 where none is left: what ends the text soonest, but not before it has begun."""
        for token in banned:
            mask &= ~(1 << token)
        mask &= (1 << SIZE) - 1
        if not self._made:
            mask = mask & ~sum(1 << token for token in END) or mask
        for token in (*END, *CLOSING):
            if mask >> token & 1:
                return token
        noise = int.from_bytes(sha256(self._state + b"%d" % self._made).digest()[:4], "little")
        readable = [token for token in range(FIRST_HASHED) if mask >> token & 1]
        return readable[noise % len(readable)] if readable else (mask & -mask).bit_length() - 1


def name(token: int) -> bytes:
    """The bytes of a token as scores show it: of a control token its name."""
    return NAMES.get(token) or PIECES[token]
