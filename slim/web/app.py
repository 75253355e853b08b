"""The ASGI callable: one error boundary, one access line per request, and the lifespan of the scheduler.

Works the same under `slim-serve serve` and under hypercorn's own launcher. Knows no sockets and no JSON shapes.
"""

import logging
import time

import trio
from attrs import frozen

from ..errors import SlimError
from ..scheduler import Scheduler
from .access import Access
from .cors import Cors
from .generation import Bodies
from .http import Receive, Reply, Request, Scope, Send
from .routes import Routes

log = logging.getLogger("slim.access")


@frozen(eq=False)
class App:
    """The server as hypercorn sees it."""

    scheduler: Scheduler
    bodies: Bodies
    routes: Routes
    access: Access
    cors: Cors

    async def drain(self, seconds: float) -> None:
        """Refuse new work and end what waits, at once; give what runs so many seconds."""
        self.scheduler.refuse()
        self.bodies.stop_reading()
        await self.scheduler.drain(seconds)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "http":
            await self._http(Request(scope, receive), send)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        """Hold the scheduler's nursery open between startup and shutdown."""
        await receive()
        try:
            async with trio.open_nursery() as nursery:
                await nursery.start(self.scheduler.run)
                await send({"type": "lifespan.startup.complete"})
                await receive()
                self.scheduler.stop()
        except Exception:
            # An exception that left here would be swallowed, and the server would go on without a scheduler.
            log.exception("the scheduler failed")
            await send({"type": "lifespan.startup.failed", "message": "the scheduler failed; see the log"})
            return
        await send({"type": "lifespan.shutdown.complete"})

    async def _http(self, request: Request, send: Send) -> None:
        reply = Reply(send, request, self.cors.headers(request))
        began = time.perf_counter()
        try:
            await self._answer(request, reply)
        finally:
            fields = {
                "request_id": request.id,
                "method": request.method,
                "path": request.path[:200],
                "status": reply.status,
                "duration_ms": round((time.perf_counter() - began) * 1000, 1),
            }
            log.info("request ended", extra={"fields": fields})

    async def _answer(self, request: Request, reply: Reply) -> None:
        try:
            request.check_framing()
            preflight = self.cors.preflight(request)
            if preflight is None:
                self.access.admit(request)
                await self.routes.handler(request)(request, reply)
            else:
                await reply.empty(preflight)
        except SlimError as error:
            await reply.error(error)
        except Exception as error:
            log.exception("a handler failed", extra={"fields": {"request_id": request.id}})
            await reply.error(error)
