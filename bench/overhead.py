"""What serving costs beside the model: SLIM against slim-serve 0.1.1, both with the fake engine at zero latency.

Rounds are interleaved and each has fresh servers, one at a time, so that a drift of the machine hits both.
"""

import argparse
import statistics
from collections.abc import Sequence
from typing import Any

import client
import environment
from answer import BadAnswer
from attrs import frozen
from servers import SLIM, peer, serving

OURS, THEIRS = "slim", "slim-serve 0.1.1"
WARM_UP = 100
"""Requests before each measurement."""


@frozen
class Measure:
    """One row of the table. `key` is a key of `client.summary`; `events` is what each answer must have."""

    name: str
    request: bytes
    clients: int
    key: str
    events: int = 0

    def take(self, port: int, seconds: float) -> dict[str, Any]:
        """Raises BadAnswer when an answer doesn't have one event per token."""
        client.run(port, lambda _: self.request, self.clients, requests=WARM_UP)
        result = client.run(port, lambda _: self.request, self.clients, seconds=seconds)
        if any(record.events != self.events for record in result.pop("records")):
            raise BadAnswer(f"{self.name}: an answer did not have {self.events} events with text")
        return result


def completion(max_tokens: int, stream: bool) -> bytes:
    payload = {"model": "fake", "prompt": "Tell me a story", "max_tokens": max_tokens, "stream": stream}
    return client.post("/v1/completions", payload)


MEASURES = (
    Measure("64-token stream, p50 s (less is better)", completion(64, True), 1, "latency_p50_s", 64),
    Measure("64-token streams, 8 clients, events/s", completion(64, True), 8, "events_per_s", 64),
    Measure("64-token streams, 32 clients, events/s", completion(64, True), 32, "events_per_s", 64),
    Measure("16 tokens, not streamed, 8 clients, requests/s", completion(16, False), 8, "requests_per_s"),
    Measure("/healthz, 8 clients, requests/s", client.get("/healthz"), 8, "requests_per_s"),
)


def measure(command: Sequence[str], seconds: float) -> dict[str, dict[str, Any]]:
    """All measures on one fresh server."""
    with serving(command, engine="fake", max_queue_size=256) as server:
        return {measure.name: measure.take(server.port, seconds) for measure in MEASURES}


def compare(rounds: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Medians and ranges over the rounds, and the ratio of the medians."""
    rows = []
    for measure in MEASURES:
        row: dict[str, Any] = {"measure": measure.name}
        for server in (OURS, THEIRS):
            values = [one[server][measure.name][measure.key] for one in rounds]
            row[server] = {"median": statistics.median(values), "min": min(values), "max": max(values)}
        row["ratio"] = row[OURS]["median"] / row[THEIRS]["median"]
        rows.append(row)
    return rows


def show(rows: Sequence[dict[str, Any]]) -> None:
    print(f"{'':<48}{OURS + ' (min-max)':>34}{THEIRS + ' (min-max)':>34}{'ratio':>8}")
    for row in rows:
        cells = [f"{s['median']:.4g} ({s['min']:.4g}-{s['max']:.4g})" for s in (row[OURS], row[THEIRS])]
        print(f"{row['measure']:<48}{cells[0]:>34}{cells[1]:>34}{row['ratio']:>8.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peer-python", required=True, help="interpreter of an environment with slim-serve==0.1.1")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement")
    options = parser.parse_args()
    where = environment.describe() | {"peer_versions": environment.versions(options.peer_python)}
    servers = [(OURS, SLIM), (THEIRS, peer(options.peer_python))]
    rounds = []
    for number in range(options.rounds):
        order = servers if number % 2 == 0 else servers[::-1]
        rounds.append({name: measure(command, options.seconds) for name, command in order})
        print(f"round {number + 1} of {options.rounds} done", flush=True)
    rows = compare(rounds)
    show(rows)
    print(environment.write("overhead", {"environment": where, "table": rows, "rounds": rounds}))


if __name__ == "__main__":
    main()
