"""Run the tests of a mutant in a fork of a process that has collected all tests."""

import gc
import json
import os
import random
import re
import signal
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import CodeType, FunctionType

import pytest

from tests.mutants.draw import Mutant

LIMIT_S = 20  # processor seconds of a test, whose mutant may not end
WAIT_S = 120  # of a test that waits for what does not come


def codes_of(code: CodeType) -> dict[tuple[str, int], CodeType]:
    """Return a code object and all inside it, by name and first line."""
    found = {(code.co_qualname, code.co_firstlineno): code}
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            found |= codes_of(inner)
    return found


def import_changed(mutants: Iterable[Mutant]) -> None:
    """Import the files that change: some are imported within functions, when a test runs.

    A mutant of a file that is imported later would change nothing.
    """
    for mutant in mutants:
        name = mutant.path.removeprefix("src/").removesuffix(".py").removesuffix("/__init__")
        import_module(name.replace("/", "."))


def functions_of(root: Path) -> dict[str, list[FunctionType]]:
    """Return the functions of the package that exist, by file; all objects are searched."""
    found: dict[str, list[FunctionType]] = defaultdict(list)
    gc.unfreeze()  # it lists no frozen objects
    for function in gc.get_objects():
        if type(function) is FunctionType and function.__code__.co_filename.startswith(str(root)):
            found[function.__code__.co_filename].append(function)
    gc.freeze()
    return found


def apply(mutant: Mutant, root: Path, functions: Mapping[str, Sequence[FunctionType]]) -> None:
    """Replace the code of every function of the mutant's file in this process."""
    path = str(root / mutant.path)
    codes = codes_of(mutant.code)
    for function in functions[path]:
        code = function.__code__
        new = codes.get((code.co_qualname, code.co_firstlineno))
        if new is not None and new.co_freevars == code.co_freevars:
            function.__code__ = new


def _words_of(path: str) -> set[str]:
    return set(re.findall(r"[a-z]+", path.removesuffix(".py")))


class Loop:
    """A pytest plugin: instead of the tests, run those of each mutant, each mutant in a fork."""

    def __init__(
        self,
        mutants: Sequence[tuple[int, Mutant]],
        covering: Mapping[int, Mapping[str, Sequence[str]]],
        root: Path,
        out: Path,
        enough: int,  # files that find a mutant; what more files do is not tried
        files: int | None = None,  # at most so many are tried, with names like the mutant's first
    ) -> None:
        self.mutants, self.covering, self.root, self.out = mutants, covering, root, out
        self.enough, self.files = enough, files
        self.failed = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.failed |= report.failed

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        items = {item.nodeid: item for item in session.items}
        import_changed(mutant for _, mutant in self.mutants)
        self.functions = functions_of(self.root)
        for number, mutant in self.mutants:
            files, finders = list(self.covering[number].items()), 0
            random.Random(number).shuffle(files)
            words = _words_of(mutant.path)
            files.sort(key=lambda file: -len(words & _words_of(file[0])))  # the likely ones first
            for file, names in files[: self.files]:
                chosen = [items[name] for name in names if name in items]
                if chosen and finders < self.enough:
                    finders += self._fork(number, mutant, file, chosen)
        return True

    def _fork(self, number: int, mutant: Mutant, file: str, chosen: list[pytest.Item]) -> bool:
        pid = os.fork()
        if not pid:
            os.setpgid(0, 0)
            code = 2
            try:
                signal.setitimer(signal.ITIMER_PROF, LIMIT_S)
                signal.alarm(WAIT_S)
                for stream in (1, 2):
                    os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
                apply(mutant, self.root, self.functions)
                code = int(self._run(chosen))
            finally:
                os._exit(code)
        _, status = os.waitpid(pid, 0)
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)  # what a killed test had started
        is_found = os.waitstatus_to_exitcode(status) != 0
        line = {"mutant": number, "file": file, "tests": len(chosen), "found": is_found}
        with self.out.open("a", encoding="utf-8") as out:
            out.write(json.dumps(line) + "\n")
        print("F" if is_found else ".", end="", file=sys.stderr, flush=True)
        return is_found

    def _run(self, chosen: list[pytest.Item]) -> bool:
        for item, following in zip(chosen, [*chosen[1:], None], strict=True):
            item.ihook.pytest_runtest_protocol(item=item, nextitem=following)
            if self.failed:
                return True
        return False
