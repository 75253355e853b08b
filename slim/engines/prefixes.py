"""How much of a prompt has been computed before, and how much of that a job can have. Pure: knows no slot, no KV.

How many tokens of a sequence are computed at once decides which kernels compute them, and so the last bits of the
logits (see WIDE). So a job goes on with a shared prefix only from where it computes the rest as it would alone.
"""

from attrs import frozen

from ..types import EngineJob

WIDE = 64
"""From so many rows of one sequence on, llama.cpp's flash attention takes another kernel on CPUs."""

WORTH = 64
"""Tokens. For fewer a job does not wait until another one has computed them."""


@frozen(eq=False)
class Content:
    """The tokens of some KV, and whose they are."""

    tokens: tuple[int, ...]
    tenant: str
    prompt_id: str = ""
    """Of the job whose whole prompt they begin with; empty when it was not complete."""
    scored: bool = False
    """The prompt was computed in parts below WIDE, for its scores."""


def common(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    """How many leading tokens both have. Slices are compared, so both must be tuples."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def aligned(shared: int, length: int, chunk: int) -> int:
    """Of `shared` computed tokens of a prompt with `length` so many that the rest is computed as it is alone.

    Alone the prompt is cut at multiples of `chunk`; the last token is always computed, for its logits.
    """
    kept = min(shared, length - 1)
    start = kept - kept % chunk
    end = min(start + chunk, length)
    if end - start >= WIDE > end - kept:
        return end - WIDE
    return kept


def usable(content: Content, job: EngineJob, chunk: int) -> int:
    """How many of the content's tokens the job can begin with.

    Never another tenant's. A prompt that is to be scored has to be computed, unless a sibling has told its scores.
    """
    if not job.cache_prompt or content.tenant != job.tenant:
        return 0
    shared = common(content.tokens, job.tokens)
    if not (job.score_prompt or content.scored):
        return aligned(shared, len(job.tokens), chunk)
    return min(shared, len(job.tokens) - 1) if is_sibling(content, job) else 0


def covers(whole: Content, part: Content) -> bool:
    """Whether everything of `part` can be had from `whole`."""
    return (
        whole.tenant == part.tenant
        and whole.scored == part.scored
        and common(whole.tokens, part.tokens) == len(part.tokens)
    )


def is_sibling(content: Content, job: EngineJob) -> bool:
    """The content has the whole prompt of another choice of the same request."""
    return bool(job.prompt_id) and content.prompt_id == job.prompt_id
