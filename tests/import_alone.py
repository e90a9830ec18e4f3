"""Import each module without the others: `python -P import_alone.py FOLDER MODULE ...`.

It prints a line for each module that raises an error or a warning, or changes the process. Modules
are imported one after the other in a process that forgets those of surestep between two of them.
What they import of other packages cannot be imported twice: a new process, a fork, follows then.
Modules are imported 20,000 times, so each is read and compiled once for all of these processes.
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
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from types import CodeType
from typing import Any

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


class Compiled(SourceFileLoader):
    """Executes a module that has been compiled; also finds such modules.

    Attributes:
        codes: what was compiled, or the error of it, by name.
        paths: the files, by name.
    """

    codes: dict[str, CodeType | BaseException] = {}
    paths: dict[str, Path] = {}

    @classmethod
    def find_spec(cls, name: str, *_: object) -> ModuleSpec | None:
        path = cls.paths.get(name)
        return path and spec_from_file_location(name, path, loader=cls(name, str(path)))

    def get_code(self, fullname: str) -> Any:
        code = self.codes[fullname]
        if isinstance(code, BaseException):
            raise code
        return code


def compile_all(folder: Path, names: Iterable[str]) -> None:
    """Compile modules, without byte code that may be cached with a warning."""
    for name in names:
        path = folder / name.replace(".", "/")
        path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        Compiled.paths[name] = path
        try:
            Compiled.codes[name] = compile(path.read_bytes(), path, "exec")
        except BaseException as error:
            Compiled.codes[name] = error
    sys.meta_path.insert(0, Compiled)


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


def import_one(name: str) -> None:
    before = process_state()
    try:
        importlib.import_module(name)
        assert process_state() == before, "importing it changes the process"
    except BaseException as error:
        print(f"{name}: {error!r}", flush=True)


def import_some(names: Iterable[str], writer: int) -> None:
    """Import modules up to the first that imports other packages; write a byte for each."""
    known = set(sys.modules)
    for name in names:
        import_one(name)
        os.write(writer, b".")
        new = [each for each in sys.modules if each not in known]
        if not all(each.startswith("surestep") for each in new):
            break
        forget(new)


def import_in_fork(names: list[str]) -> int:
    """Import some of the modules in a fork; return how many."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        import_some(names, writer)
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
    compile_all(folder, names)
    gc.disable()  # it would visit all imported objects again and again
    without_options = [n for n in names if n == "surestep" or n.startswith("surestep.base")]
    others = [name for name in names if name not in without_options]
    for some in (without_options, others):
        while some:
            some = some[import_in_fork(some) :]
        import surestep.config.config  # noqa: F401 - takes 0.2 s and is also imported alone


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
