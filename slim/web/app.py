"""The ASGI callable: routes, one error boundary, one access line per request, and the lifespan of the scheduler.

Works the same under `slim-serve serve` and under hypercorn's own launcher. Knows no sockets and no JSON shapes.
"""

import logging
import time
from collections.abc import Awaitable, Callable

import trio
from attrs import field, frozen

from ..errors import SlimError
from ..scheduler import Scheduler
from ..wire.errors import HttpError
from .access import Access
from .completions import Completions
from .cors import Cors
from .http import Receive, Reply, Request, Scope, Send
from .ops import Operations

log = logging.getLogger("slim.access")

Handler = Callable[[Request, Reply], Awaitable[None]]


@frozen(eq=False)
class App:
    """The server as hypercorn sees it."""

    scheduler: Scheduler
    completions: Completions
    operations: Operations
    access: Access
    cors: Cors
    _routes: dict[str, dict[str, Handler]] = field(init=False)

    @_routes.default
    def _table(self) -> dict[str, dict[str, Handler]]:
        ops = self.operations
        routes: dict[str, dict[str, Handler]] = {
            "/v1/completions": {"POST": self.completions.create},
            "/v1/models": {"GET": ops.models},
            "/v1/models/": {"GET": ops.model},
            "/healthz": {"GET": ops.health},
            "/readyz": {"GET": ops.ready},
            "/metrics": {"GET": ops.prometheus},
        }
        for methods in routes.values():
            if "GET" in methods:
                methods["HEAD"] = methods["GET"]  # hypercorn leaves the body out
        return routes

    async def drain(self, seconds: float) -> None:
        """Refuse new work and end what waits, at once; give what runs so many seconds."""
        self.scheduler.refuse()
        self.completions.stop_reading()
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
            log.info("%s %s %d", request.method, fields["path"], reply.status, extra={"fields": fields})

    async def _answer(self, request: Request, reply: Reply) -> None:
        try:
            request.check_framing()
            preflight = self.cors.preflight(request)
            if preflight is None:
                self.access.admit(request)
                await self._handler(request)(request, reply)
            else:
                await reply.empty(preflight)
        except SlimError as error:
            await reply.error(error)
        except Exception as error:
            log.exception("a handler failed", extra={"fields": {"request_id": request.id}})
            await reply.error(error)

    def _handler(self, request: Request) -> Handler:
        """Raises HttpError 404 or 405."""
        path = "/v1/models/" if request.path.startswith("/v1/models/") else request.path
        methods = self._routes.get(path)
        if methods is None:
            raise HttpError(404, "There is nothing at this path. See /v1/models and /v1/completions.")
        handler = methods.get(request.method)
        if handler is None:
            allow = ", ".join(sorted(methods))
            raise HttpError(405, f"This path takes {allow}.", ((b"allow", allow.encode("ascii")),))
        return handler
