"""How a job's next token is drawn from a row of logits, and how a row scores tokens: numpy alone.

Knows no engine, slot or batch. Every job has a Sampler with a random state of its own, so that a seeded job draws the
same whatever runs beside it. Nothing here sorts a whole vocabulary: that costs more than a small model's forward.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from ..errors import Unanswerable
from ..types import EngineJob, Mirostat, Sampling, TokenScore

GREEDY_BELOW = 1e-5
"""A lower temperature would overflow the logits; it can only mean the likeliest token."""
FORBIDDEN = np.float32(-3e38)
"""The logit of a token that may not come. Finite: infinities make what is not a number when they are subtracted."""
ALLOWED_ABOVE = np.float32(-1e37)
"""No penalty takes a token below it."""
FAR = np.float32(16)
"""Nats below the likeliest token, where a weight is so small that it is computed only when it is drawn."""
ZIPF_TOKENS = 100
"""Likely tokens that show how fast chances fall, as in Mirostat's paper."""
BLOCK = 256
"""Values that are summed or compared as one before it is known where to look closer."""

Array = Any
"""A numpy array of float32, or of indices. Any, so that types can be checked without numpy."""


class BadLogitsError(RuntimeError):
    """The model's output is no numbers. The text is one line."""


def is_greedy(sampling: Sampling) -> bool:
    return sampling.temperature < GREEDY_BELOW


class Tally:
    """How often each token came. Its arrays hold only the tokens that did, so that using them is cheap."""

    def __init__(self) -> None:
        self._place: dict[int, int] = {}
        self._ids = np.zeros(64, np.int64)
        self._counts = np.zeros(64, np.float32)

    def add(self, token: int, times: int = 1) -> None:
        place = self._place.setdefault(token, len(self._place))
        if place == len(self._ids):
            self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)])
            self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
        self._ids[place] = token
        self._counts[place] += times

    def read(self) -> tuple[Array, Array]:
        """Token ids and how often each came; maybe 0 times, for tokens that were taken away again."""
        used = len(self._place)
        return self._ids[:used], self._counts[:used]


