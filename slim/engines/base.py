"""The engine contract: what a backend implements, and all it needs to implement.

An engine is synchronous and belongs to one thread: `load`, `add`, `cancel`, `step`, `reset` and `close` are called by
the replica's thread alone, `interrupt` by any. It has no clock, no queue, no stop strings and no HTTP.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

from ..types import EngineEvent, EngineInfo, EngineJob, Segment


class Tokenizer(Protocol):
    """Text to token ids and back. Safe to use from any thread while the engine decodes, until `Engine.close`."""

    @property
    def pieces(self) -> Sequence[bytes]:
        """The bytes that each token id adds to a text; none for control tokens. Its length is the vocabulary's."""
        ...

    @property
    def control(self) -> Mapping[str, int]:
        """Ids of the control tokens by the text that stands for them."""
        ...

    @property
    def end(self) -> frozenset[int]:
        """The ids that end a generation, at least one."""
        ...

    @property
    def bos(self) -> str:
        """The text of the leading token, for chat templates; empty where the model has none."""
        ...

    @property
    def eos(self) -> str:
        """The text of the model's main end token, for chat templates; empty where it has none."""
        ...

    def encode(self, segments: Sequence[Segment], *, leading: bool = True) -> tuple[int, ...]:
        """Token ids of the joined segments, with the model's own leading token where it wants one, and never two.

        Without `leading` the text alone, maybe no token at all; with it at least one.
        """
        ...


class Engine(Protocol):
    """One model copy with a fixed number of slots that decode together.

    A job begins with the longest prefix of its prompt that a slot holds, of a running job or an ended one, and tells so
    in `Progress.cached`; never with another tenant's. A prompt that is to be scored is computed, but for jobs with the
    same `prompt_id`: the first scores it, the others take it over and score only their own tokens.

    Scores are of the model's own distribution, whatever the job's sampling and constraint make of it.
    """

    step_seconds: float
    """What the last step still owes; its driver waits so long before it delivers. 0 for real engines."""

    def load(self) -> EngineInfo:
        """Load the model. Raises any exception with a one-line text when it can't."""
        ...

    @property
    def tokenizer(self) -> Tokenizer:
        """Valid after `load`."""
        ...

    @property
    def kv_used(self) -> int:
        """Tokens now held for running jobs, at most `EngineInfo.kv_tokens`. 0 before `load`, and after a failed one."""
        ...

    def add(self, job: EngineJob) -> None:
        """Take the lowest free slot for the job. The caller never adds more than `EngineInfo.slots` jobs.

        Raises ValueError when the job names a token that is not in the vocabulary. The caller sees to it that prompt
        and new tokens fit in `EngineInfo.context`.
        """
        ...

    def waits(self, job: EngineJob) -> bool:
        """Whether the caller should add the job later: a running one computes a long prefix that it can begin with."""
        ...

    def cancel(self, job_id: str) -> None:
        """Free the job's slot, between two steps. An unknown id is ignored: the job may just have ended."""
        ...

    def step(self) -> Sequence[EngineEvent]:
        """Compute the jobs that run, together: at most one Token for each. Empty when none runs.

        Raises an exception when the whole step broke; the caller then counts every running job as failed and calls
        `reset`. A fault of one job alone is a Failed event: its constraint raises Unanswerable, or forbids all tokens.
        In a step a job's events come in this order: Progress, PromptScores, Token, Finished or Failed.
        """
        ...

    def reset(self) -> None:
        """Forget every job and rebuild what a failed step may have broken. Raises when that is impossible."""
        ...

    def interrupt(self) -> None:
        """From any thread: end the running step early (shutdown). It may then raise or return what it has."""
        ...

    def close(self) -> None:
        """Free the model. Nothing is called afterwards."""
        ...
