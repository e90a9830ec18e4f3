"""Law 8: reading a hostile run folder runs no code in it.

The folder looks like a recipe's run; its recipe, modules beside it and pickles under our names
would each write a mark if they ran. Audit hooks of Python report compiling, running, importing,
unpickling and starting programs, so that every way to run code is covered.
"""

import os
import pickle
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import chdir, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import torch

import surestep
from surestep.base.errors import SurestepError
from surestep.cli.main import main
from surestep.record.io import write_json
from tests import tiny

Folder = Callable[[], Path]
MARK = "import pathlib; pathlib.Path(__file__).with_name('ran').touch()\n"
FILES = ("manifest.json", "state.json", "model.safetensors", "optimizer.safetensors")
COMMANDS = {
    "list": ("ckpt", "list", "run"),
    "list json": ("ckpt", "list", "run", "--json"),
    "list a mirror": ("ckpt", "list", "file://{here}/run"),
    "verify": ("ckpt", "verify", "run"),
    "verify one": ("ckpt", "verify", "run@3"),
    "verify folder": ("ckpt", "verify", "run/checkpoints/step-00000003"),
    "verify a mirror": ("ckpt", "verify", "file://{here}/run"),
    "export": ("ckpt", "export", "run", "out.safetensors", "--overwrite"),
    "export state dict": ("ckpt", "export", "run@3", "out.pt", "--overwrite"),
    "diff": ("ckpt", "diff", "run@3", "run@6"),
    "runs": ("runs", "."),
    "diagnose": ("diagnose", "run"),
    "plot": ("plot", "run"),
    "report": ("report", "run", "--out", "page.html"),
    "report of a mirror": ("report", "file://{here}/run", "--out", "page.html"),
    "plot a mirror": ("plot", "file://{here}/run"),
    "diagnose a mirror": ("diagnose", "file://{here}/run"),
    "fetch": ("mirror", "fetch", "file://{here}/run", "here"),
}
STARTS = ("os.system", "os.exec", "os.fork", "os.posix_spawn", "os.spawn", "subprocess.Popen")
_watched: list[tuple[Path, list[str]]] = []
_hooked: list[bool] = []


class Mark:
    """Writes a mark when it is unpickled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> Any:
        return os.makedirs, (str(self.folder / "unpickled"), 0o777, True)


def _hook(event: str, args: tuple[Any, ...]) -> None:
    for folder, seen in _watched:
        inside = f"{folder}{os.sep}"
        if event == "exec" and str(args[0].co_filename).startswith(inside):
            seen.append(f"runs {args[0].co_filename}")
        elif event == "compile" and str(args[1] or "").startswith(inside):
            seen.append(f"compiles {args[1]}")
        elif event == "pickle.find_class":
            seen.append(f"unpickles {args[0]}.{args[1]}")
        elif event in STARTS:
            seen.append(f"{event} {args}")


@contextmanager
def watching(folder: Path) -> Iterator[list[str]]:
    """List what is run from a folder, unpickled or started."""
    if not _hooked:  # an audit hook cannot be removed
        sys.addaudithook(_hook)
        _hooked.append(True)
    seen: list[str] = []
    _watched.append((folder, seen))
    try:
        yield seen
    finally:
        _watched.pop()


def hostile(folder: Path) -> Path:
    """Make a run with code that writes a mark in every place where code could be loaded from."""
    run = tiny.fit(folder / "run", checkpoint={"every": "1 epoch"}).path
    for name in ("recipe.py", "__init__.py", "surestep.py", "sitecustomize.py", "safetensors.py"):
        (run / name).write_text(MARK)
        (run / "checkpoints" / name).write_text(MARK)
    recipe = {"name": "recipe", "path": str(run / "recipe.py"), "sha256": "0" * 64}
    write_json(run / "config.json", {**surestep.Run(run).config, "recipe": recipe})
    for checkpoint in (run / "checkpoints").glob("step-*"):
        for name in ("data.pkl", "weights.pt", "pytorch_model.bin", "model.pkl"):
            (checkpoint / name).write_bytes(pickle.dumps(Mark(run)))
    return run


def check_reading(fresh: Folder, words: tuple[str, ...], under: str | None = None) -> None:
    """Check that a command on a hostile run runs no code of it, and changes no file in it."""
    folder = fresh()
    run = hostile(folder)
    if under is not None:
        (run / "checkpoints/step-00000003" / under).write_bytes(pickle.dumps(Mark(run)))
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*") if path.is_file()}
    with chdir(folder), watching(folder) as seen, suppress(SystemExit):
        main([word.format(here=folder) for word in words])
    assert seen == []
    assert not [path for path in run.rglob("*") if path.name in ("ran", "unpickled")]
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*") if path.is_file()} == before


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    monkeypatch.chdir(tmp_path)
    return lambda: tmp_path


@pytest.mark.parametrize("words", COMMANDS.values(), ids=COMMANDS)
def test_reading_a_run_or_a_mirror_runs_no_code(fresh, words):
    check_reading(fresh, words)


def test_checking_scripts_runs_none_of_them(fresh, capsys):
    folder = fresh()
    hostile(folder)
    with watching(folder) as seen, suppress(SystemExit):
        main(["check", "--no-cache", "run"])
    assert "in 10 files" in capsys.readouterr().out
    assert seen == []
    assert not [*folder.rglob("ran")]


@pytest.mark.parametrize("under", FILES)
def test_pickle_under_our_name_is_rejected_and_runs_no_code(fresh, capsys, under):
    for words in (COMMANDS["list"], COMMANDS["verify"], COMMANDS["export state dict"]):
        check_reading(fresh, words, under)
        shutil.rmtree("run")
    output = capsys.readouterr()
    assert under in output.err
    assert f"step-00000003: {under}: " in output.out


def test_reading_a_run_in_python_runs_no_code(fresh):
    folder = fresh()
    run = hostile(folder)
    with watching(folder) as seen:
        found = surestep.Run(run)
        assert found.best.step == found.last.step == 6
        assert [*found.events()]
        found.load_model(tiny.model())
        assert "finished" in found._repr_html_()
    assert seen == []


def test_audit_hook_detects_code(fresh):
    folder = fresh()
    (folder / "mine.py").write_text("x = 1\n")
    with watching(folder) as seen:
        exec(compile("x = 1", str(folder / "mine.py"), "exec"))
        pickle.loads(pickle.dumps(torch.device("cpu")))
        with suppress(SurestepError):
            os.system("true")
    assert [action.split()[0] for action in seen] == ["compiles", "runs", "unpickles", "os.system"]
