"""A deterministic engine without a model: for tests, and to measure what serving costs beside the model.

It keeps the whole engine contract, but its text is made of words picked by a stable hash of the prompt, the position
and, above temperature 0, the seed. It never waits: `step_seconds` says what a step would have taken.
"""

from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256

from ..types import EngineEvent, EngineInfo, EngineJob, Failed, Finished, FinishReason, Progress, Token
from .fake_vocab import TEMPLATE, WORDS, FakeTokenizer, token_id
from .slots import Slot, SlotTable


class JobFault(Exception):
    """In a script: the job alone fails, with this text."""


def no_time(batch: int, prefill_tokens: int) -> float:
    """Seconds of a step that takes none."""
    return 0.0


class FakeEngine:
    """See `slim.engines.base.Engine` for the contract.

    A job makes `max_tokens` words, or plays `script`: each item of bytes is a token, and after the last the job
    finishes with STOP. A JobFault in a script fails that job; any other exception is raised by the whole step.
    A job takes the script that is set when it is added.
    """

    def __init__(
        self,
        *,
        slots: int = 4,
        context: int = 2048,
        prefill_chunk: int = 128,
        step_seconds: Callable[[int, int], float] = no_time,
        script: Sequence[bytes | Exception] | None = None,
        load_error: str | None = None,
    ) -> None:
        """`step_seconds` gets the jobs that decode and the prompt tokens of a step, and returns seconds."""
        self.slots = slots
        self.context = context
        self.prefill_chunk = prefill_chunk
        self.script = script
        self.load_error = load_error
        self.step_seconds = 0.0
        self.tokenizer = FakeTokenizer()
        self._cost = step_seconds
        self._table = SlotTable(slots)
        self._texts: dict[int, Iterator[bytes | Exception]] = {}

    def load(self) -> EngineInfo:
        """Raises RuntimeError with `load_error` where one is set."""
        if self.load_error is not None:
            raise RuntimeError(self.load_error)
        return EngineInfo(self.slots, self.context, self.slots * self.context, "fake", chat_template=TEMPLATE)

    @property
    def kv_used(self) -> int:
        return self._table.held

    def add(self, job: EngineJob) -> None:
        slot = self._table.add(job)
        self._texts[slot.number] = _words(job) if self.script is None else iter(self.script)

    def cancel(self, job_id: str) -> None:
        self._table.remove(job_id)

    def step(self) -> Sequence[EngineEvent]:
        """Raises what a script says."""
        self.step_seconds = 0.0
        decoding, chunks = self._table.decoding(), self._table.prefill(self.prefill_chunk)
        events: list[EngineEvent] = []
        for slot in decoding:
            self._table.hold(slot, 1)
            self._advance(slot, events)
        for chunk in chunks:
            slot = chunk.slot
            self._table.hold(slot, chunk.end - chunk.start)
            events.append(Progress(slot.job.id, chunk.end, len(slot.job.tokens)))
            if chunk.completes:
                self._advance(slot, events)
        if events:
            self.step_seconds = self._cost(len(decoding), sum(chunk.end - chunk.start for chunk in chunks))
        return events

    def reset(self) -> None:
        self._table.clear()

    def interrupt(self) -> None:
        """A step takes no time, so there is nothing to end early."""

    def close(self) -> None:
        self._table.clear()

    def _advance(self, slot: Slot, events: list[EngineEvent]) -> None:
        """Give the slot its next token, and end the job where that was the last."""
        job = slot.job
        data = next(self._texts[slot.number], None)
        if isinstance(data, bytes):
            events.append(Token(job.id, token_id(data), data))
            slot.made += 1
            if slot.made == job.max_tokens:
                self._finish(slot, Finished(job.id, FinishReason.LENGTH), events)
        elif data is None:
            self._finish(slot, Finished(job.id, FinishReason.STOP), events)
        elif isinstance(data, JobFault):
            self._finish(slot, Failed(job.id, str(data)), events)
        else:
            raise data

    def _finish(self, slot: Slot, end: Finished | Failed, events: list[EngineEvent]) -> None:
        self._table.remove(slot.job.id)
        events.append(end)


def _words(job: EngineJob) -> Iterator[bytes]:
    """The job's words, without end: the same in every process, which Python's own `hash` is not."""
    seed = job.sampling.seed if job.sampling.temperature > 0 else None
    state = repr((job.tokens, seed)).encode()
    while True:
        state = sha256(state).digest()
        for byte in state:
            yield WORDS[byte % len(WORDS)]
