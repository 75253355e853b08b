"""Virtual environments for the programs under `tests/clients`: one for each file of requirements, made once.

They live in pytest's own cache folder, so a second session finds them; `pytest --cache-clear` removes them. Making one
needs a package index. Running a program in one needs nothing but loopback, and an attempt at more ends it.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from attrs import frozen

CLIENTS = Path(__file__).parents[1] / "clients"
PROGRAMS = CLIENTS / "programs"
INSTALL = 600.0
"""Seconds for one installation."""
RUN = 240.0
"""Seconds for one program."""


@frozen
class Environment:
    """A folder made by `venv` that holds what one file of requirements names."""

    folder: Path

    def run(self, *command: str | Path, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run a Python program, or `-m` and a module, in it, on loopback only and with these variables alone."""
        guarded = [self.folder / "bin" / "python", PROGRAMS / "loopback_only.py", *command]
        return self.execute(guarded, cwd, **variables)

    def execute(self, command: Sequence[str | Path], cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run any command with this environment's programs first on the path."""
        variables |= {"HOME": str(cwd), "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}"}
        return subprocess.run(command, cwd=cwd, env=variables, capture_output=True, text=True, timeout=RUN)

    def findings(self, program: str, url: str, cwd: Path) -> dict[str, Any]:
        """What a client program printed about the server at this URL."""
        return read_findings(self.run(PROGRAMS / program, url, cwd=cwd))


def read_findings(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """The JSON object on the last line of standard output; fails with the program's errors when there is none."""
    assert done.returncode == 0, done.stderr[-4000:]
    findings: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return findings


class Environments:
    """Makes the environments of one pytest session, each when it is first asked for."""

    def __init__(self, cache: Path) -> None:
        self.cache = cache

    def get(self, name: str) -> Environment:
        """The environment of `requirements/<name>.txt`. Skips the test when it can't be installed."""
        requirements = CLIENTS / "requirements" / f"{name}.txt"
        digest = hashlib.sha256(requirements.read_bytes() + sys.version.encode()).hexdigest()[:12]
        folder = self.cache / f"{name}-{digest}"
        if not (folder / "complete").exists():
            shutil.rmtree(folder, ignore_errors=True)
            _command([sys.executable, "-m", "venv", "--without-pip", folder], name)
            pip = [sys.executable, "-m", "pip", "--python", folder / "bin" / "python", "install", "--no-compile"]
            _command([*pip, "--quiet", "--disable-pip-version-check", "--requirement", requirements], name)
            (folder / "complete").touch()
        return Environment(folder)

    def get_node(self) -> Environment:
        """The environment of `openai-node`, with the program and the packages of `programs/package.json`."""
        environment = self.get("openai-node")
        wanted = PROGRAMS / "package.json"
        copied = environment.folder / "package.json"
        if not copied.exists() or copied.read_bytes() != wanted.read_bytes():
            shutil.copy(wanted, copied)
            npm = [environment.folder / "bin" / "npm", "install", "--ignore-scripts", "--no-audit", "--no-fund"]
            try:
                _command([*npm, "--prefix", environment.folder], "openai-node")
            except BaseException:
                copied.unlink()
                raise
        shutil.copy(PROGRAMS / "openai_node.mjs", environment.folder)
        return environment


def _command(command: Sequence[str | Path], name: str) -> None:
    """One step of an installation, or a skipped test with the last line of its errors."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL)
    if done.returncode:
        reason = (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()[-1]
        pytest.skip(f"{name} can't be installed here: {reason}")
