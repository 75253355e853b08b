"""The guard round each connection: the only package that knows hypercorn and sockets.

Without it one odd connection ends a hypercorn trio worker, and one client that stops reading holds its shutdown. It
must not know what a request means: nothing of scheduler, wire or metrics. `connection` is one connection, `http1` its
protocol; here they are put in place, and servers are started.
"""

import logging
import socket
import sys
from collections.abc import Awaitable, Callable

import hypercorn.protocol
import hypercorn.trio.run
import trio
from attrs import evolve
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config, Sockets
from hypercorn.utils import LifespanFailureError, LifespanTimeoutError

from .connection import EdgeLimits, GuardedServer, leaves
from .http1 import GuardedHttp1

__all__ = ["EdgeLimits", "GuardedServer", "Listener", "close_connections", "install", "open_listener", "serve"]

log = logging.getLogger("slim.edge")

AsgiApp = Callable[..., Awaitable[None]]
Listener = socket.socket

BACKLOG = 1024
"""Connections that may wait to be accepted."""
SPARE_FILES = 64
"""Files that the process needs apart from its connections."""


def install(limits: EdgeLimits) -> None:
    """Guard every connection that hypercorn's trio worker accepts in this process from now on.

    Call it where the app module is imported: then `hypercorn -k trio module:app` is guarded like `serve`. A later call
    only sets new limits.
    """
    GuardedServer.limits = evolve(limits, max_connections=_room(limits.max_connections))
    hypercorn.trio.run.TCPServer = GuardedServer  # type: ignore[attr-defined]
    hypercorn.protocol.H11Protocol = GuardedHttp1  # type: ignore[attr-defined]


def _room(connections: int) -> int:
    """How many connections the process's limit of open files allows; the soft limit is raised as far as that helps.

    Beyond the limit accepting fails over and over, and nobody is served.
    """
    try:
        import resource
    except ImportError:  # Windows
        return connections
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + SPARE_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        if soft < wanted:
            log.warning("the limit of open files (ulimit -n) allows only %d connections", soft - SPARE_FILES)
            return max(1, soft - SPARE_FILES)
    return connections


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
            raise RuntimeError(str(next(leaves(failure)))) from None


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
