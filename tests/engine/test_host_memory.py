"""The memory of this process, and the limits of the address space and of the container."""

import resource

import numpy as np
import pytest

from surestep.engine import host_memory
from surestep.engine.host_memory import limits_allocation, read_host_memory
from surestep.engine.plan.system import read_system
from tests.forked import fork

STATUS = "Name:\tpython\nVmSize:\t  4096 kB\nVmRSS:\t  2048 kB\n"
MACHINE = "MemTotal:  8388608 kB\nMemAvailable:  4194304 kB\nHugePages_Total: 0\n"
GIB = 2**30


@pytest.fixture
def system(tmp_path, monkeypatch):
    """Files of /proc and of cgroups; returns how to write one."""
    monkeypatch.setattr(host_memory, "_PROC", tmp_path / "proc")
    monkeypatch.setattr(host_memory, "_CGROUP", tmp_path / "cgroup")

    def write(name: str, text: str) -> None:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="ascii")

    write("proc/self/status", STATUS)
    write("proc/meminfo", MACHINE)
    return write


def test_numbers_are_those_of_this_process():
    array = np.ones(2**20)
    found = read_host_memory()
    assert array.nbytes < found.resident <= found.total
    assert found.resident <= found.address_space
    assert found.address_space_limit is None


def test_smallest_limit_of_the_cgroups_is_named(system):
    """A job of Slurm is in a cgroup below the container's."""
    system("proc/self/cgroup", "0::/job/step\n")
    system("cgroup/job/step/memory.max", "max\n")
    system("cgroup/job/memory.max", f"{GIB}\n")
    system("cgroup/job/memory.current", f"{GIB // 2}\n")
    system("cgroup/memory.max", f"{2 * GIB}\n")
    found = read_host_memory()
    assert (found.container_limit, found.container, found.room) == (GIB, GIB // 2, GIB // 2)
    assert "limited to 1.0 GiB (memory.max), and uses 512.0 MiB" in found.describe()


def test_first_version_of_cgroups_is_read(system):
    system("proc/self/cgroup", "9:memory:/docker/5\n4:cpu:/\n0::/\n")
    system("cgroup/memory/memory.limit_in_bytes", f"{3 * GIB}\n")
    system("cgroup/memory/memory.usage_in_bytes", f"{GIB}\n")
    assert read_host_memory().container_limit == 3 * GIB


@pytest.mark.parametrize("limit", [2**63 - 4096, 8 * GIB])
def test_limit_above_the_memory_of_the_machine_is_none(system, limit):
    system("proc/self/cgroup", "9:memory:/\n")
    system("cgroup/memory/memory.limit_in_bytes", f"{limit}\n")
    found = read_host_memory()
    assert found.container_limit is None
    assert found.room == 4 * GIB
    assert found.describe() == (
        "This process has 2.0 MiB on the host (RSS), and 4.0 GiB of 8.0 GiB are available."
    )


def test_plan_counts_with_the_memory_of_the_container(system):
    whole = read_system().memory
    system("proc/self/cgroup", "0::/\n")
    system("cgroup/memory.max", f"{GIB}\n")
    assert read_system().memory == GIB < whole


def test_system_without_these_files_is_read(system, tmp_path):
    (tmp_path / "proc/self/status").unlink()
    (tmp_path / "proc/meminfo").unlink()
    found = read_host_memory()
    assert (found.resident, found.total, found.room) == (None, None, None)
    assert "(RSS)." in found.describe()


def test_limit_of_the_address_space_is_named(tmp_path):
    def run() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (2**40, resource.RLIM_INFINITY))
        print(read_host_memory().describe())

    done = fork(tmp_path, (), run)
    assert "Its address space is limited to 1.0 TiB (RLIMIT_AS, ulimit -v)" in done.stdout


@pytest.mark.parametrize("limit", [resource.RLIMIT_AS, resource.RLIMIT_DATA, None])
def test_process_with_a_limit_may_be_denied_memory(tmp_path, limit):
    def run() -> None:
        if limit is not None:
            resource.setrlimit(limit, (2**40, resource.RLIM_INFINITY))
        print(limits_allocation())

    assert fork(tmp_path, (), run).stdout == f"{limit is not None}\n"


@pytest.mark.parametrize(("mode", "expected"), [(0, False), (1, False), (2, True)])
def test_system_that_accounts_strictly_may_deny_memory(system, mode, expected):
    system("proc/sys/vm/overcommit_memory", f"{mode}\n")
    assert limits_allocation() == expected
