"""What the machine offers this process: cores, memory, names. Knows nothing of settings or engines.

Containers and systemd units limit a process through cgroups (version 2), so the limits of its own group and of every
group above count, not only what the machine has.
"""

import os
import platform
from collections.abc import Iterator
from pathlib import Path

from attrs import frozen

_ROOT = Path("/")


@frozen
class Machine:
    """What `slim-serve info` prints of the machine. Sizes are bytes; None: not known on this system."""

    system: str
    cpu: str
    cores: int
    """Cores that this process may use, at least 1."""
    memory_total: int | None
    memory_available: int | None
    python: str


def describe_machine(root: Path = _ROOT) -> Machine:
    """Look at the machine now. `root` is where `proc` and `sys` are found."""
    total, available = _memory(root)
    return Machine(
        system=platform.platform(),
        cpu=_proc_value(root / "proc/cpuinfo", "model name") or platform.processor() or platform.machine(),
        cores=usable_cores(root),
        memory_total=total,
        memory_available=available,
        python=f"{platform.python_implementation()} {platform.python_version()}",
    )


def usable_cores(root: Path = _ROOT) -> int:
    """Cores that this process may use, at least 1: its affinity, cut by a cgroup's `cpu.max` (rounded down)."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # not Linux
        cores = os.cpu_count() or 1
    for group in _cgroups(root):
        quota, _, period = _read(group / "cpu.max").partition(" ")
        if quota.isdigit() and period.strip().isdigit():
            cores = min(cores, int(quota) // int(period))
    return max(1, cores)


def default_threads(replicas: int) -> int:
    """Threads for each of so many replicas, at least 1: together the usable cores where they suffice."""
    return max(1, usable_cores() // replicas)


def _memory(root: Path) -> tuple[int | None, int | None]:
    total, available = (
        int(text.split()[0]) * 1024 if text else None
        for text in (_proc_value(root / "proc/meminfo", key) for key in ("MemTotal", "MemAvailable"))
    )
    if total is None or available is None:
        return total, available
    for group in _cgroups(root):
        limit, used = _read(group / "memory.max").strip(), _read(group / "memory.current").strip()
        if limit.isdigit() and used.isdigit():
            total = min(total, int(limit))
            available = min(available, max(0, int(limit) - int(used)))
    return total, available


def _cgroups(root: Path) -> Iterator[Path]:
    """The process's own group and all above it; nothing where there is no cgroup version 2."""
    top = root / "sys/fs/cgroup"
    for line in _read(root / "proc/self/cgroup").splitlines():
        if line.startswith("0::/"):
            group = top / line.removeprefix("0::/")
            yield from (group, *(parent for parent in group.parents if parent.is_relative_to(top)))


def _proc_value(path: Path, key: str) -> str:
    """The first value of `key` in a `key: value` file of proc, or empty."""
    for line in _read(path).splitlines():
        name, _, value = line.partition(":")
        if name.strip() == key:
            return value.strip()
    return ""


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
