"""`POST /v1/embeddings`: every input is a job of its own, and a part of them is under way at a time.

So a request may have more inputs than the server has places, and leaves places to others. It is admitted with its first
input. From then on it waits for places like anybody, within one deadline. Knows nothing of the queue behind the ticket.
"""

from collections import deque
from collections.abc import Sequence

import trio
from attrs import define, field, frozen

from ..errors import ContextLengthExceeded, DeadlineExceeded, EngineFailed, InvalidRequest, Overloaded, SlimError
from ..preparation import Model
from ..scheduler import Scheduler
from ..types import Generation, Segment
from ..wire.embeddings import EmbeddingAnswer, EmbeddingCall, parse_embeddings
from ..wire.requests import RequestLimits
from .generation import Bodies
from .http import Reply, Request

Texts = Sequence[tuple[int, ...]]

NOT_HERE = "This server generates text and makes no embeddings. Start one that does with SLM_EMBEDDINGS=true."


@frozen(eq=False)
class Embeddings:
    """The handler and what it needs."""

    scheduler: Scheduler
    bodies: Bodies
    model_name: str
    limits: RequestLimits
    under_way: int
    """Inputs of one request that hold places at a time: enough to keep every slot busy."""
    seconds: float
    """The deadline over a whole request."""

    async def create(self, request: Request, reply: Reply) -> None:
        """Answer one request. Raises SlimError while nothing has been sent."""
        deadline = trio.current_time() + self.seconds
        self.scheduler.check()
        if self.scheduler.info is not None and self.scheduler.info.embedding_size is None:
            raise InvalidRequest(NOT_HERE)
        call = await self.bodies.parse(request, lambda body: parse_embeddings(body, self.limits))
        texts = await self.scheduler.run_with_model(lambda model: token_ids(call, model))
        run = EmbeddingRun(self.scheduler, request, texts, EmbeddingAnswer(call))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch, request, run.scope)
            with trio.move_on_at(deadline) as in_time:
                await run.run(self.under_way)
            if in_time.cancelled_caught:
                late = f"The request was not finished within its deadline of {self.seconds:g} s."
                await reply.error(DeadlineExceeded(late))
            elif run.error is not None:
                await reply.error(run.error)
            elif not run.scope.cancelled_caught:
                await reply.whole(200, run.answer.body(self.model_name, sum(map(len, texts))))
            nursery.cancel_scope.cancel()


def token_ids(call: EmbeddingCall, model: Model) -> Texts:
    """The inputs as token ids. Raises InvalidRequest for what only the model can tell, before anything is computed."""
    size = model.info.embedding_size
    if call.dimensions not in (None, size):
        raise InvalidRequest(f"dimensions: must be {size}, which is this model's own, or omitted", "dimensions")
    texts = []
    for place, given in enumerate(call.inputs):
        tokens = _encoded(model, given, call.path(place))
        if len(tokens) > model.info.context:
            raise ContextLengthExceeded(len(tokens), 0, model.info.context, call.path(place))
        texts.append(tokens)
    return texts


def _encoded(model: Model, given: tuple[Segment, ...] | tuple[int, ...], path: str) -> tuple[int, ...]:
    ids: list[int] = []
    known = len(model.tokenizer.pieces)
    for part in given:
        if isinstance(part, Segment):
            return model.tokenizer.encode([part])
        if part >= known:
            text = f"{path}: token id {part} is out of vocabulary: this model has ids from 0 to {known - 1}"
            raise InvalidRequest(text, path)
        ids.append(part)
    return tuple(ids)


async def watch(request: Request, scope: trio.CancelScope) -> None:
    """End the work when the client leaves."""
    await request.wait_for_disconnect()
    scope.cancel()


@define(eq=False)
class EmbeddingRun:
    """The inputs of one request on their way."""

    scheduler: Scheduler
    request: Request
    texts: Texts
    answer: EmbeddingAnswer
    scope: trio.CancelScope = field(factory=trio.CancelScope)
    error: SlimError | None = None
    _waiting: deque[int] = field(init=False)
    _workers: int = 0
    _admitted: bool = False

    def __attrs_post_init__(self) -> None:
        self._waiting = deque(range(len(self.texts)))

    async def run(self, under_way: int) -> None:
        """Return when every vector is there, or none will be: then `error` says why, or `scope` was cancelled."""
        with self.scope:
            async with trio.open_nursery() as nursery:
                for _ in range(min(under_way, len(self.texts))):
                    self._workers += 1
                    nursery.start_soon(self._work)

    async def _work(self) -> None:
        try:
            while self._waiting and await self._take_next():
                pass
        except SlimError as error:
            self.error = self.error or error
            self.scope.cancel()
        self._workers -= 1

    async def _take_next(self) -> bool:
        """Embed one more input. False when the server is full and this worker leaves; the last one waits instead."""
        place = self._waiting.popleft()
        try:
            await self._embed(place)
        except Overloaded as error:
            if not self._admitted:
                raise
            self._waiting.appendleft(place)
            if self._workers > 1:
                return False
            await trio.sleep(error.retry_after or 1.0)
        return True

    async def _embed(self, place: int) -> None:
        """Raises SlimError when there will be no vector, Overloaded when there was no place."""
        wanted = Generation(prompt=self.texts[place], max_tokens=0)
        with self.scheduler.submit((wanted,), self.request.id, self.request.tenant) as ticket:
            self._admitted = True
            while True:
                for update in await ticket.receive():
                    if update.error is not None:
                        raise update.error
                    if update.reason is not None:
                        if update.vector is None:
                            raise EngineFailed("the engine gave no vector")
                        self.answer.add(place, update.vector)
                        return
