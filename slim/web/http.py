"""One HTTP exchange over ASGI: a body read within limits, one reply, and the client noticed when it leaves.

Under hypercorn `send` never tells that the client is gone, only `receive` does, and an unread body can block the last
`send`. So somebody receives from the end of the body until the last `send` has returned. Knows no routes and no jobs.
"""

import re
import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from enum import Enum
from typing import Any

import trio
from attrs import define, field

from ..errors import RequestCancelled
from ..wire.errors import Headers, HttpError, error_event, error_reply

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
CLOSE: Headers = ((b"connection", b"close"),)
JSON_TYPE = b"application/json"

_ABSOLUTE = re.compile("https?://", re.IGNORECASE)
_SAFE_ID = re.compile(rb"[A-Za-z0-9._-]{1,128}")
"""What may come back in a header and go to the log."""


@define(eq=False)
class Request:
    """The client's side of the exchange."""

    scope: Scope
    receive: Receive
    id: str = field(init=False)
    """The client's X-Request-ID where it is safe, else a new one."""
    tenant: str = field(init=False, default="")
    """Whose API key it carries; empty on a server without keys."""
    headers: dict[bytes, bytes] = field(init=False)
    """Lower-case names; of repeated ones the last."""
    unread: bool = field(init=False)
    """The body, or the rest of it, has not been read."""
    incoming: bool = field(init=False)
    """It comes in by itself: the client does not wait for leave to send it (RFC 9110, 10.1.1)."""

    def __attrs_post_init__(self) -> None:
        self.headers = dict(self.scope["headers"])
        sent = self.headers.get(b"x-request-id", b"")
        self.id = sent.decode("ascii") if _SAFE_ID.fullmatch(sent) else secrets.token_hex(8)
        self.unread = b"transfer-encoding" in self.headers or self.headers.get(b"content-length", b"0") != b"0"
        self.incoming = self.unread and b"expect" not in self.headers

    @property
    def method(self) -> str:
        return str(self.scope["method"])

    @property
    def path(self) -> str:
        path = str(self.scope["path"])
        # A proxy's form of the target: its authority is not looked at (RFC 9112, 3.2.2, has it; Host decides).
        return "/" + path.partition("://")[2].partition("/")[2] if _ABSOLUTE.match(path) else path

    def check_framing(self) -> None:
        """Raise HttpError for a body that can't be read for sure.

        400 when both lengths are given: a proxy before us may have read another one (RFC 9112, 6.1). 415 for a coding
        such as gzip (RFC 9110, 15.5.16).
        """
        if b"transfer-encoding" in self.headers and b"content-length" in self.headers:
            raise HttpError(400, "Content-Length and Transfer-Encoding must not be sent together.", CLOSE)
        if self.headers.get(b"content-encoding", b"identity").strip().lower() not in (b"identity", b""):
            raise HttpError(415, "The body must be sent as it is, without a Content-Encoding.", CLOSE)

    async def body(self, limit: int, scope: trio.CancelScope) -> bytes:
        """The whole body, at most `limit` bytes, read until `scope` ends.

        Raises HttpError 413 or 408, and RequestCancelled when the client left before its end.
        """
        length = self.headers.get(b"content-length", b"0")
        if int(length) > limit:
            raise HttpError(413, f"The request body may have at most {limit} bytes.", CLOSE)
        parts: list[bytes] = []
        size = 0
        with scope:
            while self.unread or not parts:
                part = await self._part()
                parts.append(part)
                size += len(part)
                if size > limit:
                    raise HttpError(413, f"The request body may have at most {limit} bytes.", CLOSE)
        if scope.cancelled_caught:
            raise HttpError(408, "The request body did not arrive in time.", CLOSE)
        return b"".join(parts)

    async def _part(self) -> bytes:
        message = await self.receive()
        if message["type"] == "http.disconnect":
            self.unread = self.incoming = False
            raise RequestCancelled("The client left before its request was complete.")
        self.unread = self.incoming = bool(message.get("more_body", False))
        return bytes(message.get("body", b""))

    async def wait_for_disconnect(self) -> None:
        """Return when the client has left. What else comes in is thrown away."""
        while (await self.receive())["type"] != "http.disconnect":
            pass


class ReplyState(Enum):
    """What has been sent."""

    NOTHING = "nothing"
    HEAD = "head"
    ALL = "all"


@define(eq=False)
class Reply:
    """Our side of the exchange. Whether an error can still be a status is known here and nowhere else."""

    _send: Send
    _request: Request
    _common: Headers = ()
    """Headers of every answer, whatever it is."""
    status: int = 499
    """Of the head that was sent; 499 while nothing is: that is what the log says of a client that left."""
    state: ReplyState = ReplyState.NOTHING

    async def whole(self, status: int, body: bytes, content_type: bytes = JSON_TYPE, headers: Headers = ()) -> None:
        """Send a complete reply. Of a body that is still coming in, the rest is read and dropped meanwhile."""
        headers = ((b"content-type", content_type), (b"content-length", b"%d" % len(body)), *headers)
        if not self._request.incoming:
            await self._whole(status, headers, body)
            return
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._request.wait_for_disconnect)
            await self._whole(status, headers, body)
            nursery.cancel_scope.cancel()

    async def empty(self, headers: Headers) -> None:
        """Send 204, which has no body, no type and no length (RFC 9110, 8.6)."""
        await self._head(204, headers)
        await self._body(b"", last=True)

    async def _whole(self, status: int, headers: Headers, body: bytes) -> None:
        await self._head(status, headers)
        await self._body(body, last=True)

    async def events(self, data: bytes, *, last: bool) -> None:
        """Send a part of an event stream; the head goes out with the first."""
        if self.state is ReplyState.NOTHING:
            types = ((b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache"))
            await self._head(200, (*types, (b"x-accel-buffering", b"no")))
        await self._body(data, last=last)

    async def error(self, error: BaseException) -> None:
        """Tell the client of an error in the form that is still possible. Nobody hears of a RequestCancelled."""
        if isinstance(error, RequestCancelled) or self.state is ReplyState.ALL:
            return
        if self.state is ReplyState.HEAD:
            await self._body(error_event(error), last=True)
        else:
            reply = error_reply(error)
            await self.whole(reply.status, reply.body, headers=reply.headers)

    async def _head(self, status: int, headers: Headers) -> None:
        if self.state is not ReplyState.NOTHING:
            raise RuntimeError("the head was sent already")
        self.state, self.status = ReplyState.HEAD, status
        request_id = (b"x-request-id", self._request.id.encode("ascii"))
        headers = (*headers, *self._common, request_id)
        await self._send({"type": "http.response.start", "status": status, "headers": list(headers)})

    async def _body(self, data: bytes, *, last: bool) -> None:
        if self.state is not ReplyState.HEAD:
            raise RuntimeError("a body is sent between its head and its end")
        if last:
            self.state = ReplyState.ALL
        await self._send({"type": "http.response.body", "body": data, "more_body": not last})
