import ast
import gc
import inspect
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

import surestep
from surestep import errors, tracking
from surestep.base import errors as base_errors

TREE = ast.parse(Path(surestep.__file__).read_text(encoding="utf-8"))
FOR_TYPES = {
    alias.asname: node.module
    for block in TREE.body
    if isinstance(block, ast.If)
    for node in block.body
    if isinstance(node, ast.ImportFrom)
    for alias in node.names
    if alias.asname
}


def test_dunder_all_lists_the_names_that_type_checkers_see():
    assert surestep.__all__ == sorted(FOR_TYPES)


@pytest.mark.parametrize("name", surestep.__all__)
def test_public_name_has_a_docstring_and_matches_the_type_checker(name):
    value = getattr(surestep, name)
    assert value is getattr(import_module(FOR_TYPES[name]), name)
    assert value.__doc__


def test_star_import_imports_every_public_name():
    there = {}
    exec("from surestep import *", there)
    assert set(surestep.__all__) <= set(there)


def test_unknown_name_raises_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'Trainr'"):
        surestep.Trainr  # noqa: B018


@pytest.mark.parametrize("is_frozen", [False, True])
def test_collector_passes_over_what_an_import_creates(tmp_path, monkeypatch, is_frozen):
    (tmp_path / "late_home.py").write_text("made = [[] for _ in range(5000)]\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(surestep._HOMES, "made", "late_home")
    collections = []
    monkeypatch.setattr(gc, "callbacks", [lambda *about: collections.append(about)])
    was_enabled = gc.isenabled()
    gc.unfreeze()
    if is_frozen:  # by the user
        gc.freeze()
    gc.enable()
    try:
        made = surestep.made
        assert gc.isenabled()
        assert collections == []
        is_old = any(value is made for value in gc.get_objects(generation=2))
        assert is_old is not is_frozen
        assert (gc.get_freeze_count() > 0) is is_frozen
    finally:
        gc.unfreeze()
        if not was_enabled:
            gc.disable()
        del surestep.made, sys.modules["late_home"]


def flatten(hint: object) -> set[object]:
    return {hint}.union(*map(flatten, get_args(hint)))


def test_types_that_a_tracker_gets_are_public():
    methods = [value for value in vars(surestep.Tracker).values() if inspect.isfunction(value)]
    hints = {hint for method in methods for hint in get_type_hints(method).values()}
    parts = set().union(*map(flatten, hints))
    own = {part for part in parts if getattr(part, "__module__", "").startswith("surestep.")}
    public = {getattr(tracking, name) for name in tracking.__all__}
    assert own == public - {surestep.Tracker, tracking.replay_run}


# What a user's own functions get, and what they call.
USED = [
    *(value for name, value in vars(surestep.Callback).items() if name.startswith("on_")),
    *(surestep.Trainer.fit, surestep.Trainer.evaluate, surestep.Trainer.predict),
    *(surestep.Session.steps, surestep.Session.evaluate, surestep.Session.predict),
    *(surestep.Run.best.fget, surestep.Run.last.fget, surestep.ManualStep.micro_batches),
    *(surestep.prepare, surestep.search, surestep.Run.history, surestep.runs),
    surestep.RunList.best,
]


def test_types_for_annotations_are_public():
    texts = [str(hint) for used in USED for hint in inspect.unwrap(used).__annotations__.values()]
    words = set(re.findall(r"\w+", " ".join(texts)))
    modules = [module for name, module in sys.modules.items() if name.startswith("surestep.")]
    ours = {
        name
        for module in modules
        for name, value in vars(module).items()
        if inspect.isclass(value) and value.__module__.startswith("surestep.")
    }
    named = words & ours
    assert {"CheckpointInfo", "LogPoint", "Metrics", "Predictions", "StepResult"} <= named
    internal = {"TaskOrigin", "Rollback", "Stop"}  # of recipes, and of parts of surestep
    assert named - set(surestep.__all__) == internal


def test_errors_are_all_public():
    classes = {name: value for name, value in vars(base_errors).items() if inspect.isclass(value)}
    ours = {name for name in classes if issubclass(classes[name], surestep.SurestepError)}
    assert {name: getattr(errors, name) for name in errors.__all__} == {
        name: classes[name] for name in ours
    }
    assert surestep.errors is errors


def imported(statement: str) -> set[str]:
    code = f"import sys; {statement}; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True
    )
    return {name.split(".")[0] for name in done.stdout.split()}


def test_import_surestep_imports_no_heavy_library():
    heavy = {"torch", "numpy", "pydantic", "safetensors", "tyro", "rich", "tqdm", "asyncio"}
    assert not imported("import surestep; surestep.__all__; surestep.__version__") & heavy


def test_config_does_not_import_torch():
    assert not imported("import surestep; surestep.Config(epochs=1)") & {"torch", "numpy"}
