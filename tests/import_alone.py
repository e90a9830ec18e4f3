"""Import each module without the others: `python -P import_alone.py FOLDER MODULE ...`.

It prints a line for each module that raises an error or a warning, or changes the process. Modules
are imported one after the other in a process that forgets those of surestep between two of them.
What they import of other packages cannot be imported twice: a new process, a fork, follows then.
A process executes each module once, without those that it does not import: a later one that imports
it finds it as it is, with all that it had imported.
"""

import gc
import getpass  # noqa: F401 - many modules import it, and a new process would follow each
import http.server  # noqa: F401
import importlib
import importlib.readers
import logging
import os
import signal
import statistics  # noqa: F401
import sys
import tomllib  # noqa: F401
import warnings
from collections.abc import Iterable, Mapping
from contextlib import suppress
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import numpy  # noqa: F401
import orjson  # noqa: F401
import pydantic.plugin._loader  # noqa: F401 - the first model that a module makes imports it
import rich  # noqa: F401
import safetensors.torch  # noqa: F401
import torch
import torch.distributed._functional_collectives
import torch.utils._device
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
    """Executes a module that has been compiled without the other ones; also finds such modules.

    Attributes:
        codes: what was compiled, or the error of it, by name.
        paths: the files, by name.
        alone: all modules that are imported after the one of a name is imported alone.
    """

    codes: dict[str, CodeType | BaseException] = {}
    paths: dict[str, Path] = {}
    alone: dict[str, dict[str, ModuleType]] = {}

    @classmethod
    def find_spec(cls, name: str, *_: object) -> ModuleSpec | None:
        path = cls.paths.get(name)
        return path and spec_from_file_location(name, path, loader=cls(name, str(path)))

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.alone.get(spec.name, {}).get(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        name = module.__name__
        if name not in self.alone:
            packages = [other for other in own_modules() if f"{name}.".startswith(f"{other}.")]
            needed = set(packages).union(*(self.alone.get(package, ()) for package in packages))
            others = forget(other for other in own_modules() if other not in needed)
            before = process_state()
            try:
                super().exec_module(module)
                assert process_state() == before, f"importing {name} changes the process"
                self.alone[name] = own_modules()
            finally:
                remember(others)
        remember(self.alone[name])

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


def own_modules() -> dict[str, ModuleType]:
    return {name: sys.modules[name] for name in sys.modules if f"{name}.".startswith("surestep.")}


def forget(names: Iterable[str]) -> dict[str, ModuleType]:
    """Return modules; what imports them next imports them as if for the first time."""
    found = {name: sys.modules.pop(name) for name in names}
    for name, module in found.items():
        package, _, last = name.rpartition(".")
        owner = vars(found.get(package) or sys.modules[package]) if package else {}
        if owner.get(last) is module:
            del owner[last]  # otherwise `from package import last` finds it
    return found


def remember(modules: Mapping[str, ModuleType]) -> None:
    """Add modules as if they had been imported."""
    sys.modules.update(modules)
    for name, module in modules.items():
        package, _, last = name.rpartition(".")
        if package:
            vars(sys.modules[package]).setdefault(last, module)


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


def import_one(name: str) -> None:
    try:
        importlib.import_module(name)
    except BaseException as error:
        print(f"{name}: {error!r}", flush=True)


def import_some(names: Iterable[str], writer: int) -> None:
    """Import modules up to the first that imports other packages; write a byte for each."""
    known = set(sys.modules)
    for name in names:
        import_one(name)
        os.write(writer, b".")
        forget(own_modules())
        if not known.issuperset(sys.modules):
            break


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


def import_again(names: Iterable[str]) -> None:
    """Import modules, for those of the next forks, that import no other packages."""
    for name in names:
        with suppress(BaseException):  # its fork has printed it
            importlib.import_module(name)
        forget(own_modules())


def main(folder: Path, names: list[str]) -> None:
    warnings.simplefilter("error")
    compile_all(folder, names)
    gc.disable()  # it would visit all imported objects again and again
    without_options = [n for n in names if n == "surestep" or n.startswith("surestep.base")]
    others = [name for name in names if name not in without_options]
    for some in (without_options, others):
        while some:
            done = import_in_fork(some)
            import_again(some[: done - 1])
            some = some[done:]
        import_again(["surestep.config.config"])  # it is also imported alone


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
