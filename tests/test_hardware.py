"""What the machine offers: cores and memory, cut by the limits of a container."""

import pytest

import slim.hardware
from slim.hardware import default_threads, describe_machine, usable_cores

GIB = 1024**3


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A pretended Linux with 8 cores and 16 GiB; returns its root, and `limit` writes a cgroup's file."""
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(8)), raising=False)
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("3:cpuset:/\n0::/system.slice/slim.service\n")
    (tmp_path / "proc/cpuinfo").write_text("processor\t: 0\nmodel name\t: Pretended 9000\n")
    (tmp_path / "proc/meminfo").write_text("MemTotal:       16777216 kB\nMemAvailable:    8388608 kB\n")
    (tmp_path / "sys/fs/cgroup/system.slice/slim.service").mkdir(parents=True)
    return tmp_path


def limit(machine, group, **files):
    for name, text in files.items():
        (machine / "sys/fs/cgroup" / group / name.replace("_", ".")).write_text(text + "\n")


def test_an_unlimited_machine_is_described_as_it_is(machine):
    described = describe_machine(machine)
    assert (described.cpu, described.cores) == ("Pretended 9000", 8)
    assert (described.memory_total, described.memory_available) == (16 * GIB, 8 * GIB)


@pytest.mark.parametrize("group", ["", "system.slice", "system.slice/slim.service"])
def test_a_quota_of_the_own_group_or_of_one_above_cuts_the_cores(machine, group):
    limit(machine, group, cpu_max="250000 100000")
    assert usable_cores(machine) == 2


def test_a_quota_of_less_than_a_core_leaves_one(machine):
    limit(machine, "system.slice", cpu_max="50000 100000")
    assert usable_cores(machine) == 1


def test_a_group_without_quota_or_with_a_larger_one_cuts_nothing(machine):
    limit(machine, "", cpu_max="max 100000")
    limit(machine, "system.slice", cpu_max="3200000 100000")
    assert usable_cores(machine) == 8


def test_memory_is_cut_by_the_limit_of_a_group(machine):
    limit(machine, "system.slice", memory_max=str(4 * GIB), memory_current=str(GIB))
    limit(machine, "", memory_max="max", memory_current=str(9 * GIB))
    described = describe_machine(machine)
    assert (described.memory_total, described.memory_available) == (4 * GIB, 3 * GIB)


def test_a_memory_limit_above_what_the_machine_has_cuts_nothing(machine):
    limit(machine, "", memory_max=str(64 * GIB), memory_current=str(GIB))
    described = describe_machine(machine)
    assert (described.memory_total, described.memory_available) == (16 * GIB, 8 * GIB)


def test_a_system_without_proc_and_affinity_is_described_with_what_is_known(tmp_path, monkeypatch):
    monkeypatch.delattr("os.sched_getaffinity", raising=False)
    monkeypatch.setattr("os.cpu_count", lambda: 6)
    described = describe_machine(tmp_path)
    assert described.cores == 6
    assert described.cpu
    assert described.memory_total is None


@pytest.mark.parametrize(("cores", "replicas", "threads"), [(8, 1, 8), (8, 3, 2), (2, 4, 1)])
def test_replicas_share_the_cores(monkeypatch, cores, replicas, threads):
    monkeypatch.setattr(slim.hardware, "usable_cores", lambda: cores)
    assert default_threads(replicas) == threads
