"""Starts a server on a free loopback port, waits until it is ready, and stops it."""

import http.client
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from attrs import frozen
from environment import ROOT

HOST = "127.0.0.1"
START_S = 90.0
STOP_S = 20.0
SLIM = (sys.executable, "-m", "slim")
"""This checkout, on the interpreter that runs the benchmark."""


@frozen
class Server:
    """A running server."""

    process: subprocess.Popen[bytes]
    port: int

    def get(self, path: str) -> str:
        """The body of the answer. Raises OSError when there is none, or not with status 200."""
        connection = http.client.HTTPConnection(HOST, self.port, timeout=5)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            if response.status != 200:
                raise OSError(f"{path}: status {response.status}")
            return response.read().decode()
        finally:
            connection.close()

    def metrics(self) -> dict[str, float]:
        """All samples of `/metrics`, by name with labels."""
        lines = self.get("/metrics").splitlines()
        samples = (line.rpartition(" ") for line in lines if not line.startswith("#"))
        return {name: float(value) for name, _, value in samples}


def peer(python: str) -> tuple[str, ...]:
    """The command of slim-serve 0.1.1, installed in the environment of that interpreter."""
    return (str(Path(python).parent / "slim-serve"),)


@contextmanager
def serving(command: Sequence[str] = SLIM, pipe_output: bool = False, **settings: object) -> Iterator[Server]:
    """`COMMAND serve` with these settings, ready. Its log goes to a file; with `pipe_output` its stdout is a pipe.

    Raises RuntimeError with the end of the log when it does not get ready.
    """
    port = free_port()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SLM_")}
    environment |= {"PYTHONPATH": str(ROOT), "SLM_HOST": HOST, "SLM_PORT": str(port)}
    environment |= {f"SLM_{name.upper()}": str(value) for name, value in settings.items()}
    with tempfile.TemporaryDirectory() as folder, open(Path(folder, "log"), "w+b") as log:
        stdout = subprocess.PIPE if pipe_output else log
        process = subprocess.Popen([*command, "serve"], cwd=folder, env=environment, stdout=stdout, stderr=log)
        try:
            server = Server(process, port)
            if not ready(server):
                log.seek(0)
                raise RuntimeError(f"{command} did not get ready: {log.read().decode(errors='replace')[-2000:]}")
            yield server
        finally:
            stop(process)


def ready(server: Server) -> bool:
    deadline = time.monotonic() + START_S
    while server.process.poll() is None and time.monotonic() < deadline:
        try:
            server.get("/readyz")
        except OSError:
            time.sleep(0.05)
        else:
            return True
    return False


def stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])
