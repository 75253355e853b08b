"""What every request for generated text has in common: the body, the ticket, the watcher, the stream.

Knows nothing of the shapes of the answers, nor of the queue and the engines behind the ticket.
"""

import math
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

import trio
from attrs import define, field, frozen

from ..errors import InvalidRequest, SlimError
from ..scheduler import Scheduler, Ticket, Update
from ..types import Generation
from ..wire import sse
from ..wire.errors import HttpError
from .http import Reply, Request

T = TypeVar("T")

SMALL = 4096
"""Bytes. So small a body costs less than another round of the event loop."""

ROUNDS = 8
"""Of the event loop, that the turn of a large body lasts while others wait for theirs. All that follows from a request
is then spread as thin: of 32 that arrive together `/healthz` feels at p99 11 ms, and 22 ms with a turn of one round."""

LARGE = 65536
"""Bytes. A larger body is parsed on a thread: 300,000 token ids take 0.1 s."""

MANY_SCORES = 256
"""Tokens with scores. More are written on a thread: 2,000 tokens with 20 alternatives each take 0.1 s."""


@frozen
class BodyLimits:
    """How large a request body may be, in bytes, and how long it may take, in seconds."""

    size: int
    seconds: float


@frozen(eq=False)
class Bodies:
    """Reads request bodies, and gives those up that are still coming in when the server drains."""

    scheduler: Scheduler
    limits: BodyLimits
    _reading: set[trio.CancelScope] = field(factory=set)
    _turn: trio.Lock = field(factory=trio.Lock)
    _thread: trio.CapacityLimiter = field(factory=lambda: trio.CapacityLimiter(1))

    async def parse(self, request: Request, parse: Callable[[bytes], T]) -> T:
        """Read the body and parse it. Raises what `parse` raises, HttpError 413 or 408, and an Unavailable.

        Large ones take turns: of many that arrive together the loop's other tasks would else feel the sum.
        """
        body = await self._read(request)
        if len(body) <= SMALL:
            return parse(body)
        if len(body) > LARGE:
            return await trio.to_thread.run_sync(parse, body, limiter=self._thread)
        async with self._turn:
            parsed = parse(body)
            rounds = 0
            while rounds < ROUNDS and self._turn.statistics().tasks_waiting:
                await trio.lowlevel.checkpoint()
                rounds += 1
            return parsed

    async def _read(self, request: Request) -> bytes:
        scope = trio.CancelScope(deadline=trio.current_time() + self.limits.seconds)
        self._reading.add(scope)
        try:
            return await request.body(self.limits.size, scope)
        except HttpError:
            if scope.cancelled_caught:
                self.scheduler.check()  # if a drain has cut it short, that is the better reason
            raise
        finally:
            self._reading.discard(scope)

    def stop_reading(self) -> None:
        """The server drains, and the requests of these bodies would be refused."""
        for scope in list(self._reading):
            scope.cancel()


class Answer(Protocol):
    """Turns updates into the bytes of one answer. Whole or streamed, never both."""

    def events(self, update: Update) -> bytes:
        """The events of a stream for what is new of one choice, maybe none."""
        ...

    def close(self) -> bytes:
        """The last events of a stream, after every choice has ended."""
        ...

    def gather(self, update: Update) -> None:
        """Keep what is new for `whole`."""
        ...

    def whole(self) -> bytes:
        """The body of an answer that isn't streamed, after every choice has ended."""
        ...


@frozen(eq=False)
class Generator:
    """Runs generations for the handlers."""

    scheduler: Scheduler
    bodies: Bodies
    keep_alive: float
    """Seconds of silence in a stream before a comment is sent; 0: never."""

    def check(self) -> None:
        """Refuse what can't be served now, before its body is read. Raises an Unavailable or InvalidRequest."""
        self.scheduler.check()
        if self.scheduler.info is not None and self.scheduler.info.embedding_size is not None:
            raise InvalidRequest("This server only makes embeddings: it was started with SLM_EMBEDDINGS=true.")

    def submit(self, request: Request, generations: Sequence[Generation]) -> Ticket:
        return self.scheduler.submit(generations, request.id, request.tenant)

    async def run(self, ticket: Ticket, request: Request, reply: Reply, answer: Answer, *, streamed: bool) -> None:
        """Send the answer. An error of the generation becomes a status while nothing has been sent, else an event."""
        silence = Silence(self.keep_alive if streamed and self.keep_alive else math.inf)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch, request, ticket, silence)
            if streamed:
                await stream(ticket, reply, answer, silence)
            else:
                await send_whole(ticket, reply, answer)
            nursery.cancel_scope.cancel()


@define(eq=False)
class Silence:
    """How long a stream has been silent, after which it shows the client, and proxies between, that it lives."""

    limit: float
    """Seconds."""
    too_long: bool = False
    """The stream was woken to send a sign of life."""
    _since: float = field(factory=trio.current_time)

    def end(self) -> None:
        """Something was sent."""
        self.too_long = False
        self._since = trio.current_time()

    @property
    def ends_by(self) -> float:
        """Clock time."""
        return self._since + self.limit


async def watch(request: Request, ticket: Ticket, silence: Silence) -> None:
    """End the generation when the client leaves, even while a `send` is blocked. Wake the stream after a silence."""
    while True:
        with trio.CancelScope(deadline=silence.ends_by):
            await request.wait_for_disconnect()
            ticket.cancel()
            return
        if trio.current_time() >= silence.ends_by:
            silence.end()
            silence.too_long = True
            ticket.nudge()


async def send_whole(ticket: Ticket, reply: Reply, answer: Answer) -> None:
    """Gather the text of all choices and send it whole."""
    running, scores = ticket.size, 0
    while running:
        for update in await ticket.receive():
            if update.error is not None:
                await reply.error(update.error)
                return
            answer.gather(update)
            scores += update.scored
            running -= update.reason is not None
    await reply.whole(200, await written(scores, answer.whole))


async def stream(ticket: Ticket, reply: Reply, answer: Answer, silence: Silence) -> None:
    """Send what is new, once per wake-up, all events that are ready in one write."""
    running = ticket.size
    error: SlimError | None = None
    while running and error is None:
        data = b""
        for update in await ticket.receive():
            data += await written(update.scored, answer.events, update)
            running -= update.reason is not None
            error = error or update.error
        if not running:
            data += answer.close()
        if not data and silence.too_long and error is None:
            data = sse.KEEP_ALIVE
        if data:
            await reply.events(data, last=not running)
            silence.end()
    if error is not None:
        await reply.error(error)


async def written(scores: int, write: Callable[..., bytes], *arguments: object) -> bytes:
    """What `write` returns, from a thread where it holds so many scores that the event loop would feel it."""
    if scores <= MANY_SCORES:
        return write(*arguments)
    return await trio.to_thread.run_sync(write, *arguments)
