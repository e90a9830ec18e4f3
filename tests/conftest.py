import gc
import os
import signal
from pathlib import Path

import pytest
import torch

# What a test starts finds `tests`, whatever its current folder is.
os.environ["PYTHONPATH"] = os.pathsep.join(
    [*filter(None, [os.environ.get("PYTHONPATH")]), str(Path(__file__).parents[1])]
)
# Shells let what they start in the background ignore these; a run leaves ignored signals alone.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# Two threads give other last bits than one, and the tests share their cores.
torch.set_num_threads(1)

# What kills, races or starts processes: no two of these files run at the same time.
ALONE = (
    "tests/laws/test_law_2_kills.py",
    "tests/laws/test_law_2_rollback_kills.py",
    "tests/laws/test_law_7_kills.py",
    "tests/torture/test_torture.py",
    "tests/multi_rank/",  # all of it: its files share what a launch came to
    "tests/record/checkpoint/test_keep_together.py",
    "tests/cli/test_interrupt.py",
)


def one_after_another(nodeid):
    """Name the tests that run in one process, in order: those of a file, or of all of ALONE."""
    file = nodeid.split("::")[0]
    return "alone" if file.startswith(ALONE) else file


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Begin with what takes longest to do in one process."""
    items.sort(key=lambda item: one_after_another(item.nodeid) != "alone")


def pytest_collection_finish(session):
    """Keep Python's garbage collector out of the tests; see `collected`."""
    gc.collect()
    gc.freeze()
    gc.disable()


@pytest.fixture(autouse=True, scope="module")
def collected():
    """Collect after each file what its tests left behind, but for what was imported by then.

    A run collects at its start and at its log points where the collector is on, and walks in a
    process with pytest and all tests every object of them: 0.1 s and more each time.
    """
    yield
    gc.collect()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Share the tests among processes: by file, since a file's tests share what is dear to make.

    The mark xdist_group would say it; pytest 9.2 leaves no way for xdist 3.8 to see it.
    """
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            return one_after_another(nodeid)

    config.option.loadscopereorder = False  # the order is that of above
    return ByFile(config, log)
