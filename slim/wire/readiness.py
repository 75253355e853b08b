"""The answers of `GET /healthz` and `GET /readyz`. Knows nothing of what makes a server ready."""

from .render import compact


def status_body(status: str, error: str | None) -> bytes:
    """`{"status": ...}`, and `error` where there is one."""
    return compact({"status": status} if error is None else {"status": status, "error": error}).encode("ascii")
