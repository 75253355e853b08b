"""A closed-loop load client that costs little: it shares the machine's cores with the server that it measures.

One process, one selector, one keep-alive connection per concurrent request, loopback only, bounded in count and time.
Knows no server in particular: it measures SLIM, its predecessor and llama-server alike.
"""

import argparse
import json
import selectors
import socket
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

from answer import Answer, BadAnswer, Record
from attrs import define, field

HOST = "127.0.0.1"
MAX_REQUESTS = 1_000_000
MAX_SECONDS = 600.0
GRACE = 60.0
"""Seconds that running requests get after the end of a timed run; then the server counts as hung."""


def post(path: str, payload: dict[str, object]) -> bytes:
    """The bytes of a POST request."""
    body = json.dumps(payload).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def get(path: str) -> bytes:
    """The bytes of a GET request."""
    return f"GET {path} HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode()


@define(eq=False)
class Line:
    """One keep-alive connection and the request that is on it."""

    port: int
    answer: Answer = field(factory=lambda: Answer(Record(0.0)))
    connection: socket.socket = field(init=False)

    def connect(self, selector: selectors.BaseSelector) -> None:
        self.connection = socket.create_connection((HOST, self.port), timeout=GRACE)
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        selector.register(self.connection, selectors.EVENT_READ, self)

    def close(self, selector: selectors.BaseSelector) -> None:
        selector.unregister(self.connection)
        self.connection.close()

    def send(self, request: bytes) -> None:
        self.answer = Answer(Record(time.perf_counter()))
        self.connection.sendall(request)


def run(
    port: int,
    make_request: Callable[[int], bytes],
    concurrency: int,
    *,
    requests: int = MAX_REQUESTS,
    seconds: float = MAX_SECONDS,
) -> dict[str, Any]:
    """Send `make_request(0)`, `make_request(1)`, ... with `concurrency` at a time, until `requests` are sent or
    `seconds` have passed; the running ones are finished. Returns `summary`. Raises BadAnswer.
    """
    if not (0 < requests <= MAX_REQUESTS and 0 < seconds <= MAX_SECONDS and 0 < concurrency <= 1024):
        raise ValueError("a run is bounded: see MAX_REQUESTS and MAX_SECONDS")
    selector = selectors.DefaultSelector()
    lines = [Line(port) for _ in range(min(concurrency, requests))]
    for line in lines:
        line.connect(selector)
    began, cpu = time.perf_counter(), time.process_time()
    records: list[Record] = []
    sent = 0
    for line in lines:
        line.send(make_request(sent))
        sent += 1
    while len(records) < sent:
        ready = selector.select(GRACE)
        if not ready or time.perf_counter() > began + seconds + GRACE:
            raise BadAnswer(f"{sent - len(records)} answers did not come or did not end")
        for key, _ in ready:
            if receive(key.data, selector):
                records.append(key.data.answer.record)
                if sent < requests and time.perf_counter() < began + seconds:
                    key.data.send(make_request(sent))
                    sent += 1
                else:
                    key.data.close(selector)  # left idle, the server would close it one day
    elapsed, cpu = time.perf_counter() - began, time.process_time() - cpu
    selector.close()
    return summary(records, concurrency, elapsed, cpu)


def receive(line: Line, selector: selectors.BaseSelector) -> bool:
    """Read what is there. True when an answer is complete and the line can take the next request."""
    data, answer = line.connection.recv(262144), line.answer
    if not data:
        raise BadAnswer("the server closed a connection in the middle of an answer")
    if not answer.feed(data, time.perf_counter()):
        return False
    if answer.record.status != 200:
        raise BadAnswer(f"status {answer.record.status}: {answer.body[:300]!r}")
    if answer.closes:
        line.close(selector)
        line.connect(selector)
    return True


def summary(records: Sequence[Record], concurrency: int, elapsed: float, cpu: float) -> dict[str, Any]:
    """What a run showed. `client_cpu_share` near 1 means that the client was the limit."""
    events = sum(record.events for record in records)
    return {
        "concurrency": concurrency,
        "requests": len(records),
        "events": events,
        "seconds": elapsed,
        "requests_per_s": len(records) / elapsed,
        "events_per_s": events / elapsed,
        "latency_p50_s": statistics.median(record.end - record.start for record in records),
        "client_cpu_share": cpu / elapsed,
        "records": records,
    }


def quantile(values: Sequence[float], share: float) -> float:
    """The nearest-rank quantile."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def main() -> None:
    """Stream completions from any server that is up."""
    parser = argparse.ArgumentParser(description="Stream completions from a server on 127.0.0.1 and count its tokens.")
    parser.add_argument("port", type=int)
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--model", default="any")
    options = parser.parse_args()
    payload = {"model": options.model, "prompt": "Once upon a time", "max_tokens": options.max_tokens, "stream": True}
    request = post("/v1/completions", payload)
    result = run(options.port, lambda _: request, options.concurrency, seconds=options.seconds)
    del result["records"]
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
