"""`POST /v1/completions`: the body becomes jobs, their updates become text in OpenAI's older shape."""

import time
from collections.abc import Sequence

from attrs import define, field, frozen

from ..scheduler import Ticket, Update
from ..types import FinishReason, TokenScore
from ..wire.answers import Head
from ..wire.completions import CompletionStream, TextChoice, completion_body
from ..wire.requests import Call, RequestLimits, parse_completion
from .generation import Generator
from .http import Reply, Request


@frozen(eq=False)
class Completions:
    """The handler and what it needs."""

    generator: Generator
    model_name: str
    limits: RequestLimits

    async def create(self, request: Request, reply: Reply) -> None:
        """Answer one request. Raises SlimError while nothing has been sent."""
        self.generator.check()
        call = await self.generator.bodies.parse(request, lambda body: parse_completion(body, self.limits))
        with self.generator.submit(request, call.generations) as ticket:
            head = Head(f"cmpl-{ticket.id}", int(time.time()), self.model_name)
            answer = CompletionAnswer(ticket, head, call)
            await self.generator.run(ticket, request, reply, answer, streamed=call.stream)


@define
class ChoiceSoFar:
    """What has come of one choice."""

    pieces: list[str] = field(factory=list)
    scores: list[Sequence[TokenScore]] = field(factory=list)
    reason: FinishReason = FinishReason.STOP


@define(eq=False, init=False)
class CompletionAnswer:
    """See `slim.web.generation.Answer`."""

    _ticket: Ticket
    _head: Head
    _call: Call
    _stream: CompletionStream
    _texts: list[ChoiceSoFar]

    def __init__(self, ticket: Ticket, head: Head, call: Call) -> None:
        self._ticket, self._head, self._call = ticket, head, call
        self._stream = CompletionStream(head, call.include_usage, call.scored)
        self._texts = [ChoiceSoFar() for _ in range(ticket.size)]

    def events(self, update: Update) -> bytes:
        data = b""
        if update.progress is not None:
            data += self._stream.progress(update.index, update.progress)
        data += self._stream.events(update.index, update.pieces, update.scores)
        if update.end_score is not None:
            data += self._stream.events(update.index, [""], [(update.end_score,)])
        if update.reason is not None:
            data += self._stream.end(update.index, update.reason, self._ticket.timings(update.index))
        return data

    def close(self) -> bytes:
        return self._stream.close(self._ticket.usage)

    def gather(self, update: Update) -> None:
        text = self._texts[update.index]
        text.pieces += update.pieces
        text.scores += update.scores
        if update.end_score is not None:
            text.pieces.append("")
            text.scores.append((update.end_score,))
        text.reason = update.reason or text.reason

    def whole(self) -> bytes:
        choices = [
            TextChoice(text.pieces, text.scores if self._call.scored else None, text.reason) for text in self._texts
        ]
        return completion_body(self._head, choices, self._ticket.usage, self._ticket.timings(0))
