"""Processes that run the trials of a study; they may kill themselves at one of their writes."""

import os
import signal
import sys
from pathlib import Path

from optuna.storages import JournalStorage, RDBStorage

from surestep.tuning.open import open_study
from tests.tuning.studies_on_disk import make_settings, run_trial


def kill_at(write):
    """Kill this process in the middle of its n-th write to the storage."""
    left = [write]

    def wrap(kind, name):
        plain = getattr(kind, name)

        def counted(*args, **kwargs):
            left[0] -= 1
            if left[0] == 0:
                if kind is JournalStorage:  # half of a line, while the lock is taken
                    backend = args[0]._backend
                    backend._lock.acquire()
                    with open(backend._file_path, "ab") as file:
                        file.write(b'{"op_code":8,"wor')
                os.kill(os.getpid(), signal.SIGKILL)
            return plain(*args, **kwargs)

        setattr(kind, name, counted)

    for name in ("create_new_trial", "set_trial_user_attr", "set_trial_state_values"):
        for kind in (JournalStorage, RDBStorage):
            wrap(kind, "_create_new_trial" if kind is RDBStorage and "create" in name else name)


def work(folder, storage, write):
    """Run trials until there are no more, and print their numbers."""
    study = open_study(Path(folder), make_settings(trials=20), storage or None)
    if write:
        kill_at(write)
    while (trial := study.claim_trial()) is not None:
        study.beat(trial)
        run_trial(study, trial)
        os.write(1, f"{trial.number}\n".encode())


def main():
    """`FOLDER STORAGE together|after WRITE...`: a process for each number.

    It kills itself at that write, or never for 0. Processes start together, or one after another.
    """
    folder, storage, when, *writes = sys.argv[1:]
    children = []
    for write in map(int, writes):
        child = os.fork()
        if not child:
            try:
                work(folder, storage, write)
            finally:
                os._exit(0)
        if when == "after":
            os.waitpid(child, 0)
        else:
            children.append(child)
    for child in children:
        os.waitpid(child, 0)
