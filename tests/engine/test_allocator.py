import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import surestep
from surestep.engine.allocator import Allocator, read_allocator
from tests.needs import needs_compiler
from tests.tiny import FACTS, GPU, decide

ALLOCATOR = read_allocator()
needs_glibc = pytest.mark.skipif(ALLOCATOR.name != "glibc", reason="malloc is not glibc's here")
needs_huge_pages = pytest.mark.skipif(
    ALLOCATOR.name != "glibc" or not ALLOCATOR.huge_pages,
    reason="the kernel gives no huge pages on request: write madvise to "
    "/sys/kernel/mm/transparent_hugepage/enabled",
)

# Activations of 40 MB in blocks of 4 MB. The thresholds glibc starts with are fixed first: it would
# raise them by what is freed, and how often it returns the activations would differ by process.
TRAIN = """
import ctypes, gc, json, os, resource, sys
for option in (-3, -1):
    ctypes.CDLL(None).mallopt(option, 128 * 1024)
import torch
from torch import nn
import surestep

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def resident_mb():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize() / 2**20

def heap_lines():
    is_heap = False
    for line in open("/proc/self/smaps"):
        first, *rest = line.split()
        if "-" in first:
            is_heap = rest[-1] == "[heap]"
        elif is_heap:
            yield first, rest

def huge_mb():
    return sum(int(rest[0]) for first, rest in heap_lines() if first == "AnonHugePages:") / 1024

def heap_mb():
    return sum(int(rest[0]) for first, rest in heap_lines() if first == "Size:") / 1024

def train(setting, folder):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 4096), *[nn.Tanh() for _ in range(9)], nn.Linear(4096, 2))
    x = torch.randn(256, 8)
    y = (x[:, 0] > 0).long()
    config = surestep.Config.from_options(
        {"max_steps": 12, "batch_size": 256, "logging.progress": "quiet", "cpu_allocator": setting}
    )
    task = surestep.Task(net, nn.CrossEntropyLoss(), train=(x, y))
    session = surestep.prepare(task, config, run=folder)
    counts = []
    for _ in session.steps():
        counts.append(faults())
    used, huge = resident_mb(), huge_mb()
    session.close()
    gc.collect()
    print(json.dumps({
        "faults": (counts[-1] - counts[5]) / 6,
        "returned_mb": used - resident_mb(),
        "huge_mb": huge,
        "heap_mb": heap_mb(),
        "weights": [value.hex() for value in net[-1].weight.flatten().tolist()],
    }))

for setting in sys.argv[2:]:
    if os.fork() == 0:  # memory as after the start of a process
        train(setting, sys.argv[1] + "/" + setting)
        sys.stdout.flush()
        os._exit(0)
    assert os.wait()[1] == 0
"""


def lines_of(source, *arguments, **environment):
    done = subprocess.run(
        [sys.executable, "-c", source, *map(str, arguments)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


def run(source, **environment):
    return json.loads(lines_of(source, **environment)[-1])


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The measurements of a process for each setting, all forks of one that has imported torch."""
    folder = tmp_path_factory.mktemp("runs")
    values = ["default", "retain", *(["huge_pages"] if ALLOCATOR.huge_pages else [])]
    lines = lines_of(TRAIN, folder, *values)[-len(values) :]
    return dict(zip(values, map(json.loads, lines), strict=True))


@needs_glibc
def test_steps_with_retained_memory_have_no_page_faults(trained):
    assert trained["default"]["faults"] > 2000  # otherwise the test shows nothing
    # A few remain on a busy machine, because the kernel reclaims pages.
    assert trained["retain"]["faults"] < trained["default"]["faults"] / 10


@needs_glibc
def test_allocator_does_not_change_results(trained):
    assert trained["default"]["weights"] == trained["retain"]["weights"]


@needs_glibc
def test_retained_memory_is_returned_when_the_session_closes(trained):
    assert trained["retain"]["returned_mb"] > 20


@needs_huge_pages
def test_activations_use_huge_pages_and_the_rest_is_returned(trained):
    used = trained["huge_pages"]
    assert used["weights"] == trained["default"]["weights"]
    assert used["huge_mb"] >= 30  # the activations take 40 MB
    assert trained["retain"]["huge_mb"] == 0
    assert used["faults"] < trained["default"]["faults"] / 10
    assert used["returned_mb"] > 20
    assert used["heap_mb"] < 1024  # while the session was open, gigabytes were reserved


READ = """
import json
from surestep.engine.allocator import read_allocator
print(json.dumps(read_allocator()[:2]))
"""


@needs_glibc
def test_environment_settings_of_the_allocator_are_read():
    assert run(READ) == ["glibc", []]
    environment = {
        "MALLOC_TRIM_THRESHOLD_": "1000000",
        "GLIBC_TUNABLES": "glibc.malloc.arena_max=2",
    }
    assert run(READ, **environment) == ["glibc", ["GLIBC_TUNABLES", "MALLOC_TRIM_THRESHOLD_"]]
    assert run(READ, GLIBC_TUNABLES="glibc.rtld.nns=4") == ["glibc", []]


@needs_glibc
@pytest.mark.slow("needs a compiler")
def test_preloaded_allocator_is_named(tmp_path):
    needs_compiler("gcc")
    source, library = tmp_path / "own.c", tmp_path / "libownmalloc.so.1"
    source.write_text(
        "#include <stddef.h>\n"
        "extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t);\n"
        "void *malloc(size_t size) { return __libc_malloc(size); }\n"
        "void *calloc(size_t count, size_t size) { return __libc_calloc(count, size); }\n"
    )
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, source], check=True)
    assert run(READ, LD_PRELOAD=str(library)) == ["libownmalloc.so.1", []]


@needs_glibc
def test_python_of_the_system_has_the_allocator_of_glibc():
    """Debian's is at a fixed address, so it has a stub of malloc, which is not in glibc's file."""
    python, source = Path("/usr/bin/python3"), Path(surestep.__file__).parents[1]
    check = "import sys; sys.exit(sys.version_info < (3, 11))"
    if not python.exists() or subprocess.run([python, "-c", check]).returncode:
        pytest.skip("the system has no Python 3.11 or later")
    code = f"import sys\nsys.path.insert(0, {str(source)!r})\n{READ}"
    found = subprocess.run([python, "-IS", "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(found.stdout) == ["glibc", []]


@needs_huge_pages
def test_limited_address_space_disables_huge_pages():
    limit = "import resource; resource.setrlimit(resource.RLIMIT_AS, (2**36, 2**36))\n"
    source = READ.replace("[:2]", ".huge_pages")
    assert run(source) is True
    assert run(limit + source) is False


@pytest.mark.parametrize(
    ("system", "value", "reason"),
    [
        ({}, "retain", "uses freed memory again"),
        ({"huge_pages": True}, "huge_pages", "on huge pages"),
        ({"name": "libjemalloc.so.2"}, "default", "libjemalloc.so.2"),
        ({"settings": ("MALLOC_ARENA_MAX",)}, "default", "MALLOC_ARENA_MAX is set"),
    ],
)
def test_plan_only_changes_a_glibc_allocator_without_settings(system, value, reason):
    plan = decide({}, replace(FACTS, allocator=Allocator(**system)))
    assert plan.cpu_allocator == value
    assert reason in plan.reason("cpu_allocator")


def test_plan_does_not_change_the_allocator_on_a_gpu():
    assert decide({}, GPU).cpu_allocator == "default"
    assert decide({"cpu_allocator": "retain"}, GPU).cpu_allocator == "retain"
