"""What a long chat request costs the event loop: its time before the first token, and what others feel of 32 at once."""

import argparse
import statistics
import sys
import threading
import time
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


def health_times(port: int, stop: threading.Event) -> list[float]:
    """Seconds that `/healthz` takes, over and over on one connection."""
    times = []
    while not stop.is_set():
        result = client.run(port, lambda _: client.get("/healthz"), 1, requests=20)
        times += [record.end - record.start for record in result["records"]]
    return times


def health(requests: int, **settings: object) -> dict[str, float]:
    """p99 of `/healthz`, idle and while 32 long chats arrive together, again and again."""
    with serving(n_ctx=8192, prefill_chunk=512, max_queue_size=64, **settings) as server:
        client.run(server.port, lambda number: chat(number, TOKENS), 4, requests=8)
        found: dict[str, float] = {}
        for name, load in (("idle", 0), ("loaded", requests)):
            stop, times = threading.Event(), list[float]()
            thread = threading.Thread(target=lambda: times.extend(health_times(server.port, stop)))
            thread.start()
            if load:
                client.run(server.port, lambda number: chat(number, TOKENS), 32, requests=load)
            else:
                time.sleep(3)
            stop.set()
            thread.join()
            found[f"{name}_p50_s"], found[f"{name}_p99_s"] = statistics.median(times), client.quantile(times, 0.99)
        return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=100)
    options = parser.parse_args()
    where = environment.describe()
    times = loop_times(options.requests, engine="fake")
    result: dict[str, Any] = {
        "loop_p50_s": statistics.median(times),
        "loop_p90_s": client.quantile(times, 0.9),
        "fake": health(options.requests * 3, engine="fake"),
        "smollm2": health(32, request_timeout_s=600),
    }
    for name, value in result.items():
        print(name, value)
    print(environment.write("event_loop", {"environment": where, **result}))
    fake = result["fake"]
    good = fake["loaded_p99_s"] <= max(IDLE_FACTOR * fake["idle_p99_s"], HEALTH_LIMIT_S)
    return 0 if good and result["loop_p50_s"] <= LOOP_LIMIT_S else 1


if __name__ == "__main__":
    raise SystemExit(main())
