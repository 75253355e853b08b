"""`POST /v1/completions`: a body becomes a job, its updates become one JSON answer or a stream of events.

Knows nothing of the queue and the engines behind the ticket.
"""

import time

import trio
from attrs import field, frozen

from ..scheduler import Scheduler, Ticket
from ..types import FinishReason
from ..wire.completions import (
    CompletionHead,
    CompletionStream,
    RequestLimits,
    completion_body,
    parse_completion,
)
from ..wire.errors import HttpError
from .http import Reply, Request


@frozen
class BodyLimits:
    """How large a request body may be, in bytes, and how long it may take, in seconds."""

    size: int
    seconds: float


@frozen(eq=False)
class Completions:
    """The handler and what it needs."""

    scheduler: Scheduler
    model_name: str
    body_limits: BodyLimits
    request_limits: RequestLimits
    _reading: set[trio.CancelScope] = field(factory=set)

    async def create(self, request: Request, reply: Reply) -> None:
        """Answer one request. Raises SlimError while nothing has been sent; later errors go into the stream."""
        self.scheduler.check()
        body = await self._read(request)
        call = parse_completion(body, self.request_limits)
        with self.scheduler.submit(call.generation, request.id) as ticket:
            head = CompletionHead(f"cmpl-{ticket.id}", int(time.time()), self.model_name)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(watch, request, ticket)
                if call.stream:
                    await stream(ticket, reply, CompletionStream(head, call.include_usage))
                else:
                    await answer(ticket, reply, head)
                nursery.cancel_scope.cancel()

    async def _read(self, request: Request) -> bytes:
        scope = trio.CancelScope(deadline=trio.current_time() + self.body_limits.seconds)
        self._reading.add(scope)
        try:
            return await request.body(self.body_limits.size, scope)
        except HttpError:
            if scope.cancelled_caught:
                self.scheduler.check()  # if a drain has cut it short, that is the better reason
            raise
        finally:
            self._reading.discard(scope)

    def stop_reading(self) -> None:
        """Give up the bodies that are still coming in: the server drains, and their requests would be refused."""
        for scope in list(self._reading):
            scope.cancel()


async def watch(request: Request, ticket: Ticket) -> None:
    """End the generation when the client leaves, even while a `send` is blocked."""
    await request.wait_for_disconnect()
    ticket.cancel()


async def answer(ticket: Ticket, reply: Reply, head: CompletionHead) -> None:
    """Gather the text and send it whole."""
    pieces: list[str] = []
    while True:
        update = await ticket.receive()
        pieces.extend(update.pieces)
        if update.error is not None:
            await reply.error(update.error)
            return
        if update.reason is not None:
            await reply.whole(200, completion_body(head, "".join(pieces), update.reason, update.usage))
            return


async def stream(ticket: Ticket, reply: Reply, rendered: CompletionStream) -> None:
    """Send what is new, once per wake-up: one event per token, all that are ready in one write."""
    reason: FinishReason | None = None
    while reason is None:
        update = await ticket.receive()
        data, reason = rendered.events(update.pieces), update.reason
        if reason is not None:
            data += rendered.end(reason, update.usage)
        if data:
            await reply.events(data, last=reason is not None)
        if update.error is not None:
            await reply.error(update.error)
            return
