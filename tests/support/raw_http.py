"""Bytes to and from a server on loopback, and one connection without sockets. Knows nothing of what is served."""

import socket
import struct
from collections.abc import Awaitable, Callable
from typing import Any

import h11
import hypercorn.trio.run
import trio
from attrs import define, field
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config
from hypercorn.trio.worker_context import WorkerContext
from trio.testing import lockstep_stream_pair

from slim.web import edge

App = Callable[..., Awaitable[None]]


def get(path: str, *headers: str) -> bytes:
    """A GET request as bytes."""
    return "\r\n".join([f"GET {path} HTTP/1.1", "Host: x", *headers, "", ""]).encode()


async def start_server(nursery: trio.Nursery, app: App, **limits: Any) -> int:
    """Serve `app` behind the guard until the nursery is cancelled, and return the port."""
    edge.install(edge.EdgeLimits(**limits))
    listener = edge.open_listener("127.0.0.1", 0)
    port: int = listener.getsockname()[1]

    async def run(task_status: trio.TaskStatus[list[str]]) -> None:
        await edge.serve(app, listener, shutdown_trigger=trio.sleep_forever, task_status=task_status)

    await nursery.start(run)
    return port


async def connect(port: int, *, receive_buffer: int | None = None) -> trio.SocketStream:
    """Connect to the port; `receive_buffer` (bytes) makes a client that soon takes nothing more unless it reads."""
    sock = trio.socket.socket()
    if receive_buffer is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    await sock.connect(("127.0.0.1", port))
    return trio.SocketStream(sock)


def reset(stream: trio.SocketStream) -> None:
    """Leave without a goodbye: the peer gets a TCP reset."""
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    stream.socket.close()


async def read_to_end(stream: trio.abc.ReceiveStream) -> bytes:
    """Everything until the peer closes, with a reset taken as an end."""
    data = b""
    try:
        while piece := await stream.receive_some():
            data += piece
    except trio.BrokenResourceError:
        pass
    return data


async def read_body(stream: trio.abc.ReceiveStream) -> bytes:
    """The body of one response. h11 raises on anything that is not HTTP/1.1."""
    client = h11.Connection(h11.CLIENT)
    client.send(h11.Request(method="GET", target="/", headers=[("host", "x")]))
    client.send(h11.EndOfMessage())
    body = b""
    while not isinstance(event := client.next_event(), h11.EndOfMessage):
        if event is h11.NEED_DATA:
            client.receive_data(await stream.receive_some())
        elif isinstance(event, h11.Data):
            body += event.data
    return body


async def ask(port: int, request: bytes) -> bytes:
    """Send a request that closes its connection and return the whole answer; b"" when the server refuses."""
    async with await connect(port) as stream:
        try:
            await stream.send_all(request)
        except trio.BrokenResourceError:
            return b""
        return await read_to_end(stream)


@define
class PeerlessSocket:
    """What hypercorn wants to know of a socket, for a stream that has none."""

    stream: Any
    family: int = field(default=socket.AF_INET)

    def getsockname(self) -> tuple[str, int]:
        return ("127.0.0.1", 80)

    def getpeername(self) -> tuple[str, int]:
        return ("127.0.0.1", 1)

    def close(self) -> None:
        self.stream.send_stream.close()
        self.stream.receive_stream.close()


def serve_stream(nursery: trio.Nursery, app: App, stream: Any) -> None:
    """Serve `app` on one connection that is already open."""
    server = hypercorn.trio.run.TCPServer(ASGIWrapper(app), Config(), WorkerContext(None), {}, stream)
    nursery.start_soon(server.run)


def open_lockstep(nursery: trio.Nursery, app: App) -> Any:
    """A client stream to `app` without sockets: each write of the server waits until the client has read it."""
    client, server = lockstep_stream_pair()
    server.socket = PeerlessSocket(server)
    serve_stream(nursery, app, server)
    return client
