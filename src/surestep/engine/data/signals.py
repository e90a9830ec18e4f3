"""Signals that reach data workers too, because they go to every process of a job.

They are for the main process: it stops after its step and lets its workers go. A worker that died
before would take the step with it.
"""

import os
import signal
import threading
import time

GRACE_S = 30.0  # between SIGTERM and SIGKILL: Slurm's, Kubernetes' and torchrun's


def leave_to_main() -> None:
    """Let this worker outlive Ctrl-C, SIGUSR1, and SIGTERM by 30 seconds.

    SIGTERM is also how a worker is ended that hangs, so it does end it, later. A thread waits for
    it: no handler of Python's runs while a worker hangs outside of Python.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    read, write = os.pipe()
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    signal.signal(signal.SIGTERM, lambda number, frame: None)  # what a process it starts has not
    threading.Thread(target=_end_later, args=(read,), daemon=True).start()


def _end_later(pipe: int) -> None:
    while os.read(pipe, 1) != bytes([signal.SIGTERM]):
        pass
    time.sleep(GRACE_S)
    os._exit(0)
