"""`slim-serve serve` under a trio Instrument: two event-loop times of each stream, until its body was there and until
its first bytes went out.

They are the CPU time of all tasks of the process together, hypercorn's too, from the moment when the idle loop woke for
the request. One request at a time with a pause between, or the figures mean nothing.
"""

import functools
import sys
import time
from typing import Any

import trio
from trio.abc import Instrument

from slim import cli
from slim.web.app import App
from slim.web.http import Reply, Request


class Busy(Instrument):
    """Adds up the seconds that tasks run."""

    def __init__(self) -> None:
        self.total = self.at_idle = self.at_body = 0.0
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

    def show(self) -> None:
        print(self.at_body - self.at_idle, self.now - self.at_idle, flush=True)


def main() -> int:
    busy = Busy()
    call, body, events = App.__call__, Request.body, Reply.events

    async def watched_call(self: App, *arguments: Any) -> None:
        is_request = arguments[0]["type"] == "http"
        busy.serving += is_request
        try:
            await call(self, *arguments)
        finally:
            busy.serving -= is_request

    async def watched_body(self: Request, *arguments: Any) -> bytes:
        data = await body(self, *arguments)
        busy.at_body = busy.now
        return data

    async def watched_events(self: Reply, data: bytes, *, last: bool) -> None:
        if self.status == 499:
            busy.show()
        await events(self, data, last=last)

    App.__call__ = watched_call  # type: ignore[method-assign]
    Request.body = watched_body  # type: ignore[method-assign]
    Reply.events = watched_events  # type: ignore[method-assign]
    trio.run = functools.partial(trio.run, instruments=[busy])
    return cli.main(sys.argv[1:])


if __name__ == "__main__":
    raise SystemExit(main())
