"""What a client reads of every error: status, words, headers."""

import json

import pytest

from slim import errors
from slim.wire.errors import TABLE, HttpError, InvalidApiKey, error_event, error_reply
from support.sse import read_events

WORDS = [
    (errors.InvalidRequest("m", "top_p"), 400, "invalid_request_error", None),
    (errors.ContextLengthExceeded(prompt_tokens=9, max_tokens=1, context=8), 400, "invalid_request_error",
     "context_length_exceeded"),
    (errors.Unavailable("m"), 503, "service_unavailable_error", None),
    (errors.ModelLoading("m"), 503, "service_unavailable_error", "model_loading"),
    (errors.ModelFailed("m"), 503, "service_unavailable_error", "model_failed"),
    (errors.Stalled("m"), 503, "service_unavailable_error", "stalled"),
    (errors.Overloaded("m"), 503, "service_unavailable_error", "overloaded"),
    (errors.Draining("m"), 503, "service_unavailable_error", "draining"),
    (errors.DeadlineExceeded(30.0), 504, "timeout_error", "deadline_exceeded"),
    (errors.RequestCancelled("m"), 499, "invalid_request_error", None),
    (errors.Unanswerable("m"), 400, "invalid_request_error", "unanswerable"),
    (errors.EngineFailed("m"), 500, "server_error", "engine_error"),
    (InvalidApiKey("m"), 401, "invalid_request_error", "invalid_api_key"),
    (HttpError(403, "m"), 403, "invalid_request_error", None),
    (HttpError(404, "m"), 404, "invalid_request_error", None),
    (HttpError(408, "m"), 408, "invalid_request_error", None),
    (HttpError(413, "m"), 413, "invalid_request_error", None),
    (HttpError(415, "m"), 415, "invalid_request_error", None),
    (errors.ConfigError("m"), 500, "server_error", None),
    (ZeroDivisionError("m"), 500, "server_error", None),
]  # fmt: skip


def error_object(reply):
    body = json.loads(reply.body)
    assert list(body) == ["error"]
    return body["error"]


def subclasses(cls):
    return {cls, *(below for child in cls.__subclasses__() for below in subclasses(child))}


@pytest.mark.parametrize(("error", "status", "kind", "code"), WORDS, ids=lambda value: type(value).__name__)
def test_every_error_has_its_status_and_words(error, status, kind, code):
    reply = error_reply(error)
    told = error_object(reply)
    assert (reply.status, told["type"], told["code"]) == (status, kind, code)
    assert set(told) == {"message", "type", "param", "code"}
    assert isinstance(told["message"], str)
    assert reply.body.isascii()


def test_every_error_of_the_tree_has_a_row():
    """ConfigError never meets a request, and SlimError itself is never raised."""
    house = {cls for cls in subclasses(errors.SlimError) if cls.__module__.startswith("slim.")}
    assert house - {errors.SlimError, errors.ConfigError} == set(TABLE)


def test_a_subclass_without_a_row_takes_its_parents():
    class Crowded(errors.Overloaded):
        pass

    assert error_object(error_reply(Crowded("full")))["code"] == "overloaded"


def test_the_message_and_the_bad_field_are_told():
    told = error_object(error_reply(errors.InvalidRequest("stop[1]: must not be empty", "stop[1]")))
    assert told["message"] == "stop[1]: must not be empty"
    assert told["param"] == "stop[1]"


def test_an_unknown_exception_tells_nothing_of_itself():
    assert b"secret" not in error_reply(RuntimeError("secret")).body
    assert b"secret" not in error_event(RuntimeError("secret"))


def test_an_engine_fault_does_not_tell_its_cause():
    assert b"secret" not in error_reply(errors.EngineFailed("secret")).body


@pytest.mark.parametrize(
    ("seconds", "retry_after", "retry_after_ms"),
    [
        (0.25, b"1", b"250"),
        (1.0, b"1", b"1000"),
        (1.2, b"2", b"1200"),
        (60, b"60", b"60000"),
    ],
)
def test_a_wait_is_told_in_seconds_and_milliseconds(seconds, retry_after, retry_after_ms):
    headers = dict(error_reply(errors.Overloaded("full", seconds)).headers)
    assert headers == {b"retry-after": retry_after, b"retry-after-ms": retry_after_ms}


def test_an_unknown_wait_is_not_told():
    assert error_reply(errors.ModelLoading("loading")).headers == ()


def test_a_missed_deadline_is_not_to_be_retried():
    assert error_reply(errors.DeadlineExceeded(30.0)).headers == ((b"x-should-retry", b"false"),)


def test_an_http_fault_carries_its_own_headers():
    assert error_reply(HttpError(405, "no", ((b"allow", b"GET"),))).headers == ((b"allow", b"GET"),)


def test_a_missing_key_names_the_scheme_that_is_asked_for():
    assert error_reply(InvalidApiKey("no")).headers == ((b"www-authenticate", b"Bearer"),)


def test_an_error_in_a_stream_is_an_event_with_the_same_object():
    error = errors.EngineFailed("boom")
    assert read_events(error_event(error)) == [error_reply(error).body.decode("ascii")]


def test_half_a_surrogate_pair_in_a_message_does_not_break_the_reply():
    assert error_object(error_reply(errors.InvalidRequest("\ud83d")))["message"] == "\ud83d"
