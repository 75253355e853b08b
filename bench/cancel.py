"""How long after the client's close the engine hears of it and the slot is another's; stalled readers; shutdown.

The server is the real one with one slot and a fake engine that tells its times (see clocked.py).
"""

import argparse
import contextlib
import random
import socket
import statistics
import struct
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import client
import environment
from clocked import COMMAND, WAIT_S, Notes
from servers import HOST, Server, serving

STEP_MS = 2.0
LIMIT_MS = 2.0 + STEP_MS
DEADLINE_S, DRAIN_S = 4.0, 2.0
DEADLINE_SLACK_S, EXIT_SLACK_S = 0.1, 1.0
CASES = [(how, stream) for how in ("FIN", "RST") for stream in (True, False)]


def ask(port: int, stream: bool, receive_buffer: int | None = None) -> socket.socket:
    """A request for endless text, sent and not read."""
    connection = socket.socket()
    if receive_buffer is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    connection.connect((HOST, port))
    payload: dict[str, object] = {"model": "fake", "prompt": "on and on", "max_tokens": 900_000, "stream": stream}
    connection.sendall(client.post("/v1/completions", payload))
    return connection


def leave(connection: socket.socket, how: str) -> float:
    """Close with a FIN or a RST. Returns the time just before."""
    if how == "RST":
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        connection.recv(1 << 20)  # closing with unread bytes would send a RST
    now = time.perf_counter()
    connection.close()
    return now


def cancels(times: int) -> list[dict[str, Any]]:
    """Every request waits behind the one before it, whose client leaves at a random moment."""
    cases = CASES * times
    random.Random(1).shuffle(cases)
    found: dict[tuple[str, bool], list[tuple[float, float]]] = {case: [] for case in CASES}
    settings = {"fake_token_latency_s": STEP_MS / 1000, "max_tokens_limit": 900_000, "log_level": "ERROR"}
    with serving(COMMAND, pipe_output=True, engine="fake", **settings) as server:
        notes = Notes(server)
        running = ask(server.port, cases[0][1])
        notes.next("add")
        for case, following in zip(cases, [*cases[1:], cases[0]], strict=True):
            waiting = ask(server.port, following[1])
            time.sleep(random.uniform(0.005, 0.02))
            left = leave(running, case[0])
            found[case].append((notes.next("cancel") - left, notes.next("add") - left))
            running = waiting
        running.close()
    return [row(case, found[case]) for case in CASES]


def row(case: tuple[str, bool], times: Sequence[tuple[float, float]]) -> dict[str, Any]:
    def spread(values: Sequence[float]) -> dict[str, float]:
        quantiles = {f"p{share}": client.quantile(values, share / 100) for share in (95, 99)}
        return {"p50": statistics.median(values), **quantiles, "max": max(values)}

    milliseconds = [[value * 1000 for value in pair] for pair in times]
    cancel, slot = zip(*milliseconds, strict=True)
    name = f"{case[0]}, {'streaming' if case[1] else 'not streaming'}"
    return {"case": name, "times": len(times), "cancel_ms": spread(cancel), "slot_taken_ms": spread(slot)}


def stalled(server: Server, connection: socket.socket) -> bool:
    """Whether the server has bytes for this connection that the kernel can't get rid of."""

    def unsent() -> int:
        ends = f":{server.port:04X} ", f":{connection.getsockname()[1]:04X} "
        lines = [line for line in Path("/proc/net/tcp").read_text().splitlines() if all(end in line for end in ends)]
        line = next(line for line in lines if line.index(ends[0]) < line.index(ends[1]))
        return int(line.split()[4].partition(":")[0], 16)

    before = unsent()
    time.sleep(0.3)
    return unsent() == before > 0


def stalled_readers() -> dict[str, float]:
    """Seconds to the deadline and to the end of the process, while a reader takes nothing. Raises when one reads."""
    settings = {"fake_token_latency_s": 0.0002, "max_tokens_limit": 900_000, "log_level": "ERROR"}
    settings |= {"request_timeout_s": DEADLINE_S, "drain_s": DRAIN_S}
    found = {}
    with serving(COMMAND, pipe_output=True, engine="fake", **settings) as server:
        notes = Notes(server)
        for measured in ("deadline_s", "exit_s"):
            began = time.perf_counter()
            with ask(server.port, True, receive_buffer=4096) as connection:
                notes.next("add")
                time.sleep(1.0)
                if not stalled(server, connection):
                    raise RuntimeError("the reader is not stalled")
                if measured == "exit_s":
                    began = time.perf_counter()
                    server.process.terminate()
                found[measured] = notes.next("cancel") - began
                if measured == "exit_s":
                    server.process.wait(WAIT_S)
                    found[measured] = time.perf_counter() - began
    return found


def main() -> int:
    """Returns 1 when a limit was missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--times", type=int, default=200, help="cancels of each kind")
    options = parser.parse_args()
    where = environment.describe()
    rows, slow = cancels(options.times), stalled_readers()
    print(f"{'':<22}{'to the cancel: p50, p95, p99, max ms':>38}{'to the next in its slot':>34}")
    for one in rows:
        cells = ["  ".join(f"{value:6.2f}" for value in one[key].values()) for key in ("cancel_ms", "slot_taken_ms")]
        print(f"{one['case']:<22}{cells[0]:>38}{cells[1]:>34}")
    print(f"stalled reader: slot free after {slow['deadline_s']:.2f} s (deadline {DEADLINE_S:g} s)")
    print(f"stalled reader: process ended {slow['exit_s']:.2f} s after SIGTERM (drain {DRAIN_S:g} s)")
    kept = {
        f"99 % of the cancels within {LIMIT_MS:g} ms": all(one["slot_taken_ms"]["p99"] <= LIMIT_MS for one in rows),
        f"slot free within {DEADLINE_SLACK_S:g} s of the deadline": slow["deadline_s"] <= DEADLINE_S + DEADLINE_SLACK_S,
        f"ended within {EXIT_SLACK_S:g} s of the drain": slow["exit_s"] <= DRAIN_S + EXIT_SLACK_S,
    }
    for limit, held in kept.items():
        print(f"{limit}: {'yes' if held else 'NO'}")
    print(environment.write("cancel", {"environment": where, "table": rows, "stalled_reader": slow, "kept": kept}))
    return 0 if all(kept.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
