"""The ejected script, which is plain PyTorch, trains the same weights, bit for bit."""

import importlib.util
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from surestep.base.errors import RecipeError
from surestep.eject.script import print_script
from surestep.laws.check import Result, fail, hold, leave_out, leave_untested
from surestep.laws.compare import compare_records
from surestep.laws.processes import Call
from surestep.laws.recipe_task import RecipeTask
from surestep.laws.record import Digest, Place, RunRecord, StepRecord, digest_value
from surestep.laws.run import Variant
from surestep.laws.runner import Finding, Runner, get_value
from surestep.recipes.load import RecipeCall

LAW, NAME = "law 3", "plain PyTorch"
_RARELY = "1000000 steps"
_SCRIPT = "ejected.py"


class _EnoughStepsError(Exception):
    """The steps that are compared were taken."""


def check(runner: Runner) -> Result:
    """Print the script, run it, and compare the weights after each step."""
    make_task = runner.program.make_task
    if not isinstance(make_task, RecipeTask):
        return leave_out("A script is printed of a recipe: surestep prove RECIPE.")
    options = {**runner.facts.options, "limit_val_batches": None, "checkpoint.every": _RARELY}
    if not runner.facts.on_plateau:
        options["validation.every"] = _RARELY
    call = replace(make_task.call, config=make_task.call.config.replace_options(options))
    folder = runner.make_folder()
    (outcome,) = runner.call(Call(run_script, folder, (call, runner.program.steps, folder)))
    found: RunRecord | str | Exception = get_value(outcome, "the ejected script")
    if isinstance(found, str):
        return leave_out(f"eject prints no script: {found}")
    if isinstance(found, Exception):
        return leave_untested(f"eject failed: {found}")
    variant = Variant("surestep", {name: options[name] for name in options})
    trained = _select(runner.train(variant).record, found)
    difference = compare_records(trained, found)
    if difference is None:
        return hold(f"the weights of the script of surestep eject, after each of {_last(found)}")
    place = difference.place
    (outcome,) = runner.call(Call(run_script, folder, (call, runner.program.steps, folder, place)))
    kept = get_value(outcome, "the ejected script")
    again = compare_records(_select(runner.train(variant, place).record, found), kept)
    return fail("The ejected script trains other weights", Finding(again or difference))


def _last(record: RunRecord) -> str:
    return f"{record.steps[-1].step} steps"


def run_script(
    call: RecipeCall, steps: int, folder: Path, keep: Place | None = None
) -> RunRecord | str | Exception:
    """Return the weights after each step of the ejected script; or why none is printed.

    An error that eject does not explain is returned as a RuntimeError with its text.

    Args:
        call: the recipe with its options.
        steps: how many it takes.
        folder: of its files.
        keep: also keep this tensor.
    """
    try:
        text = print_script(call, "a proof")
    except RecipeError as error:
        return str(error).splitlines()[0]
    except Exception as error:
        return RuntimeError(f"{type(error).__name__}: {error}")
    path = folder / _SCRIPT
    path.write_text(text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("ejected", path)
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.__file__ = str(call.recipe.path.with_name(_SCRIPT))  # files beside the recipe are found
    module.LAST, module.BEST = folder / "last.pt", folder / "best.pt"
    record, take_step = RunRecord(place=keep), module.take_step

    def record_step(model: nn.Module, optimizer: Any, parts: Any, progress: Any, *more: Any) -> Any:
        if not record.steps:
            _add(record, model, progress.step)
        loss = take_step(model, optimizer, parts, progress, *more)
        _add(record, model, progress.step)
        if progress.step >= steps:
            raise _EnoughStepsError
        return loss

    module.take_step = record_step
    with suppress(_EnoughStepsError):
        module.train()
    return record


def _add(record: RunRecord, model: nn.Module, step: int) -> None:
    """Add the weights and buffers of a model after a step."""
    parameters = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    values: dict[str, dict[str, Digest]] = {}
    for name, tensor in model.state_dict().items():
        kind = "parameters" if name in parameters else "buffers"
        values.setdefault(kind, {})[name] = digest_value(tensor)
        if record.place == (step, kind, name):
            record.kept = tensor.detach().clone()
    record.steps.append(StepRecord(step, values))


def _select(record: RunRecord, script: RunRecord) -> RunRecord:
    """Return the steps and values of a record that the one of a script has."""
    by_step: dict[int, Mapping[str, Mapping[str, Digest]]] = dict(script.steps)
    steps = [
        StepRecord(
            step,
            {
                kind: {name: values[kind][name] for name in named if name in values.get(kind, {})}
                for kind, named in by_step[step].items()
            },
        )
        for step, values in record.steps
        if step in by_step
    ]
    return RunRecord(steps, record.place, record.kept)
