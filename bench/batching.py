"""How much continuous batching gives with a real model, and whether the streams of a batch advance together.

The embedded SmolLM2, prompts of 64 tokens that never repeat, 128 new tokens each, greedy. Each run starts all its
streams at once. The levels of concurrency are interleaved over the rounds, on one server.
"""

import argparse
import itertools
import random
import statistics
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import client
import environment
from answer import BadAnswer, Record
from servers import serving

PROMPT_TOKENS, NEW_TOKENS = 64, 128
LEVELS = (1, 2, 4, 8)
TOGETHER = 0.8
"""Share of its tokens that every stream must have when the first one ends."""


def requests() -> Iterator[bytes]:
    """Endless unique requests. A list of numbers has a known length in tokens, and a model goes on with it for long."""
    for number in itertools.count():
        digits = random.Random(number)
        numbers = ", ".join(str(digits.randrange(10, 100)) for _ in range(15))
        payload: dict[str, object] = {"model": "any", "prompt": f"Please count on: {numbers},", "temperature": 0}
        payload |= {"max_tokens": NEW_TOKENS, "stream": True, "stream_options": {"include_usage": True}}
        yield client.post("/v1/completions", payload)


def burst(port: int, source: Iterator[bytes], streams: int) -> dict[str, Any]:
    """Run so many streams at once, one request each. Raises BadAnswer when their lengths aren't as planned."""
    result = client.run(port, lambda _: next(source), streams, requests=streams)
    records: list[Record] = result.pop("records")
    for record in records:
        if record.usage != {b"prompt": PROMPT_TOKENS, b"completion": NEW_TOKENS}:
            raise BadAnswer(f"not {PROMPT_TOKENS} tokens and {NEW_TOKENS} new ones: {record.usage}")
    return {
        "streams": streams,
        "tokens_per_s": streams * NEW_TOKENS / result["seconds"],
        "first_token_s": [record.first - record.start for record in records if record.first is not None],
        "gaps_s": [gap for record in records for gap in gaps(record)],
        "least_share_at_first_end": least_share(records),
    }


def gaps(record: Record) -> list[float]:
    """Times between arrivals; tokens that came together count as gaps of 0 after the first."""
    found: list[float] = []
    for (before, _), (time, events) in itertools.pairwise(record.arrivals):
        found += [time - before, *[0.0] * (events - 1)]
    return found


def least_share(records: Sequence[Record]) -> float:
    """When the first stream ended: the least share of its tokens that any stream had."""
    first_end = min(record.end for record in records)
    had = (sum(events for time, events in record.arrivals if time <= first_end) / record.events for record in records)
    return min(had)


def summarize(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """All rounds of one level."""
    speeds = [one["tokens_per_s"] for one in runs]
    between = [gap for one in runs for gap in one["gaps_s"]]
    return {
        "streams": runs[0]["streams"],
        "tokens_per_s": {"median": statistics.median(speeds), "min": min(speeds), "max": max(speeds)},
        "first_token_p50_s": statistics.median(value for one in runs for value in one["first_token_s"]),
        "gap_p50_s": statistics.median(between),
        "gap_p95_s": client.quantile(between, 0.95),
        "least_share_at_first_end": min(one["least_share_at_first_end"] for one in runs),
    }


def show(rows: Sequence[dict[str, Any]]) -> None:
    print("streams   tokens/s (min-max)   first token p50   gap p50   gap p95   least share when the first ended")
    for row in rows:
        speed = row["tokens_per_s"]
        print(
            f"{row['streams']:>7}{speed['median']:>10.1f} ({speed['min']:.0f}-{speed['max']:.0f})"
            f"{row['first_token_p50_s'] * 1000:>17.0f} ms{row['gap_p50_s'] * 1000:>7.1f} ms"
            f"{row['gap_p95_s'] * 1000:>7.1f} ms{row['least_share_at_first_end']:>10.0%}"
        )


def main() -> int:
    """Returns 1 when the streams did not advance together."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    where, source = environment.describe(), requests()
    runs: dict[int, list[dict[str, Any]]] = {level: [] for level in LEVELS}
    with serving() as server:
        burst(server.port, source, max(LEVELS))  # warm-up
        for number in range(options.rounds):
            for level in LEVELS if number % 2 == 0 else LEVELS[::-1]:
                runs[level].append(burst(server.port, source, level))
            print(f"round {number + 1} of {options.rounds} done", flush=True)
    rows = [summarize(runs[level]) for level in LEVELS]
    show(rows)
    ratio = rows[-1]["tokens_per_s"]["median"] / rows[0]["tokens_per_s"]["median"]
    share = rows[-1]["least_share_at_first_end"]
    print(f"{LEVELS[-1]} streams against 1: {ratio:.2f} times the tokens per second")
    print(environment.write("batching", {"environment": where, "table": rows, "ratio": ratio}))
    return 0 if share >= TOGETHER else 1


if __name__ == "__main__":
    sys.exit(main())
