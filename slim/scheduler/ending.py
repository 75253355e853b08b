"""How work is refused and how its end is written down. Knows no queue and no replica."""

import logging

from ..errors import Draining, EngineFailed, ModelFailed, ModelLoading, SlimError, Stalled, Unavailable
from ..types import JobRecord
from .replicas import Readiness

log = logging.getLogger("slim.generation")

RETRY_LOADING, RETRY_DRAINING, RETRY_STALLED = 2.0, 1.0, 5.0
"""Seconds. A small model loads in a few; behind a balancer another instance takes a drained client at once."""


def refusal(readiness: Readiness) -> Unavailable:
    """The error for a request that comes while the server isn't ready."""
    match readiness.status:
        case "draining":
            return Draining("The server is shutting down.", RETRY_DRAINING)
        case "loading":
            return ModelLoading("The model is still loading. Please retry in a moment.", RETRY_LOADING)
        case "stalled":
            return Stalled(f"The engine is stalled: {readiness.error}.", RETRY_STALLED)
        case _:
            return ModelFailed(f"The model is not available: {readiness.error}.")


def log_record(record: JobRecord, error: SlimError | None) -> None:
    """One line per generation. Never its prompt nor its text."""

    def milliseconds(seconds: float | None) -> float | None:
        return None if seconds is None else round(seconds * 1000, 1)

    fields = {
        "request_id": record.request_id,
        "tenant": record.tenant,
        "outcome": record.outcome.value,
        "finish_reason": record.reason.value if record.reason is not None else None,
        "prompt_tokens": record.usage.prompt_tokens,
        "completion_tokens": record.usage.completion_tokens,
        "queue_wait_ms": milliseconds(record.queue_wait),
        "ttft_ms": milliseconds(record.first_token),
        "duration_ms": milliseconds(record.duration),
    }
    if isinstance(error, EngineFailed):
        fields["error"] = error.cause
    log.info("generation ended", extra={"fields": fields})