class Sampler:
    """The choice of one job's tokens. `choose` from the logits, then `accept` what was chosen, by turns.

    The order of what a request asks for is that of `slim.types.Sampling`; XTC comes after `min_p`, and Mirostat in
    place of every cut. DRY is left to engines that have it. The job's constraint is asked for one mask for each token.
    """

    def __init__(self, job: EngineJob, end: frozenset[int]) -> None:
        """`end` are the vocabulary's end tokens."""
        self.sampling = sampling = job.sampling
        self._constraint = job.constraint
        self._min_tokens = job.min_tokens
        self._made = 0
        self._random = np.random.default_rng(None if sampling.seed is None else sampling.seed % 2**64)
        self._ends = _ids(end | job.stop_token_ids)
        self._never = _ids(end if job.ignore_eos else ())
        bias = dict(sampling.logit_bias)
        self._bias = _ids(bias), np.array(list(bias.values()), np.float32)
        self._bound = 2 * sampling.mirostat.tau if sampling.mirostat is not None else 0.0
        """Mirostat's limit of surprise, in bits (mu in its paper)."""
        self._counts_output = bool(sampling.presence_penalty or sampling.frequency_penalty)
        self._output = Tally()
        self._counts_recent = sampling.repeat_penalty != 1 and sampling.repeat_last_n != 0
        self._recent = Tally()
        self._window: deque[int] | None = None
        """The tokens that count as recent, where that is not all of them."""
        if self._counts_recent:
            tokens = job.tokens
            if sampling.repeat_last_n > 0:
                tokens = tokens[-sampling.repeat_last_n :]
                self._window = deque(tokens)
            for token, times in Counter(tokens).items():
                self._recent.add(token, times)

    def choose(self, row: Array) -> int:
        """The next token by these logits, which stay as they are.

        Raises Unanswerable when no token may come, what the constraint's mask raises, and BadLogitsError.
        """
        with np.errstate(over="ignore"):
            if self._changes_logits:
                row = row.copy()
                self._penalise(row)
                self._restrict(row)
            return self._likeliest(row) if is_greedy(self.sampling) else self._draw(row)

    def accept(self, token: int) -> None:
        """The token was chosen and does not end the job. Raises what the constraint raises."""
        self._made += 1
        if self._counts_output:
            self._output.add(token)
        if self._counts_recent:
            self._remember(token)
        if self._constraint is not None:
            self._constraint.accept(token)

    def close(self) -> None:
        """Free what the sampler holds outside Python: nothing here."""

    @property
    def _changes_logits(self) -> bool:
        return bool(
            self._counts_output
            or self._counts_recent
            or self._made < self._min_tokens
            or len(self._never)
            or len(self._bias[0])
            or self._constraint is not None
        )

    def _remember(self, token: int) -> None:
        self._recent.add(token)
        if self._window is not None:
            self._window.append(token)
            if len(self._window) > self.sampling.repeat_last_n:
                self._recent.add(self._window.popleft(), -1)

    def _penalise(self, row: Array) -> None:
        sampling = self.sampling
        if self._counts_recent:
            ids, counts = self._recent.read()
            ids = ids[counts > 0]
            logits, penalty = row[ids], np.float32(max(sampling.repeat_penalty, 1e-6))
            row[ids] = np.clip(np.where(logits > 0, logits / penalty, logits * penalty), -1e30, 1e30)
        if self._counts_output:
            ids, counts = self._output.read()
            row[ids] -= counts * np.float32(sampling.frequency_penalty) + np.float32(sampling.presence_penalty)

    def _restrict(self, row: Array) -> None:
        ids, bias = self._bias
        row[ids] += bias
        row[self._never] = FORBIDDEN
        if self._made < self._min_tokens:
            row[self._ends] = FORBIDDEN
        if self._constraint is not None:
            mask = self._constraint.mask().ljust(-(-len(row) // 8), b"\0")
            allowed = np.unpackbits(np.frombuffer(mask, np.uint8), count=len(row), bitorder="little")
            row += (1 - allowed.view(np.int8)) * FORBIDDEN  # a product is several times faster than a selection

    def _likeliest(self, row: Array) -> int:
        token = int(row.argmax())
        _check(row[token])
        return token

    def _draw(self, row: Array) -> int:
        sampling = self.sampling
        if sampling.mirostat is not None:
            return self._draw_by_surprise(row, sampling.mirostat)
        if (
            sampling.xtc is None
            and not (sampling.top_k or sampling.min_p)
            and sampling.typical_p >= 1 <= sampling.top_p
        ):
            return self._draw_from_all(row)
        ids, weights = self._survivors(row)
        if sampling.xtc is not None and self._random.random() < sampling.xtc.probability:
            kept = _without_the_likeliest(weights, sampling.xtc.threshold)
            ids, weights = _keep(kept, ids), weights[kept]
        place = _place(weights, self._random.random())
        return place if ids is None else int(ids[place])

    def _draw_from_all(self, row: Array) -> int:
        """A draw that no cut precedes. Exact, though only the likely tokens' weights are computed: the rest is drawn as
        if each weighed as much as any of them can, and then refused as often as that was too much."""
        top, scale = row.max(), np.float32(1 / self.sampling.temperature)
        _check(top)
        likely = row >= top - FAR / scale
        head = np.flatnonzero(likely)
        weights = np.exp((row[head] - top) * scale)
        mass, most = float(weights.sum(dtype=np.float64)), float(np.exp(-FAR))
        while True:
            place = self._random.random() * (mass + most * len(row))
            if place < mass:
                return int(head[_place(weights, place / mass)])
            token = min(int((place - mass) / most), len(row) - 1)
            if not likely[token] and self._random.random() * most < np.exp((row[token] - top) * scale):
                return token

    def _draw_by_surprise(self, row: Array, mirostat: Mirostat) -> int:
        """A draw from the tokens whose surprise is within the bound, which then moves towards the target (algorithms 1
        and 2 of Basu et al. 2021)."""
        top = row.max()
        _check(top)
        nats = (row - top) * np.float32(1 / self.sampling.temperature)
        weights = np.exp(nats)
        if mirostat.version == 1:
            ids = likeliest(row, _zipf_count(nats[likeliest(row, ZIPF_TOKENS)], self._bound, len(row)))
        else:
            ids = np.flatnonzero(weights >= weights.sum() * np.exp2(-self._bound))
            ids = ids if len(ids) else likeliest(row, 1)
        place = _place(weights[ids], self._random.random())
        surprise = -float(np.log2(weights[ids[place]] / weights[ids].sum()))
        self._bound -= mirostat.eta * (surprise - mirostat.tau)
        return int(ids[place])

    def _survivors(self, row: Array) -> tuple[Array | None, Array]:
        """The tokens that the cuts leave, None for all in order of their ids, and their weights."""
        sampling, ids, top = self.sampling, None, row.max()
        _check(top)
        if 0 < sampling.top_k < len(row):
            ids = likeliest(row, sampling.top_k)
            row = row[ids]
        nats = row - top
        nats *= np.float32(1 / sampling.temperature)  # in place, here and below: new memory costs as much as the sum
        weights = np.exp(nats)
        if sampling.typical_p < 1:
            kept = _nearest(_distance_from_typical(nats, weights), weights, sampling.typical_p)
            ids, nats, weights = _keep(kept, ids), nats[kept], weights[kept]
        if sampling.top_p < 1:
            kept = _nearest(np.negative(nats, out=nats), weights, sampling.top_p)
            ids, weights = _keep(kept, ids), weights[kept]
        if sampling.min_p > 0:
            kept = np.flatnonzero(weights >= weights.max() * np.float32(min(sampling.min_p, 1)))
            ids, weights = _keep(kept, ids), weights[kept]
        return ids, weights


def likeliest(row: Array, count: int) -> Array:
    """The ids of the `count` highest logits, highest first, then lowest id first. None is a forbidden one."""
    blocks = len(row) // BLOCK
    if count <= blocks:  # so many maxima of blocks are as many tokens at least, and cheaper to find
        maxima = row[: blocks * BLOCK].reshape(blocks, BLOCK).max(axis=1)
        bound = np.partition(maxima, blocks - count)[blocks - count]
    else:
        count = min(count, len(row))
        bound = np.partition(row, len(row) - count)[len(row) - count]
    ids = np.flatnonzero(row >= max(bound, ALLOWED_ABOVE))
    return ids[np.argsort(-row[ids], kind="stable")[:count]]


def score(row: Array, token: int, count: int, name: Callable[[int], bytes]) -> TokenScore:
    """How likely `token` was by these logits, as they came from the model, and the `count` likeliest in its place.

    Raises BadLogitsError when the logits are no numbers.
    """
    top = row.max()
    _check(top)
    whole = float(top) + float(np.log(np.exp(row - top).sum(dtype=np.float64)))
    best = likeliest(row, count) if count else ()
    return TokenScore(
        name(token), float(row[token]) - whole, tuple((name(int(one)), float(row[one]) - whole) for one in best)
    )


def _ids(tokens: Iterable[int]) -> Array:
    return np.array(list(tokens), np.int64)


def _keep(kept: Array, ids: Array | None) -> Array:
    return kept if ids is None else ids[kept]


def _check(top: Any) -> None:
    """Refuse logits whose highest is this."""
    if top < ALLOWED_ABOVE:
        raise Unanswerable("No token may come next: the request forbids all of them.")
    if not np.isfinite(top):
        raise BadLogitsError("the model's output is not a number")


def _place(weights: Array, chance: float) -> int:
    """An index, drawn with these weights. `chance` is in [0, 1). First the block, then the place in it."""
    sums = np.add.reduceat(weights, np.arange(0, len(weights), BLOCK)).cumsum(dtype=np.float64)
    wanted = chance * sums[-1]
    block = _above(sums, wanted)
    inner = weights[block * BLOCK : (block + 1) * BLOCK].cumsum(dtype=np.float64)
    return block * BLOCK + _above(inner, wanted - (sums[block - 1] if block else 0))


def _above(sums: Array, wanted: float) -> int:
    """The first index whose running sum is above `wanted`. Where rounding leaves none, the last that adds something."""
    return min(int(sums.searchsorted(wanted, "right")), int(sums.searchsorted(sums[-1], "left")))


def _without_the_likeliest(weights: Array, threshold: float) -> Array:
    """All indices but those of at least `threshold` of the whole; of these the least likely stays (XTC)."""
    least = max(weights.sum() * np.float32(threshold), np.finfo(np.float32).tiny)
    likely = np.flatnonzero(weights >= least)
    dropped = np.delete(likely, weights[likely].argmin()) if len(likely) else likely
    return np.delete(np.arange(len(weights)), dropped)


def _zipf_count(nats: Array, bound: float, size: int) -> int:
    """How many of `size` tokens have a surprise up to `bound` bits, if chances fall by Zipf's law as these do."""
    ranks = np.arange(1, len(nats), dtype=np.float64)
    steps = np.log((ranks + 1) / ranks)
    with np.errstate(all="ignore"):
        slope = (steps * (nats[:-1] - nats[1:])).sum() / (steps * steps).sum()
        above = slope - 1 or 1e-9
        count = (above * np.exp2(bound) / (1 - float(size) ** -above)) ** (1 / slope)
    return int(min(max(count, 1), size)) if np.isfinite(count) else size


def _distance_from_typical(nats: Array, weights: Array) -> Array:
    """How far each token's surprise is from the distribution's mean surprise (Meister et al. 2023, locally typical)."""
    chances = weights / weights.sum()
    surprise = float(np.log(weights.sum())) - nats
    mean = (chances * np.where(weights > 0, surprise, 0)).sum()
    return np.where(weights > 0, abs(surprise - mean), np.inf)


def _nearest(distance: Array, weights: Array, share: float) -> Array:
    """The fewest indices of least distance whose weights reach `share` of the whole, at least one. Exact.

    Distances are in nats. A coarse reach first, then bins, so that only one bin is ever sorted.
    """
    whole = max(share * weights.sum(dtype=np.float64), np.finfo(np.float64).tiny)
    reach = 2.0
    near = np.flatnonzero(distance <= reach)
    while reach < 256 and weights[near].sum(dtype=np.float64) < whole:
        reach *= 2
        near = np.flatnonzero(distance <= reach)
    bins = (distance[near] * (1024 / reach)).astype(np.int64)
    mass = np.bincount(bins, weights[near]).cumsum()
    last = min(int(mass.searchsorted(whole)), len(mass) - 1)
    inside, edge = near[bins < last], near[bins == last]
    edge = edge[np.argsort(distance[edge], kind="stable")]
    before = mass[last - 1] if last else 0.0
    count = int(weights[edge].cumsum(dtype=np.float64).searchsorted(whole - before)) + 1
    return np.concatenate([inside, edge[:count]])
