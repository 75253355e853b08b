"""The one table from error classes to HTTP status and OpenAI's error words. Knows no server and sends nothing."""

from math import ceil

from attrs import frozen

from ..errors import (
    ContextLengthExceeded,
    DeadlineExceeded,
    Draining,
    EngineFailed,
    InvalidRequest,
    ModelFailed,
    ModelLoading,
    Overloaded,
    RequestCancelled,
    SlimError,
    Stalled,
    Unanswerable,
    Unavailable,
)
from . import sse
from .render import compact

Headers = tuple[tuple[bytes, bytes], ...]


class HttpError(SlimError):
    """A fault of the HTTP request itself: no such path, wrong method, body too large or too slow, no leave to ask.

    It carries its own `status` and extra `headers` (such as `allow`), names in lower case.
    """

    def __init__(self, status: int, message: str, headers: Headers = ()) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers


class InvalidApiKey(HttpError):
    """The request carries no key that is valid here. The message must not contain what it carries."""

    def __init__(self, message: str) -> None:
        super().__init__(401, message, ((b"www-authenticate", b"Bearer"),))


@frozen
class Row:
    """What the wire says of an error class."""

    status: int
    type: str
    code: str | None = None
    headers: Headers = ()


# openai-python tries every 5xx again, twice: a missed deadline would cost the server three answers.
_NO_RETRY = ((b"x-should-retry", b"false"),)

TABLE: dict[type[BaseException], Row] = {
    InvalidRequest: Row(400, "invalid_request_error"),
    ContextLengthExceeded: Row(400, "invalid_request_error", "context_length_exceeded"),
    Unanswerable: Row(400, "invalid_request_error", "unanswerable"),
    HttpError: Row(400, "invalid_request_error"),
    InvalidApiKey: Row(401, "invalid_request_error", "invalid_api_key"),
    Unavailable: Row(503, "service_unavailable_error"),
    ModelLoading: Row(503, "service_unavailable_error", "model_loading"),
    ModelFailed: Row(503, "service_unavailable_error", "model_failed"),
    Stalled: Row(503, "service_unavailable_error", "stalled"),
    Overloaded: Row(503, "service_unavailable_error", "overloaded"),
    Draining: Row(503, "service_unavailable_error", "draining"),
    DeadlineExceeded: Row(504, "timeout_error", "deadline_exceeded", _NO_RETRY),
    RequestCancelled: Row(499, "invalid_request_error"),
    EngineFailed: Row(500, "server_error", "engine_error"),
}
"""A subclass without a row of its own takes its parent's."""

_UNKNOWN = Row(500, "server_error")
_UNKNOWN_TEXT = "The server hit an internal error. It is logged under this request's id."


@frozen
class ErrorReply:
    """A whole error response, but for content-type (application/json) and content-length."""

    status: int
    headers: Headers
    body: bytes


def error_reply(error: BaseException) -> ErrorReply:
    """The response for any exception. One that isn't in the table tells the client nothing of itself."""
    row = _row(error)
    headers = row.headers
    status = row.status
    if isinstance(error, HttpError):
        status, headers = error.status, error.headers
    elif isinstance(error, Unavailable) and error.retry_after is not None:
        headers = _retry_headers(error.retry_after)
    return ErrorReply(status, headers, _body(error, row).encode("ascii"))


def error_event(error: BaseException) -> bytes:
    """The error as an event of a stream whose head is already sent. The stream ends with it."""
    return sse.event(_body(error, _row(error)))


def _row(error: BaseException) -> Row:
    return next((TABLE[cls] for cls in type(error).__mro__ if cls in TABLE), _UNKNOWN)


def _body(error: BaseException, row: Row) -> str:
    message = _UNKNOWN_TEXT if row is _UNKNOWN else str(error)
    param = error.param if isinstance(error, InvalidRequest) else None
    return compact({"error": {"message": message, "type": row.type, "param": param, "code": row.code}})


def _retry_headers(seconds: float) -> Headers:
    """Whole seconds for everyone (RFC 9110, section 10.2.3), milliseconds for OpenAI's clients."""
    return (b"retry-after", b"%d" % ceil(seconds)), (b"retry-after-ms", b"%d" % round(seconds * 1000))
