"""Who may ask: API keys, and what guards a server without keys from web pages. Knows no routes but those that are open.

A server without keys trusts its machine, and web pages run there too. A page may send a form or plain text to any
address: so JSON must be declared, for which a browser asks leave first. A page whose own name was pointed at this
address is of the same origin: so the Host must be one of ours. With keys neither is needed: a page has no key, and no
browser adds one by itself.
"""

import ipaddress
import re
from functools import lru_cache

from attrs import frozen

from ..keys import KeyRing
from ..wire.errors import HttpError, InvalidApiKey
from .http import JSON_TYPE, Request

ANY = "*"
PROBES = frozenset({"/healthz", "/readyz"})
"""Open to everyone: who asks them has no key, and comes under an address of its own choice."""

_LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]+))(?::[0-9]*)?")


@frozen(eq=False)
class Access:
    """The check of every request, made before its body is read."""

    keys: KeyRing
    hosts: frozenset[str]
    """Names and addresses, in lower case, that a server without keys answers to, besides loopback; `*` is any."""
    open_paths: frozenset[str]

    def admit(self, request: Request) -> None:
        """Write the key's name into the request. Raises InvalidApiKey, and HttpError 403 or 415."""
        if request.path in self.open_paths:
            return
        if self.keys.required:
            request.tenant = self._tenant(request)
        else:
            self._check_host(request)
            _check_content_type(request)

    def _tenant(self, request: Request) -> str:
        """Either header may carry a valid key; clients often send a stale one in the other."""
        secrets = _secrets(request)
        if not secrets:
            raise InvalidApiKey("This server needs an API key: 'Authorization: Bearer KEY' or 'X-Api-Key: KEY'.")
        for secret in secrets:
            name = self.keys.owner(secret)
            if name is not None:
                return name
        raise InvalidApiKey("The API key is not valid here.")

    def _check_host(self, request: Request) -> None:
        host = request.headers.get(b"host", b"").decode("latin-1")
        if ANY not in self.hosts and not self._is_ours(host, request.scope.get("server")):
            raise HttpError(
                403,
                "Without API keys this server answers only to its own address and to loopback names. "
                "Its operator can name the Host of this request in SLM_ALLOWED_HOSTS.",
            )

    def _is_ours(self, host: str, server: tuple[str, int | None] | None) -> bool:
        match = _HOST.fullmatch(host)
        if match is None:
            return False
        name = (match[1] or match[2]).lower().removesuffix(".")
        if name in _LOOPBACK_NAMES or name in self.hosts or name.endswith(".localhost"):
            return True
        address = _address(name)
        own = _address(server[0]) if server is not None else None
        return address is not None and (address.is_loopback or address == own or str(address) in self.hosts)


def _secrets(request: Request) -> list[bytes]:
    found = []
    scheme, _, token = request.headers.get(b"authorization", b"").partition(b" ")
    if scheme.lower() == b"bearer":
        found.append(token.strip())
    found.append(request.headers.get(b"x-api-key", b""))
    return [secret for secret in found if secret]


@lru_cache(maxsize=64)  # the same few in every request, and parsing one takes as long as all the rest here
def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address  # an IPv4 client of a socket for both kinds


def _check_content_type(request: Request) -> None:
    """Raise HttpError 415 for a POST that a page of another site could have sent without asking for leave."""
    if request.method != "POST":
        return
    sent = request.headers.get(b"content-type")
    if sent is None:
        if b"origin" in request.headers:  # a Blob without a type
            raise HttpError(415, "A browser must send this with 'Content-Type: application/json'.")
        return
    if sent == JSON_TYPE:
        return
    kind = sent.partition(b";")[0].strip().lower()
    if kind != JSON_TYPE and not (kind.startswith(b"application/") and kind.endswith(b"+json")):
        raise HttpError(415, "The body must be sent with 'Content-Type: application/json'.")
