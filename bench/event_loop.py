"""What long chat requests cost the event loop: its time before the first token, and what others feel of 32 at once."""

import argparse
import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import client
import environment
from servers import serving

LOOP_LIMIT_S = 0.001
IDLE_FACTOR, HEALTH_LIMIT_S = 3, 0.020
TOKENS = 3000
WATCHED = (sys.executable, str(Path(__file__).with_name("watched.py")))


def chat(number: int, tokens: int) -> bytes:
    """A chat of so many prompt tokens, unlike any other, that asks for one token."""
    text = " ".join(f"word{number}" for _ in range(tokens // 2))
    payload = {"model": "any", "messages": [{"role": "user", "content": text}], "max_tokens": 1, "stream": True}
    return client.post("/v1/chat/completions", payload)


def loop_times(requests: int, **settings: object) -> list[float]:
    """Seconds of event-loop time before the first bytes of each request, one at a time."""
    with serving(WATCHED, pipe_output=True, n_ctx=8192, prefill_chunk=512, **settings) as server:
        assert server.process.stdout is not None
        client.run(server.port, lambda number: chat(number, TOKENS), 1, requests=requests)
        times = [float(server.process.stdout.readline()) for _ in range(requests)]
        return times[requests // 5 :]  # the first ones import and warm up


def probe(port: int, stop: Event, times: "Queue[list[float]]") -> None:
    """Seconds that `/healthz` takes, over and over on one connection: a process of its own."""
    found: list[float] = []
    while not stop.is_set():
        result = client.run(port, lambda _: client.get("/healthz"), 1, requests=5)
        found += [record.end - record.start for record in result["records"]]
    times.put(found)


def health_during(port: int, work: Callable[[], object]) -> list[float]:
    """What `/healthz` takes while the work is done."""
    context = multiprocessing.get_context("spawn")
    stop, times = context.Event(), context.Queue()
    process = context.Process(target=probe, args=(port, stop, times))
    process.start()
    time.sleep(1)  # it imports first
    work()
    stop.set()
    found: list[float] = times.get(timeout=60)
    process.join()
    return found


def health(bursts: int, **settings: object) -> dict[str, float]:
    """p50 and p99 of `/healthz`, idle and while bursts of 32 long chats arrive."""
    with serving(n_ctx=8192, prefill_chunk=512, max_queue_size=64, **settings) as server:

        def burst() -> None:
            for _ in range(bursts):
                client.run(server.port, lambda number: chat(number, TOKENS), 32, requests=32)

        burst()
        idle = health_during(server.port, lambda: time.sleep(3))
        loaded = health_during(server.port, burst)
    return {
        f"{name}_{share}_s": client.quantile(times, value)
        for name, times in (("idle", idle), ("loaded", loaded))
        for share, value in (("p50", 0.5), ("p99", 0.99))
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=100)
    options = parser.parse_args()
    where = environment.describe()
    times = loop_times(options.requests, engine="fake")
    result: dict[str, Any] = {
        "loop_p50_s": statistics.median(times),
        "loop_p90_s": client.quantile(times, 0.9),
        "fake": health(10, engine="fake"),
        "smollm2": health(1, request_timeout_s=900),
    }
    for name, value in result.items():
        print(name, value)
    print(environment.write("event_loop", {"environment": where, **result}))
    fake = result["fake"]
    good = fake["loaded_p99_s"] <= max(IDLE_FACTOR * fake["idle_p99_s"], HEALTH_LIMIT_S)
    return 0 if good and result["loop_p50_s"] <= LOOP_LIMIT_S else 1


if __name__ == "__main__":
    raise SystemExit(main())
