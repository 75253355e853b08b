"""What the prefix cache saves: the first token of chats that begin alike, alone and eight at once, with it and not."""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import client
import environment
from servers import serving

SHARED, OWN = 1000, 24
"""About so many tokens that all prompts of a round begin with, and so many of their own."""
BURST = 8


def chat(round_number: int, number: int, *, cached: bool) -> bytes:
    """A chat for one token. All of a round begin alike; no two are the same."""
    shared = " ".join(f"word{round_number}" for _ in range(SHARED // 2))
    own = " ".join(f"end{number}" for _ in range(OWN // 2))
    payload = {
        "model": "any",
        "messages": [{"role": "user", "content": f"{shared} {own}"}],
        "max_tokens": 1,
        "temperature": 0,
        "cache_prompt": cached,
    }
    return client.post("/v1/chat/completions", payload)


def seconds(port: int, make: Callable[[int], bytes], count: int) -> list[float]:
    """What each of so many answers takes that are asked for at once."""
    records = client.run(port, make, count, requests=count)["records"]
    return [record.end - record.start for record in records]


def measure(port: int, round_number: int, *, cached: bool) -> dict[str, list[float]]:
    """One round: a burst of prompts that are new, one more, a burst of more."""

    def make(first: int) -> Callable[[int], bytes]:
        return lambda number: chat(round_number, first + number, cached=cached)

    return {
        "cold burst": seconds(port, make(0), BURST),
        "warm, alone": seconds(port, make(100), 1),
        "warm burst": seconds(port, make(200), BURST),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    where = environment.describe()
    times: dict[str, dict[str, list[float]]] = {"cache": {}, "no cache": {}}
    began = time.perf_counter()
    with serving(n_ctx=2048, request_timeout_s=600) as server:
        for number in range(options.rounds):
            for name, found in times.items():
                for work, values in measure(
                    server.port, 2 * number + (name == "cache"), cached=name == "cache"
                ).items():
                    found.setdefault(work, []).extend(values)
    result: dict[str, Any] = {"environment": where, "seconds": time.perf_counter() - began}
    print(f"{'':<14}{'cache p50':>10}{'max':>8}{'none p50':>10}{'max':>8}{'ratio p50':>11}")
    for work in times["cache"]:
        pair = [times[name][work] for name in times]
        middle = [statistics.median(values) for values in pair]
        ratio = middle[0] / middle[1]
        print(f"{work:<14}{middle[0]:>10.2f}{max(pair[0]):>8.2f}{middle[1]:>10.2f}{max(pair[1]):>8.2f}{ratio:>11.3f}")
        result[work] = {name: times[name][work] for name in times}
    print(environment.write("prefix", result))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
