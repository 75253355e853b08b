"""`POST /v1/chat/completions`: the conversation becomes jobs, their text becomes messages, reasoning and tool calls."""

import secrets
import time

from attrs import define, field, frozen

from ..answer import Delta
from ..chat.output import ChatOutput
from ..scheduler import Ticket, Update
from ..types import FinishReason, TokenScore
from ..wire.answers import Head
from ..wire.chat import ChatChoice, ChatStream, chat_body
from ..wire.requests import Call, RequestLimits, parse_chat
from .generation import Generator
from .http import Reply, Request


@frozen(eq=False)
class Chat:
    """The handler and what it needs."""

    generator: Generator
    model_name: str
    limits: RequestLimits

    async def create(self, request: Request, reply: Reply) -> None:
        """Answer one request. Raises SlimError while nothing has been sent."""
        self.generator.check()
        call = await self.generator.bodies.parse(request, lambda body: parse_chat(body, self.limits))
        with self.generator.submit(request, call.generations) as ticket:
            head = Head(f"chatcmpl-{ticket.id}", int(time.time()), self.model_name)
            answer = ChatAnswer(ticket, head, call)
            await self.generator.run(ticket, request, reply, answer, streamed=call.stream)


def new_call_id() -> str:
    return secrets.token_hex(12)


@define(eq=False)
class ChoiceSoFar:
    """What has come of one choice."""

    output: ChatOutput
    deltas: list[Delta] = field(factory=list)
    scores: list[TokenScore] = field(factory=list)
    reason: FinishReason | None = None

    @property
    def finish_reason(self) -> str:
        """A stop after a tool call means that the caller is to run it; a cut stays a cut, also by a stop string."""
        if self.reason is FinishReason.STOP and self.output.called and not self.output.in_call:
            return "tool_calls"
        return str(self.reason)


@define(eq=False, init=False)
class ChatAnswer:
    """See `slim.web.generation.Answer`."""

    _ticket: Ticket
    _head: Head
    _call: Call
    _stream: ChatStream
    _messages: dict[int, ChoiceSoFar]

    def __init__(self, ticket: Ticket, head: Head, call: Call) -> None:
        self._ticket, self._head, self._call = ticket, head, call
        self._stream = ChatStream(head, call.include_usage, call.scored)
        self._messages = {}

    def _message(self, index: int) -> ChoiceSoFar | None:
        """None while the prompt is not read: then how to read the answer isn't known either."""
        message = self._messages.get(index)
        prepared = self._ticket.prepared(index)
        if message is None and prepared is not None and prepared.output is not None:
            message = self._messages[index] = ChoiceSoFar(ChatOutput(prepared.output, new_call_id))
        return message

    def events(self, update: Update) -> bytes:
        index = update.index
        if update.error is not None and not update.pieces:
            return b""  # alone it must not send the head: an error is a status as long as nothing was sent
        is_new = index not in self._messages
        message = self._message(index)
        if message is None:
            return b""
        data = self._stream.open(index) if is_new else b""
        if update.progress is not None:
            data += self._stream.progress(index, update.progress)
        if self._call.scored:
            for piece, scores in zip(update.pieces, update.scores, strict=True):
                data += self._stream.events(index, message.output.feed(piece), scores)
        else:
            deltas = [delta for piece in update.pieces for delta in message.output.feed(piece)]
            data += self._stream.events(index, deltas, ())
        if update.reason is not None:
            message.reason = update.reason
            data += self._stream.events(index, message.output.finish(), ())
            data += self._stream.end(index, message.finish_reason, self._ticket.timings(index))
        return data

    def close(self) -> bytes:
        return self._stream.close(self._ticket.usage)

    def gather(self, update: Update) -> None:
        message = self._message(update.index)
        if message is None:
            return
        for piece in update.pieces:
            message.deltas += message.output.feed(piece)
        for scores in update.scores:
            message.scores += scores
        if update.reason is not None:
            message.deltas += message.output.finish()
            message.reason = update.reason

    def whole(self) -> bytes:
        choices = [
            ChatChoice(message.deltas, message.scores if self._call.scored else None, message.finish_reason)
            for _, message in sorted(self._messages.items())
        ]
        return chat_body(self._head, choices, self._ticket.usage, self._ticket.timings(0))
