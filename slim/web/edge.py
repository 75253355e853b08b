"""The guard round each connection: the only module that knows hypercorn and sockets.

Without it one odd connection ends a hypercorn trio worker, and one client that stops reading holds its shutdown. It
must not know what a request means: nothing of scheduler, wire or metrics.
"""

import logging
import math
import os
import socket
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any, ClassVar, cast

import h11
import hypercorn.protocol
import hypercorn.trio.run
import trio
from attrs import frozen
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config, Sockets
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.protocol.h11 import H11Protocol
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.utils import LifespanFailureError, LifespanTimeoutError

log = logging.getLogger("slim.edge")

AsgiApp = Callable[..., Awaitable[None]]
Listener = socket.socket

BACKLOG = 1024
"""Connections that may wait to be accepted."""
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
            names = sorted({type(error).__name__ for error in _leaves(group)})
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

    async def hangs_up(self) -> bool:
        """Wait until something comes, and say whether it is the peer's end. It can't be seen behind unread data."""
        if not self._bare_socket:
            return False
        try:
            return not await self._transport.socket.recv(1, socket.MSG_PEEK)
        except OSError:
            return True

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


class GuardedHttp1(H11Protocol):
    """hypercorn's HTTP/1.1 that switches to no other protocol and writes less often.

    A response's head is written with its first body bytes, and the last body bytes with the end.
    """

    _held = b""
    """Bytes that wait for those that follow."""
    _last = False
    """The app sends its last body."""

    def wrap(self, scope: Any, receive: Any, send: Any) -> tuple[Any, Any]:
        """The app's `receive` and `send`, which tell us of its first read and of its last body."""

        async def receive_expected() -> Any:
            await self._send_continue()
            return await receive()

        async def send_noting_last(message: Any) -> None:
            self._last = not message.get("more_body", True)
            await send(message)

        expects = any(name == b"expect" for name, _ in scope["headers"])
        return receive_expected if expects else receive, send_noting_last

    async def initiate(self) -> None:
        connection: GuardedServer = self.send.__self__  # type: ignore[attr-defined]  # a method of the connection
        self.can_read = PausedRead(connection)  # type: ignore[assignment]

    async def _check_protocol(self, event: h11.Request) -> None:
        if GuardedServer.limits.http2_cleartext:
            await super()._check_protocol(event)

    async def _create_stream(self, request: h11.Request) -> None:
        if not request.http_version.startswith(b"1."):
            await self._send_error_response(505)
            await self.send(Closed())
            return
        # RFC 9110 section 7.8: a server may ignore Upgrade. h11 must forget it as well: while it waits for our
        # decision nobody reads the socket, and a client that leaves is not noticed.
        cast(h11.Connection, self.connection)._cstate.pending_switch_proposals.clear()
        headers = [(name, value) for name, value in request.headers if name != b"upgrade"]
        if len(headers) < len(request.headers):
            request = h11.Request(
                method=request.method, target=request.target, headers=headers, http_version=request.http_version
            )
        await super()._create_stream(request)

    async def _send_h11_event(self, event: Any) -> None:
        """Send an h11 event. ASGI lets the head wait for the first body event, which saves a write and a packet.

        hypercorn's 100 Continue is dropped: it comes before the app could refuse the body by its length.
        """
        if isinstance(event, h11.InformationalResponse) and event.status_code == 100:
            return
        try:
            data = self.connection.send(event)
        except h11.LocalProtocolError:
            if self.connection.their_state is not h11.ERROR:
                raise
            return
        data, self._held = self._held + data, b""
        if isinstance(event, h11.Response) or (self._last and isinstance(event, h11.Data)):
            self._held = data
        elif data:
            await self.send(RawData(data=data))

    async def _send_continue(self) -> None:
        """The app wants the body: let a client that waits for leave send it (RFC 9110, section 10.1.1)."""
        if self.connection.they_are_waiting_for_100_continue:
            event = h11.InformationalResponse(status_code=100, headers=[])
            await self.send(RawData(data=self.connection.send(event)))


class PausedRead:
    """What h11 waits on when a client has sent more than its request, before the answer is complete.

    hypercorn reads nothing meanwhile and would not notice that the client leaves. Here somebody watches for that.
    """

    def __init__(self, connection: GuardedServer) -> None:
        self._connection = connection
        self._event = trio.Event()

    async def clear(self) -> None:
        self._event = trio.Event()

    async def set(self) -> None:
        self._event.set()

    async def wait(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch)
            await self._event.wait()
            nursery.cancel_scope.cancel()

    async def _watch(self) -> None:
        if await self._connection.hangs_up():
            await self._connection.protocol.handle(Closed())


def install(limits: EdgeLimits) -> None:
    """Guard every connection that hypercorn's trio worker accepts in this process from now on.

    Call it where the app module is imported: then `hypercorn -k trio module:app` is guarded like `serve`. A later call
    only sets new limits.
    """
    GuardedServer.limits = limits
    hypercorn.trio.run.TCPServer = GuardedServer  # type: ignore[attr-defined]
    hypercorn.protocol.H11Protocol = GuardedHttp1  # type: ignore[attr-defined]


def open_listener(host: str, port: int) -> Listener:
    """Bind and listen, so that a taken port or a bad host shows before anything is loaded.

    `port` 0 takes a free one. A name with an IPv4 address gets that one. Raises OSError with one line of text.
    """
    if not 0 <= port <= 65535:
        raise OSError(f"can't listen on port {port}: it must be between 0 and 65535")
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except ValueError as error:  # A name that can't be one.
        raise OSError(f"can't listen on {host}: {error}") from error
    family = min((entry[0] for entry in found), key=lambda family: family != socket.AF_INET)
    return socket.create_server((host, port), family=family, backlog=BACKLOG)


async def serve(
    app: AsgiApp,
    listener: Listener,
    *,
    shutdown_trigger: Callable[[], Awaitable[None]],
    task_status: trio.TaskStatus[list[str]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve the ASGI `app` on `listener` until `shutdown_trigger` returns; then stop within about 0.3 s.

    Requests that still run then are cancelled: drain them before. A write to a peer that does not read outlasts even
    that, up to `write_timeout_s`, unless `close_connections` is called. Reports the addresses as URLs. Raises
    RuntimeError when the app says that its startup or shutdown failed. The listener is closed at the end.
    """
    with listener:
        try:
            await hypercorn.trio.run.worker_serve(
                ASGIWrapper(app),
                _config(),
                sockets=Sockets([], [listener], []),
                shutdown_trigger=shutdown_trigger,
                task_status=task_status,
            )
        except BaseExceptionGroup as group:
            failure = group.subgroup((LifespanFailureError, LifespanTimeoutError))
            if failure is None:
                raise
            raise RuntimeError(str(next(_leaves(failure)))) from None


def close_connections() -> None:
    """Close every live connection at once, to be called in trio: blocked sends end and apps get `http.disconnect`."""
    for connection in list(GuardedServer.live):
        connection.close()


def _config() -> Config:
    config = Config()
    config.graceful_timeout = 0.3
    config.keep_alive_timeout = 15  # Idle connections and unfinished headers alike.
    config.keep_alive_max_requests = sys.maxsize
    config.max_app_queue_size = 64  # Body chunks that the app may leave unread without blocking its own last send.
    config.include_server_header = False
    config.accesslog = None
    config.errorlog = logging.getLogger("slim.edge.hypercorn")
    config.errorlog.setLevel(logging.WARNING)  # Without "Running on ...".
    return config


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error
