import gc
import logging
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path

import pytest

from tests.huge_pages import use_huge_pages
from tests.logs import Checks, caplog  # noqa: F401 - `caplog` is a fixture
from tests.needs import require
from tests.tiers import is_slow, libraries_of, may_have_slow
from tests.warm import share_warm_python, warm_python

ROOT = Path(__file__).parents[1]

# Processes that tests start can import `tests` from any working directory.
os.environ["PYTHONPATH"] = os.pathsep.join(
    [*filter(None, [os.environ.get("PYTHONPATH")]), str(ROOT)]
)
# Files of tests lie in memory where that has room: a disk takes milliseconds to delete a file.
MEMORY, ROOM = Path("/dev/shm"), 4 << 30
if "TMPDIR" not in os.environ and MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > ROOM:
    os.environ["TMPDIR"] = str(MEMORY)
    tempfile.tempdir = None  # it may have been asked for
# Each process would compile the package and the tests again: 0.6 s.
os.environ["PYTHONDONTWRITEBYTECODE"] = ""
sys.dont_write_bytecode = False
# torch.compile would start compilers in processes that import torch, and compile tests of vector
# instructions before it uses those that the processor names: 17 s where it has no cache yet.
os.environ |= {"TORCHINDUCTOR_COMPILE_THREADS": "1", "TORCHINDUCTOR_VEC_ISA_OK": "1"}
# torch asks for the host name of each IPv6 address that a store connects to: 127.0.0.1 has none in
# that form, so DNS is asked, and each lost packet takes 5 s by default.
os.environ.setdefault("RES_OPTIONS", "timeout:1")
# Shells make background processes ignore these signals, and a run does not handle ignored ones.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# From Python 3.14, workers would import the module of a test, which takes seconds, and data of a
# local class could not be sent. What differs is tested with a `multiprocessing_context`.
multiprocessing.set_start_method("fork", force=True)

logging.getLogger().addHandler(Checks())

# Files that kill, race or start processes: no two of them run at the same time.
ALONE = (
    "tests/laws/test_law_2_kills.py",
    "tests/laws/test_law_2_rollback_kills.py",
    "tests/laws/test_law_7_kills.py",
    "tests/torture/test_torture.py",
    "tests/multi_rank/",  # its files share the results of a launch
    "tests/record/checkpoint/test_concurrent_processes.py",
    "tests/cli/test_interrupt.py",
)
# Files whose slow tests call what starts processes by `sys.executable`.
WARM = (
    *("tests/cli/test_launch.py", "tests/cli/test_new.py", "tests/cli/test_search"),
    *("tests/cli/test_stop.py::test_signal_after_the_end_of_a_search", "tests/test_docs"),
    "tests/tuning/",
)


def pytest_configure(config):
    """Prepare a process that runs tests. The one that distributes them imports no torch: 3 s."""
    if config.getoption("numprocesses", None) and not hasattr(config, "workerinput"):
        if config.option.markexpr == "slow":
            share_warm_python()
        return
    import torch

    from tests.shortcuts import take_shortcuts

    # Two threads round differently than one, and the tests share their cores.
    torch.set_num_threads(1)
    take_shortcuts()


def group_of(nodeid):
    """Name the group of tests that run in order in one process: a file, or all of ALONE."""
    file = nodeid.split("::")[0]
    return "alone" if file.startswith(ALONE) else file


def pytest_ignore_collect(collection_path, config):
    """Do not import the files of the other tier: it takes time, and libraries may be missing."""
    path = collection_path.relative_to(config.rootpath).as_posix()
    match config.option.markexpr:
        case "not slow":
            return is_slow(f"{path}/" if collection_path.is_dir() else path) or None
        case "slow" if collection_path.name.startswith("test_"):
            return not may_have_slow(path) or None
    return None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Mark the slow tests, and start with the group that takes longest in one process."""
    for item in items:
        if is_slow(item.nodeid):
            item.add_marker(pytest.mark.slow)
    slow = {each.nodeid.split("::")[0] for each in items if each.get_closest_marker("slow")}
    if unseen := sorted(file for file in slow if not may_have_slow(file)):
        # A mark that is imported: `pytest_ignore_collect` does not find it in the text.
        raise pytest.UsageError(f"`-m slow` leaves out the slow tests of {', '.join(unseen)}")
    items.sort(key=lambda item: group_of(item.nodeid) != "alone")


def pytest_runtest_setup(item):
    """Skip a test if a library is missing that its reason in tests/tiers.py names."""
    if item.get_closest_marker("slow"):
        for name in libraries_of(item.nodeid):
            require(name)


def pytest_collection_finish(session):
    """Keep Python's garbage collector out of the tests; see `freeze_after_a_file`."""
    import torch._dynamo  # noqa: F401 - an optimizer imports its 200,000 objects

    gc.collect()
    gc.freeze()
    gc.disable()
    if hasattr(session.config, "workerinput"):  # of many tests, of which some fork
        use_huge_pages()


@pytest.fixture(autouse=True, scope="session")
def set_state_folder(tmp_path_factory):
    """Record which mirrors were typed in a temporary folder; read no settings of this user."""
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))
    os.environ["XDG_CONFIG_HOME"] = str(tmp_path_factory.mktemp("config"))


@pytest.fixture(autouse=True, scope="module")
def freeze_after_a_file():
    """Collect the garbage of each file's tests; freeze what is imported by then.

    A run collects at its start and at its log points if the collector is on. In a process with
    pytest and all tests, each collection visits every imported object: 0.1 s or more.
    """
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def start_searches_warm(request):
    """Let the trials of slow tests be forks of a process that has imported torch."""
    if request.node.get_closest_marker("slow") and request.node.nodeid.startswith(WARM):
        request.getfixturevalue("monkeypatch").setattr(sys, "executable", warm_python())


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item):
    """Collect between tests: what searches all objects of a process also visits garbage."""
    assert not gc.isenabled(), f"{item.nodeid} leaves the garbage collector on"
    if gc.get_count()[0] > 10_000:
        gc.collect()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Distribute the tests by file, because a file's tests share expensive fixtures.

    xdist 3.8 does not see its own mark xdist_group under pytest 9.2.
    """
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            return group_of(nodeid)

    config.option.loadscopereorder = False  # keep the order of pytest_collection_modifyitems
    return ByFile(config, log)
