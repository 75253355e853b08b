"""hypercorn's handler of one connection, with limits on what a peer may cost. Knows no listener and no app."""

import logging
import math
import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import Any, ClassVar

import trio
from attrs import frozen
from hypercorn.config import Config
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.protocol.h11 import H11Protocol
from hypercorn.trio.tcp_server import TCPServer

from .http1 import GuardedHttp1

log = logging.getLogger("slim.edge")

PIECE = 65536
"""Bytes that a peer must take within the write limit, so that a slow but living reader of a long answer is kept."""
SENDS_PER_TURN = 32
"""A send that the kernel takes at once does not yield; every so many sends of a connection, one does."""


@frozen
class EdgeLimits:
    """What one connection may cost."""

    max_connections: int = 1024
    """Open connections of this process. A further one is closed at once, unanswered."""
    write_timeout_s: float = 10.0
    """Seconds that a peer may take nothing while data waits for it, above 0. Then its connection is closed."""
    http2_cleartext: bool = False
    """Allow HTTP/2 without TLS: h2c upgrade and prior knowledge (RFC 9113 section 3)."""


class GuardedServer(TCPServer):
    """hypercorn's handler of one connection, with the limits and the guard."""

    limits: ClassVar[EdgeLimits] = EdgeLimits()
    live: ClassVar[set["GuardedServer"]] = set()

    def __init__(self, app: Any, config: Config, context: Any, state: Any, stream: Any) -> None:
        super().__init__(partial(self._run_app, app), config, context, state, stream)
        self._transport = getattr(stream, "transport_stream", stream)
        # Only a bare socket: past a TLS stream, the write would put plaintext on the wire.
        self._bare_socket = isinstance(stream, trio.SocketStream) and os.name == "posix"
        self.idle_task: IdleTask = IdleTask(self)  # type: ignore[assignment]
        self._reading_over = False
        self._sends = 0

    async def run(self) -> None:
        """Serve the connection to its end. Whatever it raises is logged by class only: the text may be the client's."""
        if len(self.live) >= self.limits.max_connections:
            return
        self.live.add(self)
        try:
            self._set_socket_options()
            await super().run()
        except* Exception as group:
            names = sorted({type(error).__name__ for error in leaves(group)})
            log.warning("connection closed after %s", ", ".join(names))
        finally:
            self.live.discard(self)

    async def _run_app(self, app: Any, scope: Any, receive: Any, send: Any, *threads: Any) -> None:
        """The app, but a websocket (one asked for in HTTP/2) is refused."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close"})  # hypercorn answers 403
            return
        protocol = self.protocol.protocol
        if isinstance(protocol, GuardedHttp1):
            receive, send = protocol.wrap(scope, receive, send)
        await app(scope, receive, send, *threads)

    def close(self) -> None:
        """Close the socket now. Whoever waits for it wakes up, and the app is told `http.disconnect`."""
        self._transport.socket.close()

    async def protocol_send(self, event: Event) -> None:
        """hypercorn's way out to the peer; bytes are written by our own rules."""
        if isinstance(event, RawData):
            if not await self._write(event.data):
                self.close()
                await self.protocol.handle(Closed())
            self._sends += 1
            if self._sends % SENDS_PER_TURN == 0:
                await trio.lowlevel.checkpoint()
        elif isinstance(event, Updated) and event.idle and self._reading_over:
            pass  # The peer has gone: no request to wait for until the keep-alive timeout.
        else:
            await super().protocol_send(event)

    async def _read_data(self) -> None:
        await super()._read_data()
        self._reading_over = True
        self.idle_task.end()

    async def _write(self, data: bytes) -> bool:
        """Write all of it, or return False: the peer is gone or did not read in time.

        Shielded, because half a chunk followed by another one would corrupt the answer; the time limit bounds it.
        """
        if self._may_write_directly():
            data = data[self._write_now(data) :]
            if not data:
                return True
        with trio.CancelScope(shield=True) as scope:
            async with self.send_lock:  # Taken before anyone else can run, so no other data comes between.
                return await self._write_in_time(data, scope)
        return False

    def _may_write_directly(self) -> bool:
        return self._bare_socket and not self.send_lock.locked() and isinstance(self.protocol.protocol, H11Protocol)

    def _write_now(self, data: bytes) -> int:
        """Give the kernel what it takes without waiting; lock, cancel scope and scheduler pass cost more than that."""
        try:
            return os.write(self._transport.socket.fileno(), data)
        except OSError:
            return 0  # Full, or broken: the waiting write finds out which.

    async def _write_in_time(self, data: bytes, scope: trio.CancelScope) -> bool:
        try:
            for start in range(0, len(data), PIECE):
                scope.deadline = trio.current_time() + self.limits.write_timeout_s
                await self.stream.send_all(data[start : start + PIECE])
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return False
        return True

    def _set_socket_options(self) -> None:
        """The kernel, too, gives up on a peer that takes nothing: also where the app waits and writes nothing more."""
        with suppress(OSError, AttributeError):  # Not TCP, or (the second option) not Linux.
            self._transport.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            milliseconds = max(1, int(self.limits.write_timeout_s * 1000))
            self._transport.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)


class IdleTask:
    """Closes a connection that waits too long for its next request.

    hypercorn starts and ends a task for every idle spell; here one task waits, and only its deadline moves.
    """

    def __init__(self, connection: GuardedServer) -> None:
        self._connection = connection
        self._scope = trio.CancelScope()
        self._idle = False
        self._started = False

    async def restart(self, task_group: Any, _: object) -> None:
        """The connection is idle from now on."""
        self._idle = True
        self._scope.deadline = trio.current_time() + self._connection.config.keep_alive_timeout
        if not self._started:
            self._started = True
            task_group.spawn(self._wait)

    async def stop(self) -> None:
        """The connection is busy; at a shutdown hypercorn closes it after its answer."""
        self._idle = False
        self._scope.deadline = math.inf

    def end(self) -> None:
        """Nobody will ask on this connection any more."""
        self._idle = False
        self._scope.cancel()

    async def _wait(self) -> None:
        with self._scope:
            await self._connection.context.terminated.wait()
        if self._idle:
            with trio.CancelScope(shield=True):
                await self._connection._initiate_server_close()


def leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    """The exceptions in a group of groups."""
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from leaves(error)
        else:
            yield error
