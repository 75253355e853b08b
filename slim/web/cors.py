"""Which web pages may read the answers (the Fetch standard, CORS protocol). Knows no routes and no keys."""

import re

from attrs import frozen

from ..wire.errors import Headers
from .http import Request

_ANY = b"*"
_VARY: Headers = ((b"vary", b"origin"),)
_EXPOSED = (b"access-control-expose-headers", b"x-request-id, retry-after, retry-after-ms, x-should-retry")
_PREFLIGHT: Headers = (
    (b"access-control-allow-methods", b"GET, HEAD, POST"),
    (b"access-control-max-age", b"600"),
)
_SAFE_HEADER_NAMES = re.compile(rb"[A-Za-z0-9!#$%&'*+.^_`|~, \t-]{1,4096}")


@frozen(eq=False)
class Cors:
    """The headers for the pages of these origins, `*` for any; without origins there are none.

    No answer allows credentials: keys travel in headers that a page sets itself, and cookies mean nothing here.
    """

    origins: frozenset[bytes]

    def headers(self, request: Request) -> Headers:
        """What every answer to this request carries, errors and streams too."""
        if not self.origins:
            return ()
        allowed = self._allowed(request)
        return ((b"access-control-allow-origin", allowed), _EXPOSED, *_VARY) if allowed else _VARY

    def preflight(self, request: Request) -> Headers | None:
        """The further headers of the answer when a browser only asks for leave; None for every other request.

        It carries no key: browsers never send one along.
        """
        asks = request.method == "OPTIONS" and b"access-control-request-method" in request.headers
        if not self.origins or not asks or b"origin" not in request.headers:
            return None
        if not self._allowed(request):
            return ()
        names = request.headers.get(b"access-control-request-headers", b"")
        asked = ((b"access-control-allow-headers", names),) if _SAFE_HEADER_NAMES.fullmatch(names) else ()
        return (*_PREFLIGHT, *asked)

    def _allowed(self, request: Request) -> bytes | None:
        """How the page's origin is named as one that may read; None when it may not."""
        if _ANY in self.origins:
            return _ANY
        origin = request.headers.get(b"origin", b"")
        return origin if origin in self.origins else None
