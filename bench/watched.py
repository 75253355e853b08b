"""`slim-serve serve` under a trio Instrument: it prints the event-loop time before the first bytes of each stream.

It is the CPU time of all tasks of the process together, hypercorn's and the run loop's too, from the moment when the
idle loop woke for the request. One request at a time, or the figures mean nothing.
"""

import functools
import sys
import time
from typing import Any

import trio
from trio.abc import Instrument

from slim import cli
from slim.web.app import App
from slim.web.http import Reply


class Busy(Instrument):
    """Adds up the seconds that tasks run."""

    def __init__(self) -> None:
        self.total = self.at_idle = 0.0
        self.serving = 0
        self._began = 0.0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._began = time.thread_time()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        self.total += time.thread_time() - self._began

    def before_io_wait(self, timeout: float) -> None:
        if timeout > 0 and not self.serving:
            self.at_idle = self.total

    @property
    def now(self) -> float:
        """The running step included."""
        return self.total + time.thread_time() - self._began


def main() -> int:
    busy = Busy()
    call, events = App.__call__, Reply.events

    async def watched_call(self: App, *arguments: Any) -> None:
        is_request = arguments[0]["type"] == "http"
        busy.serving += is_request
        try:
            await call(self, *arguments)
        finally:
            busy.serving -= is_request

    async def watched_events(self: Reply, data: bytes, *, last: bool) -> None:
        if self.status == 499:
            print(busy.now - busy.at_idle, flush=True)
        await events(self, data, last=last)

    App.__call__ = watched_call  # type: ignore[method-assign]
    Reply.events = watched_events  # type: ignore[method-assign]
    trio.run = functools.partial(trio.run, instruments=[busy])
    return cli.main(sys.argv[1:])


if __name__ == "__main__":
    raise SystemExit(main())
