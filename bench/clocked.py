"""A server whose fake engine says on stdout when it is told to add and to cancel, and the reader of what it says.

`python clocked.py serve` is `slim-serve serve` with one slot and that engine, of SLM_FAKE_TOKEN_LATENCY_S per step.
Both processes read the same clock: CLOCK_MONOTONIC, one for the whole machine on Linux.
"""

import os
import queue
import sys
import threading
import time
from collections.abc import Callable

from attrs import define, field
from servers import Server

COMMAND = (sys.executable, __file__)
WAIT_S = 30.0


def serve() -> None:
    """Run the command line with that engine in the place of any other."""
    from slim import cli, compose
    from slim.config import Settings
    from slim.engines.fake import FakeEngine
    from slim.types import EngineJob

    class Clocked(FakeEngine):
        def add(self, job: EngineJob) -> None:
            super().add(job)
            note("add")

        def cancel(self, job_id: str) -> None:
            note("cancel")
            super().cancel(job_id)

    def note(what: str) -> None:
        os.write(1, f"{what} {time.perf_counter_ns()}\n".encode())

    def engine_maker(settings: Settings, model: object) -> Callable[[], FakeEngine]:
        return lambda: Clocked(slots=1, context=10**6, step_seconds=lambda *work: settings.fake_token_latency_s)

    compose.engine_maker = engine_maker  # type: ignore[attr-defined]
    cli.main()


@define
class Notes:
    """What the engine says."""

    server: Server
    _lines: queue.Queue[bytes] = field(factory=queue.Queue)

    def __attrs_post_init__(self) -> None:
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self.server.process.stdout or ():
            self._lines.put(line)

    def next(self, what: str) -> float:
        """Seconds of the next note, which must be this one. Raises queue.Empty after WAIT_S."""
        name, at = self._lines.get(timeout=WAIT_S).split()
        if name != what.encode():
            raise RuntimeError(f"the engine did {name.decode()} and not {what}")
        return int(at) / 1e9


if __name__ == "__main__":
    serve()
