"""A deterministic engine without a model: for tests, and to measure what serving costs beside the model.

It keeps the whole engine contract, but its text is made of words picked by a stable hash of the prompt, the position
and, above temperature 0, the seed. Penalties and cuts change nothing in it, and it has none of llama.cpp's own
samplers. It never waits: `step_seconds` says what a step would have taken.
"""

from collections.abc import Callable, Iterator, Sequence

from attrs import evolve

from ..errors import Unanswerable
from ..types import EngineEvent, EngineInfo, EngineJob, Failed, Finished, FinishReason, Progress, TokenScore
from .fake_model import FakeModel, name
from .fake_vocab import END, PIECES, SIZE, TEMPLATE, FakeTokenizer, token_id
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
    A job takes the script that is set when it is added, and then asks no constraint.
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
        chat_template: str | None = TEMPLATE,
    ) -> None:
        """`step_seconds` gets the jobs that decode and the prompt tokens of a step, and returns seconds."""
        self.slots = slots
        self.context = context
        self.prefill_chunk = prefill_chunk
        self.script = script
        self.load_error = load_error
        self.chat_template = chat_template
        self.step_seconds = 0.0
        self.tokenizer = FakeTokenizer()
        self._cost = step_seconds
        self._table = SlotTable(slots, prefill_chunk)
        self._models: dict[int, FakeModel] = {}
        self._scripts: dict[int, Iterator[bytes | Exception]] = {}

    def load(self) -> EngineInfo:
        """Raises RuntimeError with `load_error` where one is set."""
        if self.load_error is not None:
            raise RuntimeError(self.load_error)
        return EngineInfo(self.slots, self.context, self.slots * self.context, "fake", self.chat_template)

    @property
    def kv_used(self) -> int:
        return self._table.held

    def add(self, job: EngineJob) -> None:
        """Raises ValueError for a token id that is none."""
        named = (*job.tokens, *job.stop_token_ids, *job.shown, *(token for token, _ in job.sampling.logit_bias))
        if min(named) < 0 or max(named) >= SIZE:
            raise ValueError("a token id is outside the model's vocabulary")
        donor = self._table.donor(job)
        slot = self._table.add(job, 0 if donor is None else donor.tokens)
        self._models[slot.number] = FakeModel(job)
        self._scripts.pop(slot.number, None)
        if self.script is not None:
            self._scripts[slot.number] = iter(self.script)

    def waits(self, job: EngineJob) -> bool:
        return self._table.waits(job)

    def cancel(self, job_id: str) -> None:
        self._table.remove(job_id)

    def step(self) -> Sequence[EngineEvent]:
        """Raises what a script says."""
        self.step_seconds = 0.0
        decoding, chunks = self._table.decoding(), self._table.prefill()
        events: list[EngineEvent] = []
        for slot in decoding:
            self._table.hold(slot, 1)
            self._advance(slot, events)
        for chunk in chunks:
            slot, job = chunk.slot, chunk.slot.job
            self._table.hold(slot, chunk.end - chunk.start)
            events.append(Progress(job.id, slot.held, len(job.tokens), slot.cached))
            if slot.scores_prompt:
                events += chunk.scores(TokenScore(name(job.tokens[0]), None), self._scorer(slot, chunk.start))
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

    def _scorer(self, slot: Slot, start: int) -> Callable[[int, int], TokenScore]:
        """Scores the prompt's tokens that follow the places from `start` on."""
        model = self._models[slot.number]
        return lambda place, token: model.score(start + place + 1, token, name(token))

    def _advance(self, slot: Slot, events: list[EngineEvent]) -> None:
        """Give the slot its next token, and end the job where that was the last."""
        job = slot.job
        if job.max_tokens == 0:
            events.append(Finished(job.id, FinishReason.LENGTH))
        elif slot.number in self._scripts:
            events += self._played(slot)
        else:
            try:
                events += self._chosen(slot)
            except Unanswerable as error:
                events.append(Failed(job.id, str(error), unanswerable=True))
        if isinstance(events[-1], Finished | Failed):
            self._table.remove(job.id)

    def _chosen(self, slot: Slot) -> list[EngineEvent]:
        """Raises Unanswerable where the job can't go on."""
        job, model = slot.job, self._models[slot.number]
        token = model.choose()
        if slot.ends(token, END):
            return [Finished(job.id, FinishReason.STOP, self._score(slot, token, b""))]
        model.accept(token)
        return self._told(slot, token, name(token) if token in job.shown else PIECES[token])

    def _played(self, slot: Slot) -> list[EngineEvent]:
        """Raises what the script says, but a JobFault."""
        data = next(self._scripts[slot.number], None)
        if data is None:
            return [Finished(slot.job.id, FinishReason.STOP)]
        if isinstance(data, JobFault):
            return [Failed(slot.job.id, str(data))]
        if isinstance(data, Exception):
            raise data
        return self._told(slot, token_id(data), data)

    def _told(self, slot: Slot, token: int, data: bytes) -> list[EngineEvent]:
        return slot.take(token, data, self._score(slot, token, data))

    def _score(self, slot: Slot, token: int, data: bytes) -> TokenScore | None:
        """Where the job asked for it. `data` is what the token adds to the text."""
        if slot.job.logprobs is None:
            return None
        place = len(slot.job.tokens) + slot.made
        return evolve(self._models[slot.number].score(place, token, data or name(token)), is_text=bool(data))
