"""Import each module without the others: `python -P import_alone.py FOLDER MODULE ...`.

It prints a line for each module that raises an error or a warning, or changes the process. Modules
are imported one after the other in a process that forgets those of surestep between two of them.
What they import of other packages cannot be imported twice: a new process, a fork, follows then.
"""

import gc
import importlib
import logging
import os
import signal
import statistics  # noqa: F401 - many modules import it, and a new process would follow each
import sys
import tomllib  # noqa: F401
import warnings
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import numpy  # noqa: F401
import pydantic  # noqa: F401
import rich  # noqa: F401
import safetensors.torch  # noqa: F401
import torch
import torch.utils.data
import tqdm.auto  # noqa: F401

with suppress(ImportError):
    import sklearn.datasets  # noqa: F401
    import tyro  # noqa: F401

SIGNALS = (
    *(signal.SIGINT, signal.SIGTERM, signal.SIGUSR1),
    *(signal.SIGHUP, signal.SIGCHLD, signal.SIGPIPE),
)


def process_state() -> tuple[object, ...]:
    return (
        dict(os.environ),
        os.getcwd(),
        [signal.getsignal(each) for each in SIGNALS],
        list(logging.root.handlers),
        list(logging.getLogger("surestep").handlers),
        torch.initial_seed(),
        torch.get_num_threads(),
        torch.get_default_dtype(),
        torch.cuda.is_initialized(),
        set(os.listdir(".")),
    )


def forget(names: Iterable[str]) -> None:
    for name in names:
        del sys.modules[name]
        package, _, last = name.rpartition(".")
        if package in sys.modules and hasattr(sys.modules[package], last):
            delattr(sys.modules[package], last)  # otherwise `from package import last` finds it


def import_one(folder: Path, name: str) -> None:
    before = process_state()
    path = folder / name.replace(".", "/")
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    try:
        compile(path.read_bytes(), path, "exec")  # its byte code may be cached with a warning
        importlib.import_module(name)
        assert process_state() == before, "importing it changes the process"
    except BaseException as error:
        print(f"{name}: {error!r}", flush=True)


def import_some(folder: Path, names: Iterable[str], writer: int) -> None:
    """Import modules up to the first that imports other packages; write a byte for each."""
    known = set(sys.modules)
    for name in names:
        import_one(folder, name)
        os.write(writer, b".")
        new = [each for each in sys.modules if each not in known]
        if not all(each.startswith("surestep") for each in new):
            break
        forget(new)


def import_in_fork(folder: Path, names: list[str]) -> int:
    """Import some of the modules in a fork; return how many."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        import_some(folder, names, writer)
        os.write(writer, b"e")
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        done = file.read()
    _, status = os.waitpid(child, 0)
    if done.endswith(b"e"):
        return len(done) - 1
    print(f"{names[len(done)]}: importing it ends the process: {status}", flush=True)
    return len(done) + 1


def main(folder: Path, names: list[str]) -> None:
    warnings.simplefilter("error")
    gc.disable()  # it would visit all imported objects again and again
    without_options = [n for n in names if n == "surestep" or n.startswith("surestep.base")]
    others = [name for name in names if name not in without_options]
    for some in (without_options, others):
        while some:
            some = some[import_in_fork(folder, some) :]
        import surestep.config.config  # noqa: F401 - takes 0.2 s and is also imported alone


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
