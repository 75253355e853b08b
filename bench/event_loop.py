"""What long chat requests cost the event loop: its time before the first token, and what others feel of 32 at once."""

import argparse
import multiprocessing
import sys
import time
from collections.abc import Callable, Sequence
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
TOKENS_OF_REAL_MODEL = 300
"""It needs a minute for 32 such prompts, and ten for long ones."""
PAUSE_S = 0.005
WATCHED, BARE = ((sys.executable, str(Path(__file__).with_name(name))) for name in ("watched.py", "bare.py"))


def chat(number: int, tokens: int) -> bytes:
    """A chat of so many prompt tokens, unlike any other, that asks for 8 tokens."""
    text = " ".join(f"word{number}" for _ in range(tokens // 2))
    payload = {"model": "any", "messages": [{"role": "user", "content": text}], "max_tokens": 8, "stream": True}
    return client.post("/v1/chat/completions", payload)


def loop_times(command: Sequence[str], requests: int) -> list[tuple[float, float]]:
    """Seconds of event-loop time of each request, one at a time: until its body was there, until its first bytes."""

    def make(number: int) -> bytes:
        time.sleep(PAUSE_S)  # the server becomes idle
        return chat(number, TOKENS)

    with serving(command, pipe_output=True, n_ctx=8192, prefill_chunk=512, engine="fake") as server:
        assert server.process.stdout is not None
        client.run(server.port, make, 1, requests=requests)
        lines = [server.process.stdout.readline().split() for _ in range(requests)]
    return [(float(body), float(first)) for body, first in lines[requests // 5 :]]  # the first ones import and warm up


def loop_summary(command: Sequence[str], requests: int) -> dict[str, float]:
    """p50 and p90 of both times."""
    columns = zip(*loop_times(command, requests), strict=True)
    return {
        f"{name}_{share}_s": client.quantile(list(times), value)
        for name, times in zip(("body", "first"), columns, strict=True)
        for share, value in (("p50", 0.5), ("p90", 0.9))
    }


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


def health(bursts: int, tokens: int, **settings: object) -> dict[str, float]:
    """p50 and p99 of `/healthz`, idle and while bursts of 32 chats arrive."""
    with serving(n_ctx=8192, prefill_chunk=512, max_queue_size=64, **settings) as server:

        def burst() -> None:
            for _ in range(bursts):
                client.run(server.port, lambda number: chat(number, tokens), 32, requests=32)

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
    result: dict[str, Any] = {
        "loop_bare_hypercorn": loop_summary(BARE, options.requests),
        "loop": loop_summary(WATCHED, options.requests),
        "health_fake": health(10, TOKENS, engine="fake"),
        "health_smollm2": health(1, TOKENS_OF_REAL_MODEL, request_timeout_s=900),
    }
    for name, value in result.items():
        print(name, value)
    print(environment.write("event_loop", {"environment": where, **result}))
    fake = result["health_fake"]
    good = fake["loaded_p99_s"] <= max(IDLE_FACTOR * fake["idle_p99_s"], HEALTH_LIMIT_S)
    return 0 if good and result["loop"]["first_p50_s"] <= LOOP_LIMIT_S else 1


if __name__ == "__main__":
    raise SystemExit(main())
