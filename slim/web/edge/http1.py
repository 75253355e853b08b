"""hypercorn's HTTP/1.1 as the guard wants it. Knows no limits but those of its connection, and no app."""

from typing import Any, cast

import h11
import trio
from hypercorn.events import Closed, RawData
from hypercorn.protocol.h11 import H11Protocol

READ_AHEAD = 65536
"""Bytes of further requests that are read while an answer runs; a client that leaves behind more is noticed later."""


class GuardedHttp1(H11Protocol):
    """hypercorn's HTTP/1.1 that switches to no other protocol and writes less often.

    A response's head is written with its first body bytes, and the last body bytes with the end.
    """

    _held = b""
    """Bytes that wait for those that follow."""
    _last = False
    """The app sends its last body."""

    @property
    def server_side(self) -> Any:
        """The GuardedServer of this connection: `send` is a method of it."""
        return self.send.__self__  # type: ignore[attr-defined]

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
        self.can_read = PausedRead(self)  # type: ignore[assignment]

    async def _check_protocol(self, event: h11.Request) -> None:
        if self.server_side.limits.http2_cleartext:
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

    hypercorn reads nothing meanwhile and would not notice that the client leaves. Here somebody reads on.
    """

    def __init__(self, protocol: GuardedHttp1) -> None:
        self._protocol = protocol
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
        """Read on, so that the end can be seen behind further requests; h11 keeps them until their turn."""
        held = 0
        while held < READ_AHEAD:
            try:
                data = await self._protocol.server_side.stream.receive_some(READ_AHEAD)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                data = b""
            if not data:
                await self._protocol.handle(Closed())
                return
            self._protocol.connection.receive_data(bytes(data))
            held += len(data)
