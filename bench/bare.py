"""The least that hypercorn does for a request with a body, seen by `watched`: an app that reads and answers.

It prints what `watched` prints. Takes its port from SLM_PORT, as a server of `servers.serving`.
"""

import functools
import os
from typing import Any

import trio
from hypercorn.config import Config
from hypercorn.trio import serve
from watched import Busy

HEAD = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]}


async def app(busy: Busy, scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "lifespan":
        for name in ("startup", "shutdown"):
            await receive()
            await send({"type": f"lifespan.{name}.complete"})
        return
    busy.serving += 1
    while (await receive()).get("more_body"):
        pass
    busy.at_body = busy.now
    await send(HEAD)
    if scope["method"] == "POST":
        busy.show()
    await send({"type": "http.response.body", "body": b"data: [DONE]\n\n", "more_body": False})
    busy.serving -= 1


async def main(busy: Busy) -> None:
    config = Config()
    config.bind = [f"127.0.0.1:{os.environ['SLM_PORT']}"]
    await serve(functools.partial(app, busy), config)  # type: ignore[arg-type]


if __name__ == "__main__":
    busy = Busy()
    trio.run(main, busy, instruments=[busy])
