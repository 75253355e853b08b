"""A small reader of server-sent events for tests, written from the standard and not from the server's code.

It is stricter than a browser: what SLIM must never send (other fields than `data`, a cut event) fails the test.
"""

import json
from typing import Any


class SseReader:
    """Feed it bytes as they come; it returns the data of each complete event and keeps the comments."""

    def __init__(self) -> None:
        self.comments: list[str] = []
        self._rest = b""

    def feed(self, data: bytes) -> list[str]:
        *blocks, self._rest = (self._rest + data).split(b"\n\n")
        events = [self._event(block.decode("utf-8")) for block in blocks]
        return [event for event in events if event is not None]

    def close(self) -> None:
        assert not self._rest, f"the stream ended inside an event: {self._rest!r}"

    def _event(self, block: str) -> str | None:
        data = []
        for line in block.split("\n"):
            name, colon, value = line.partition(":")
            assert colon, f"neither a field nor a comment: {line!r}"
            if not name:
                self.comments.append(value.strip())
                continue
            assert name == "data", f"a field that SLIM must not send: {line!r}"
            data.append(value.removeprefix(" "))
        return "\n".join(data) if data else None


def read_events(body: bytes) -> list[str]:
    """The data of every event in a whole stream."""
    reader = SseReader()
    events = reader.feed(body)
    reader.close()
    return events


def read_chunks(body: bytes) -> list[dict[str, Any]]:
    """The JSON objects of a whole stream that went well: `[DONE]` once, at the end."""
    *chunks, last = read_events(body)
    assert last == "[DONE]"
    assert "[DONE]" not in chunks
    return [json.loads(chunk) for chunk in chunks]
