"""`POST /v1/embeddings`: every input is a job of its own, and a part of them is under way at a time.

So a request may have more inputs than the server has places, and leaves places to others. It is admitted with its first
input. From then on it waits for places like anybody, within one deadline. Knows nothing of the queue behind the ticket.
"""

from collections import deque
from collections.abc import Sequence

import trio
from attrs import define, field, frozen

from ..errors import ContextLengthExceeded, DeadlineExceeded, EngineFailed, InvalidRequest, SlimError
from ..preparation import Model
from ..scheduler import Scheduler
from ..types import Generation
from ..wire.embeddings import EmbeddingAnswer, EmbeddingCall, parse_embeddings
from ..wire.requests import RequestLimits
from .generation import Bodies
from .http import Reply, Request

Texts = Sequence[tuple[int, ...]]

WAIT_FOR_PLACE = 0.05
"""Seconds between two looks at a full server."""

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
        began = trio.current_time()
        self.scheduler.check()
        if self.scheduler.info is not None and self.scheduler.info.embedding_size is None:
            raise InvalidRequest(NOT_HERE)
        call = await self.bodies.parse(request, lambda body: parse_embeddings(body, self.limits))
        texts = await self.scheduler.run_with_model(lambda model: token_ids(call, model))
        run = EmbeddingRun(self.scheduler, request, texts, EmbeddingAnswer(call), began, self.seconds)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch, request, run.scope)
            await run.run(self.under_way)
            if run.error is not None:
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
        tokens = model.tokens(given, call.path(place))
        if len(tokens) > model.info.context:
            raise ContextLengthExceeded(len(tokens), 0, model.info.context, call.path(place))
        texts.append(tokens)
    return texts


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
    began: float
    """Clock time."""
    seconds: float
    """The deadline over all inputs."""
    scope: trio.CancelScope = field(factory=trio.CancelScope)
    error: SlimError | None = None
    _waiting: deque[int] = field(init=False)
    _admitted: bool = False
    """The request has had a place: from then on it waits for more."""

    def __attrs_post_init__(self) -> None:
        self._waiting = deque(range(len(self.texts)))

    async def run(self, under_way: int) -> None:
        """Return when every vector is there, or none will be: then `error` says why, or `scope` was cancelled."""
        with self.scope:
            async with trio.open_nursery() as nursery:
                for _ in range(min(under_way, len(self.texts))):
                    nursery.start_soon(self._work)

    async def _work(self) -> None:
        try:
            while self._waiting:
                await self._take_next()
        except SlimError as error:
            self.error = self.error or error
            self.scope.cancel()

    async def _take_next(self) -> None:
        """Embed one more input. Once the request has had a place it waits for further ones."""
        place = self._waiting.popleft()
        while self._admitted and not self.scheduler.has_room:
            await trio.sleep(WAIT_FOR_PLACE)
            if trio.current_time() >= self.began + self.seconds:
                raise DeadlineExceeded(self.seconds)
        self._admitted = True
        await self._embed(place)

    async def _embed(self, place: int) -> None:
        """Raises SlimError when there will be no vector, Overloaded when there was no place."""
        wanted = Generation(self.texts[place], max_tokens=0)
        with self.scheduler.submit(
            (wanted,), self.request.id, self.request.tenant, self.began + self.seconds
        ) as ticket:
            while True:
                for update in await ticket.receive():
                    if update.error is not None:
                        raise update.error
                    if update.reason is not None:
                        if update.vector is None:
                            raise EngineFailed("the engine gave no vector")
                        self.answer.add(place, update.vector)
                        return
