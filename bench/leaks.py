"""Nothing is left behind: aborted and complete requests against a real server with the fake engine.

Aborts come at random moments: before the body has ended, queued, in prefill, in the middle of a stream, not streaming.
Threads, descriptors and gauges must return to what they were; a second round of the same may not grow the memory; an
idle server may not use the processor.
"""

import argparse
import os
import random
import socket
import struct
import sys
import time
from pathlib import Path
from typing import Any

import client
import environment
from servers import HOST, Server, serving

SETTLE_S = 12.0
"""trio keeps an idle thread for 10 s."""
IDLE_S = 10.0
GROWTH_KIB = 1024
IDLE_SHARE = 0.005
WAVE = 20
"""Requests at once: more than the 8 slots, fewer than the places, so that some are queued and none is refused."""
GAUGES = ("slm_queue_depth", "slm_inflight_requests", "slm_kv_cache_usage_ratio", "slm_replicas")


def completion(stream: bool) -> bytes:
    payload = {"model": "fake", "prompt": "one two three " * 30, "max_tokens": 40, "stream": stream}
    return client.post("/v1/completions", payload)


def abort(server: Server, times: int, moments: random.Random) -> None:
    """Open requests in waves and leave each at a random moment, one half with a FIN, one half with a RST."""
    for start in range(0, times, WAVE):
        connections = []
        for number in range(start, min(start + WAVE, times)):
            connection = socket.create_connection((HOST, server.port), timeout=10)
            request = completion(stream=number % 5 != 0)
            connection.sendall(request[: len(request) // 2] if number % 5 == 1 else request)
            connections.append(connection)
        moments.shuffle(connections)
        for connection in connections:
            time.sleep(moments.uniform(0, 0.012))
            if moments.random() < 0.5:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.close()


def complete(server: Server, times: int) -> None:
    """One half streamed. Raises BadAnswer when one isn't answered."""
    client.run(server.port, lambda number: completion(stream=number % 2 == 0), 8, requests=times)


def snapshot(server: Server) -> dict[str, float]:
    """The state of the settled process."""
    time.sleep(SETTLE_S)
    process = Path("/proc", str(server.process.pid))
    status = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines())
    descriptors = len(list((process / "fd").iterdir()))  # before the metrics, whose own connection would count
    metrics = server.metrics()
    return {
        "threads": int(status["Threads"]),
        "descriptors": descriptors,
        **{name: metrics[name] for name in GAUGES},
        "rss_kib": int(status["VmRSS"].split()[0]),
    }


def moments_met(metrics: dict[str, float]) -> dict[str, float]:
    """Where the aborts caught the requests that were admitted, from the server's own counters."""
    ended = {name: metrics[f'slm_requests_total{{outcome="{name}"}}'] for name in ("ok", "cancelled")}
    with_slot, with_token = (metrics[f"slm_{name}_seconds_count"] for name in ("queue_wait", "time_to_first_token"))
    return {
        "waiting": sum(ended.values()) - with_slot,
        "in prefill": with_slot - with_token,
        "decoding": with_token - ended["ok"],
        "complete": ended["ok"],
    }


def cpu_share(server: Server) -> float:
    """Share of one core that the idle process uses."""

    def used() -> float:
        fields = Path("/proc", str(server.process.pid), "stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    before = used()
    time.sleep(IDLE_S)
    return (used() - before) / IDLE_S


def verdicts(states: list[dict[str, float]], idle: float) -> dict[str, bool]:
    before, first, second = states
    same = [name for name in before if name != "rss_kib"]
    return {
        **{f"{name} as before": before[name] == first[name] == second[name] for name in same},
        f"memory grew less than {GROWTH_KIB} KiB in round 2": second["rss_kib"] - first["rss_kib"] < GROWTH_KIB,
        f"idle CPU below {IDLE_SHARE:.1%}": idle < IDLE_SHARE,
    }


def main() -> int:
    """Returns 1 when something was left behind."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--times", type=int, default=500, help="aborted, and as many complete requests, in each round")
    options = parser.parse_args()
    where, moments = environment.describe(), random.Random(1)
    settings: dict[str, Any] = {"fake_token_latency_s": 0.002, "fake_ttft_s": 0.004, "log_level": "WARNING"}
    with serving(engine="fake", **settings) as server:
        abort(server, WAVE, moments)
        complete(server, WAVE)
        states = [snapshot(server)]
        for _ in range(2):
            abort(server, options.times, moments)
            complete(server, options.times)
            states.append(snapshot(server))
        met, idle = moments_met(server.metrics()), cpu_share(server)
    print(f"{'':<28}{'before':>10}{'round 1':>10}{'round 2':>10}")
    for name in states[0]:
        print(f"{name:<28}" + "".join(f"{state[name]:>10g}" for state in states))
    print(f"requests by where they ended: {met}\nidle CPU over {IDLE_S:g} s: {idle:.2%} of a core")
    clean = verdicts(states, idle)
    for name, held in clean.items():
        print(f"{name}: {'yes' if held else 'NO'}")
    result = {"environment": where, "states": states, "moments": met, "idle_cpu_share": idle, "clean": clean}
    print(environment.write("leaks", result))
    return 0 if all(clean.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
