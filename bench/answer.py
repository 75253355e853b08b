"""Reads HTTP/1.1 responses from their bytes and counts what a user gets: server-sent events with text.

Chunked and content-length bodies. Only events with text count as tokens: not the last one, which says why the text
ended, and not `[DONE]`. Knows no socket and no server in particular.
"""

import re

from attrs import define, field

TEXT = re.compile(rb'"text"\s*:\s*"(?!")')
USAGE = re.compile(rb'"(prompt|completion)_tokens"\s*:\s*(\d+)')


class BadAnswer(Exception):
    """The server's answer can't be measured. The text says why."""


@define
class Record:
    """One request. Times are seconds of `time.perf_counter`."""

    start: float
    status: int = 0
    first: float | None = None
    end: float = 0.0
    events: int = 0
    usage: dict[bytes, int] = field(factory=dict)
    """The server's own count of `prompt` and `completion` tokens, where a stream tells it."""
    arrivals: list[tuple[float, int]] = field(factory=list)
    """When bytes came, and the events that were complete with them."""


@define
class Answer:
    """Reads one response as its bytes come. A stream's text is counted and dropped, another body is kept."""

    record: Record
    streamed: bool = False
    closes: bool = False
    """The server closes the connection after this answer."""
    body: bytes = b""
    _raw: bytes = b""
    _length: int | None = None
    """Bytes of the body still to come; None while chunked or before the head is complete."""
    _in_body: bool = False

    def feed(self, data: bytes, now: float) -> bool:
        """Take bytes that came at `now`. True when the response is complete. Raises BadAnswer."""
        self._raw += data
        if not self._in_body and not self._head():
            return False
        if self._length is None:
            fresh, done = self._chunks()
        else:
            fresh, self._raw = self._raw[: self._length], self._raw[self._length :]
            self._length -= len(fresh)
            done = self._length == 0
        self._take(fresh, now)
        if done:
            self.record.end = now
            if self._raw:
                raise BadAnswer(f"bytes after the end of a response: {self._raw[:80]!r}")
        return done

    def _head(self) -> bool:
        head, found, rest = self._raw.partition(b"\r\n\r\n")
        if not found:
            return False
        lines = head.lower().split(b"\r\n")
        headers = dict(line.split(b":", 1) for line in lines[1:])
        self.record.status = int(lines[0].split()[1])
        self.streamed = b"event-stream" in headers.get(b"content-type", b"")
        self.closes = headers.get(b"connection", b"").strip() == b"close"
        if b"chunked" not in headers.get(b"transfer-encoding", b""):
            if b"content-length" not in headers:
                raise BadAnswer("a response with neither chunks nor a length")
            self._length = int(headers[b"content-length"])
        self._raw, self._in_body = rest, True
        return True

    def _chunks(self) -> tuple[bytes, bool]:
        """The data of the whole chunks that are there, and whether the last chunk was among them."""
        raw, position, fresh = self._raw, 0, []
        while (line_end := raw.find(b"\r\n", position)) >= 0:
            size = int(raw[position:line_end].split(b";")[0], 16)
            end = line_end + 2 + size
            if len(raw) < end + 2:
                break
            fresh.append(raw[line_end + 2 : end])
            position = end + 2
            if size == 0:
                self._raw = raw[position:]
                return b"".join(fresh), True
        self._raw = raw[position:]
        return b"".join(fresh), False

    def _take(self, fresh: bytes, now: float) -> None:
        self.body += fresh
        if not self.streamed:
            return
        block, separator, self.body = self.body.rpartition(b"\n\n")  # only whole events count
        if not separator:
            return
        if events := len(TEXT.findall(block)):
            if self.record.first is None:
                self.record.first = now
            self.record.events += events
            self.record.arrivals.append((now, events))
        if b'"completion_tokens"' in block:
            self.record.usage = {name: int(count) for name, count in USAGE.findall(block)}
        if b'data: {"error"' in block:
            raise BadAnswer(f"an error in the stream: {block[-300:]!r}")
