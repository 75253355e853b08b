"""What the answers of every endpoint that makes text have in common. Knows no endpoint, no HTTP and no engine."""

from collections.abc import Iterable, Sequence
from typing import Any

from attrs import frozen

from ..answer import PromptProgress, Timings
from ..types import Usage
from . import sse
from .render import compact


@frozen
class Head:
    """What every chunk of an answer repeats."""

    id: str
    created: int
    """Unix time in seconds."""
    model: str


@frozen
class Frame:
    """The object around the choices: of a whole answer, and of each chunk of a stream."""

    head: Head
    object: str
    """OpenAI's name of the shape."""
    include_usage: bool = False
    """The client asked for a usage chunk: then all others say that they have none."""

    def whole(self, choices: Iterable[Any], usage: Usage, timings: Timings) -> bytes:
        """An answer that isn't streamed.

        Each choice is written by itself: the encoder holds the interpreter's lock from begin to end.
        """
        body = self._object([]) | {"usage": usage_object(usage), "timings": timings_object(timings)}
        before, after = compact(body).split('"choices":[]', 1)
        return f'{before}"choices":[{",".join(map(compact, choices))}]{after}'.encode("ascii")

    def chunk(self, choice: Any, **more: Any) -> bytes:
        """An event of one choice."""
        usage = {"usage": None} if self.include_usage else {}
        return sse.event(compact(self._object([choice]) | usage | more))

    def close(self, usage: Usage) -> bytes:
        """The end of a stream that went well: the usage chunk if it was asked for, the only one without a choice."""
        asked = sse.event(compact(self._object([]) | {"usage": usage_object(usage)})) if self.include_usage else b""
        return asked + sse.DONE

    def _object(self, choices: Sequence[Any]) -> dict[str, Any]:
        return {
            "id": self.head.id,
            "object": self.object,
            "created": self.head.created,
            "model": self.head.model,
            "choices": choices,
        }


def usage_object(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }


def timings_object(timings: Timings) -> dict[str, Any]:
    """The keys of llama.cpp's server, and `queue_ms`. Rates of nothing are 0."""
    return {
        "queue_ms": _milliseconds(timings.queue),
        "cache_n": timings.cached_tokens,
        **_stage("prompt", timings.prompt_tokens, timings.prompt),
        **_stage("predicted", timings.new_tokens, timings.decode),
    }


def progress_object(progress: PromptProgress) -> dict[str, Any]:
    """The keys of llama.cpp's server, and `queue_position` while the choice waits."""
    queued = {} if progress.queue_position is None else {"queue_position": progress.queue_position}
    return {
        "total": progress.total,
        "cache": progress.cached,
        "processed": progress.done,
        "time_ms": _milliseconds(progress.seconds),
        **queued,
    }


def _stage(name: str, tokens: int, seconds: float) -> dict[str, Any]:
    return {
        f"{name}_n": tokens,
        f"{name}_ms": _milliseconds(seconds),
        f"{name}_per_token_ms": _milliseconds(seconds / tokens) if tokens else 0.0,
        f"{name}_per_second": round(tokens / seconds, 3) if seconds > 0 else 0.0,
    }


def _milliseconds(seconds: float) -> float:
    return round(seconds * 1000, 3)
