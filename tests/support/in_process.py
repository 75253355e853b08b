"""The real server without a socket: httpx over in-memory pipes into hypercorn's own connection handler.

With an autojump clock this gives real HTTP/1.1, streaming and disconnects in virtual time.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from socket import AF_INET
from typing import Any, TypeVar

import httpcore
import httpx
import trio
from attrs import define, evolve, field
from httpcore._exceptions import map_exceptions
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config
from hypercorn.trio.worker_context import WorkerContext
from trio.testing import memory_stream_pair

from slim.compose import build_app, scheduler_limits
from slim.config import Settings
from slim.engines.fake import FakeEngine
from slim.engines.replica import Command, Replica, Report
from slim.metrics import Metrics
from slim.preparation import Model, Prepared
from slim.scheduler import Scheduler
from slim.scheduler.preparing import Preparing
from slim.types import Generation
from slim.web.app import App
from slim.web.edge import EdgeLimits, GuardedServer, install

T = TypeVar("T")

install(EdgeLimits())
SETTINGS = Settings(
    max_batch=4, max_queue_size=4, request_timeout_s=60.0, stall_s=30.0, log_level="WARNING", allowed_hosts=("slim",)
)


@define(eq=False)
class InlineReplica(Replica):
    """A replica that is stepped by a trio task, so that virtual time can pass while it works."""

    news: trio.Event = field(factory=trio.Event)
    hang: bool = False
    """A step that never returns."""

    def post(self, command: Command) -> None:
        super().post(command)
        self.news.set()


async def drive_inline(replica: Replica) -> None:
    """What `Replica.run` does, in virtual time."""
    assert isinstance(replica, InlineReplica)
    replica.load()
    while not replica.stopping:
        replica.prepare()
        if replica.active and not replica.hang:
            stepped = replica.step()
            await trio.sleep(replica.engine.step_seconds)
            replica.report(stepped)
        else:
            replica.news = trio.Event()
            await replica.news.wait()


class InlinePreparing(Preparing):
    """Without a thread, because virtual time jumps while one works."""

    seconds = 0.0
    """What preparing a prompt takes."""

    async def prepare(self, model: Model, request: Generation) -> Prepared:
        await trio.sleep(self.seconds)
        return model.prepare(request)

    async def run(self, work: Callable[[], T]) -> T:
        await trio.sleep(self.seconds)
        return work()


@define(eq=False)
class World:
    """A scheduler on fake engines, and what a test needs to look at it."""

    scheduler: Scheduler
    metrics: Metrics
    app: App
    engines: list[FakeEngine]
    replicas: list[InlineReplica]
    preparing: InlinePreparing
    nursery: trio.Nursery

    def metric(self, name: str, **labels: str) -> float:
        """A sample of the exposition, 0 when it isn't there."""
        from prometheus_client.parser import text_string_to_metric_families

        for family in text_string_to_metric_families(self.metrics.exposition().decode()):
            for sample in family.samples:
                if sample.name == name and sample.labels == labels:
                    return sample.value
        return 0.0

    def connect(self) -> trio.abc.Stream:
        """A bare connection, for what an HTTP client would not send."""
        return MemoryBackend(self.app, self.nursery).connect()

    def client(self) -> httpx.AsyncClient:
        transport = httpx.AsyncHTTPTransport()
        transport._pool = httpcore.AsyncConnectionPool(network_backend=MemoryBackend(self.app, self.nursery))
        return httpx.AsyncClient(transport=transport, base_url="http://slim", timeout=None)


@asynccontextmanager
async def world(
    engines: Sequence[FakeEngine] | None = None, settings: Settings = SETTINGS, **changes: Any
) -> AsyncIterator[World]:
    """A running scheduler and app over these engines, in virtual time when the test has an autojump clock."""
    settings = evolve(settings, **changes)
    if engines is None:
        engines = [FakeEngine(slots=settings.max_batch, step_seconds=lambda *_: 1.0)]
    replicas: list[InlineReplica] = []

    def make(deliver: Callable[[Report], None], clock: Callable[[], float]) -> list[InlineReplica]:
        replicas.extend(InlineReplica(index, engine, deliver, clock) for index, engine in enumerate(engines))
        return replicas

    metrics = Metrics()
    preparing = InlinePreparing()
    limits = scheduler_limits(evolve(settings, replicas=len(engines)))
    scheduler = Scheduler(make, limits, metrics, drive_inline, preparing)
    app = build_app(settings, "fake", scheduler, metrics)
    async with trio.open_nursery() as nursery:
        await nursery.start(scheduler.run)
        await trio.testing.wait_all_tasks_blocked()
        yield World(scheduler, metrics, app, list(engines), replicas, preparing, nursery)
        scheduler.stop()
        nursery.cancel_scope.cancel()


class MemoryBackend(httpcore.AsyncNetworkBackend):
    """Connects httpcore to the app through a pipe and hypercorn's handler of one connection."""

    def __init__(self, app: App, nursery: trio.Nursery) -> None:
        self._app, self._nursery, self._config = ASGIWrapper(app), nursery, Config()

    async def connect_tcp(self, host: str, port: int, **_: Any) -> httpcore.AsyncNetworkStream:
        return MemoryStream(self.connect())

    def connect(self) -> trio.abc.Stream:
        client, server = memory_stream_pair()
        server.socket = NoSocket()
        handler = GuardedServer(self._app, self._config, WorkerContext(None), {}, server)
        self._nursery.start_soon(handler.run)
        return client

    async def sleep(self, seconds: float) -> None:
        await trio.sleep(seconds)


class NoSocket:
    """What the handler asks of a socket."""

    family = AF_INET

    def getsockname(self) -> tuple[str, int]:
        return "127.0.0.1", 80

    def getpeername(self) -> tuple[str, int]:
        return "127.0.0.1", 1

    def close(self) -> None:
        pass


class MemoryStream(httpcore.AsyncNetworkStream):
    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = stream

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        with map_exceptions({trio.BrokenResourceError: httpcore.ReadError}):
            return bytes(await self._stream.receive_some(max_bytes))

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        with map_exceptions({trio.BrokenResourceError: httpcore.WriteError}):
            await self._stream.send_all(buffer)

    async def aclose(self) -> None:
        await self._stream.aclose()

    def get_extra_info(self, info: str) -> None:
        return None
