"""Where and when a measurement was made, and the file that it is written to."""

import datetime
import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = Path(__file__).resolve().parent / "results"
PACKAGES = ("slim-serve", "hypercorn", "trio", "h11", "uvicorn", "fastapi", "llama-cpp-python", "numpy")

_LIST_VERSIONS = """
import json, sys
from importlib import metadata
found = {d.metadata["Name"].lower().replace("_", "-"): d.version for d in metadata.distributions()}
print(json.dumps({"python": sys.version.split()[0]} | {n: found[n] for n in sys.argv[1:] if n in found}))
"""


def describe() -> dict[str, Any]:
    """The machine, the versions, the commit, the load before the run and the command."""
    changed = "+changes" if _git("status", "--porcelain", "--", "slim", "bench/*.py") else ""
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": ["python", *sys.argv],
        "commit": _git("rev-parse", "HEAD") + changed,
        "cpu": _line("/proc/cpuinfo", "model name"),
        "cores": len(os.sched_getaffinity(0)),
        "memory": _line("/proc/meminfo", "MemTotal"),
        "kernel": platform.platform(),
        "load_average": os.getloadavg(),
        "versions": versions(sys.executable),
    }


def versions(python: str) -> dict[str, str]:
    """Versions of Python and of the packages that matter, in the environment of that interpreter."""
    output = subprocess.run([python, "-c", _LIST_VERSIONS, *PACKAGES], capture_output=True, check=True, timeout=30)
    return dict(json.loads(output.stdout))


def write(name: str, result: dict[str, Any]) -> Path:
    """Write `results/NAME.json` and return its path."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return path


def _git(*arguments: str) -> str:
    command = ["git", "--no-optional-locks", "-C", str(ROOT), *arguments]
    output = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    return output.stdout.strip()


def _line(path: str, name: str) -> str:
    lines = Path(path).read_text(encoding="utf-8").splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), "unknown")
