"""A real server process on loopback, as a user starts it."""

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

import httpx

WAIT = 60.0
"""Seconds until a process that should have answered counts as hung."""


WITHOUT_NETWORK = (
    sys.executable,
    "-c",
    "import sys, os\n"
    "def hook(event, args):\n"
    "    if event == 'socket.connect' or (event == 'socket.getaddrinfo' and args[0] != '127.0.0.1'):\n"
    "        os._exit(77)\n"
    "sys.addaudithook(hook)\n"
    "from slim.cli import main; sys.exit(main(['serve']))\n",
)
"""`slim-serve serve` in a process that an outbound connect, or a name looked up, would end."""


def clean_environment() -> dict[str, str]:
    """This process's environment without its settings."""
    return {name: value for name, value in os.environ.items() if not name.startswith("SLM_")}


class Server:
    """`slim-serve serve` with these settings, on a free port. Ended at the end of the `with` block."""

    def __init__(self, folder: Path, command: Sequence[str] | None = None, **settings: object) -> None:
        environment = clean_environment()
        environment |= {f"SLM_{name.upper()}": str(value) for name, value in settings.items()}
        environment.setdefault("SLM_PORT", "0")
        command = command or [sys.executable, "-m", "slim", "serve"]
        self.process = subprocess.Popen(command, cwd=folder, env=environment, stderr=subprocess.PIPE, text=True)
        self.lines: list[str] = []
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as stderr:
            for line in stderr:
                with self._news:
                    self.lines.append(line.rstrip("\n"))
                    self._news.notify_all()
        with self._news:
            self.lines.append("")
            self._news.notify_all()

    def wait_for(self, text: str) -> str:
        """The first log line with this text; fails when the process ends without it."""

        def found() -> list[str]:
            return [line for line in self.lines if text in line or not line]

        with self._news:
            assert self._news.wait_for(found, WAIT), f"no {text!r} in {self.lines}"
            line = found()[0]
        assert text in line, f"the process ended: {self.lines}"
        return line

    @property
    def url(self) -> str:
        return self.wait_for("listening on").rpartition(" ")[2]

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def wait_ready(self) -> "Server":
        with httpx.Client(base_url=self.url) as client:
            while client.get("/readyz").status_code != 200:
                assert self.process.poll() is None, self.lines
        return self

    def metric(self, name: str) -> float:
        """A sample by its full name with labels, 0 when it isn't there."""
        for line in httpx.get(self.url + "/metrics").text.splitlines():
            if line.startswith(name + " "):
                return float(line.rpartition(" ")[2])
        return 0.0

    def wait_metric(self, name: str, value: float) -> None:
        """Ask until the sample has this value."""
        for _ in range(2000):
            if self.metric(name) == value:
                return
            threading.Event().wait(0.005)
        raise AssertionError(f"{name} is {self.metric(name)} and not {value}")

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def exit_code(self) -> int:
        code = self.process.wait(WAIT)
        self._reader.join(WAIT)
        return code

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.exit_code()


@contextmanager
def raw_request(port: int, body: bytes, receive_buffer: int | None = None) -> Iterator[socket.socket]:
    """A completion request on a socket of its own, sent and not yet read."""
    with socket.socket() as connection:
        if receive_buffer is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        connection.settimeout(WAIT)
        connection.connect(("127.0.0.1", port))
        head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body)
        connection.sendall(head + body)
        yield connection
