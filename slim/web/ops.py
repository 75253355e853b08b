"""What an operator and a load balancer ask: liveness, readiness, metrics, the served model. Knows no job.

Liveness answers as long as the event loop does. Readiness says whether a request would be admitted. Busy is not
unready: flipping readiness under load moves the load to the next server and cascades.
"""

import time

from attrs import field, frozen

from .. import __version__
from ..metrics import CONTENT_TYPE, Metrics
from ..scheduler import Scheduler
from ..wire.errors import HttpError
from ..wire.models import model_list, model_object
from ..wire.openapi import openapi_document
from ..wire.readiness import status_body
from .http import Reply, Request

MODEL = "/v1/models/"
"""The one path that goes on: with the name of a model."""


@frozen(eq=False)
class Operations:
    """The handlers and what they need."""

    scheduler: Scheduler
    metrics: Metrics
    model_name: str
    _created: int = field(factory=lambda: int(time.time()))

    @property
    def _context(self) -> int | None:
        info = self.scheduler.info
        return None if info is None else info.context

    async def health(self, request: Request, reply: Reply) -> None:
        await reply.whole(200, status_body("ok", None))

    async def ready(self, request: Request, reply: Reply) -> None:
        readiness = self.scheduler.readiness()
        status = 200 if readiness.status == "ready" else 503
        await reply.whole(status, status_body(readiness.status, readiness.error))

    async def prometheus(self, request: Request, reply: Reply) -> None:
        await reply.whole(200, self.metrics.exposition(), CONTENT_TYPE.encode("ascii"))

    async def openapi(self, request: Request, reply: Reply) -> None:
        await reply.whole(200, openapi_document(__version__))

    async def models(self, request: Request, reply: Reply) -> None:
        await reply.whole(200, model_list(self.model_name, self._created, self._context))

    async def model(self, request: Request, reply: Reply) -> None:
        name = request.path.removeprefix(MODEL)
        if name != self.model_name:
            raise HttpError(404, f"The model does not exist here. This server serves {self.model_name!r}.")
        await reply.whole(200, model_object(self.model_name, self._created, self._context))
