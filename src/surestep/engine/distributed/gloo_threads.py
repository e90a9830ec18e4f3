"""The threads that run the collectives of gloo."""

import sys
import time
from pathlib import Path

_NAME = "pt_gloo_runloop"
_POLL_S = 0.01
_LIMIT_S = 5.0


def count_gloo_threads() -> int:
    """Return how many threads of this process run collectives."""
    return len(_list_threads())


def wait_until_idle() -> None:
    """Wait until the threads of gloo have finished the collectives that all ranks have finished.

    Call this before a profiler of torch stops. A step may continue before the thread of its
    collective has finished, which then still writes the time of the end into the records of the
    profiler. If the profiler has freed them, the process crashes.

    It needs `/proc`, and returns at once without it. A thread that sleeps without an interruption
    has no work, or waits for another rank; one that waits for Python's lock wakes up twice in the
    time between two looks. After 5 s this gives up.

    Source: `finishWorkGloo` in torch/csrc/distributed/c10d/ProcessGroupGloo.cpp.
    """
    between = max(_POLL_S, 2 * sys.getswitchinterval())
    give_up = time.monotonic() + _LIMIT_S
    before = _read_states()
    while before and time.monotonic() < give_up:
        time.sleep(between)
        states = _read_states()
        if states == before and all("\tS" in state for state in states):
            return
        before = states


def _list_threads() -> list[Path]:
    """Return the folders of the threads; one that ends meanwhile is left out."""
    return [file.parent for file in Path("/proc/self/task").glob("*/comm") if _read(file) == _NAME]


def _read_states() -> list[str]:
    """Return of each thread whether it runs, and how often it has slept and was interrupted."""
    wanted = ("State:", "voluntary_ctxt_switches:", "nonvoluntary_ctxt_switches:")
    texts = [_read(thread / "status") for thread in _list_threads()]
    return [
        "\n".join(line for line in text.splitlines() if line.startswith(wanted)) for text in texts
    ]


def _read(file: Path) -> str:
    try:
        return file.read_text(errors="replace").strip()  # a long name may end within a character
    except OSError:  # the thread has ended
        return ""
