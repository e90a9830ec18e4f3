"""What a checkpoint holds gives the metrics that were recorded with it, loaded and exported."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor

from surestep.base.errors import CheckpointError
from surestep.laws.check import Result, fail, hold, leave_untested
from surestep.laws.processes import Call
from surestep.laws.program import Program
from surestep.laws.record import digest_value
from surestep.laws.run import Variant, train
from surestep.laws.runner import Runner, get_value
from surestep.record.run import Run, Which
from surestep.trainer.evaluator import evaluate_run, load_checkpoint_model
from surestep.trainer.planning import PreparedTask, plan_task

LAW, NAME = "check", "checkpoint"
# Loaded weights are measured on all validation data.
_OPTIONS = {"checkpoint.every": "4 steps", "limit_val_batches": None}
_EVALUATED = {"validation.every": "4 steps"}


def check(runner: Runner) -> Result:
    """Train, and measure and export the checkpoints in a new process."""
    evaluates = runner.facts.has_validation and not runner.facts.on_plateau
    options = {**_OPTIONS, **(_EVALUATED if evaluates else {})}
    folder = runner.make_folder()
    variant = Variant("checkpoints", options)
    arguments = (runner.program, runner.facts.options, variant, folder / "run")
    (outcome,) = runner.call(Call(train, folder, arguments))
    get_value(outcome, variant.name)
    given = (runner.program, {**runner.facts.options, **options}, folder)
    (outcome,) = runner.call(Call(compare_checkpoints, runner.make_folder(), given))
    problem, compared = get_value(outcome, "the checkpoints")
    if problem:
        return fail(problem)
    if not compared:
        return leave_untested("The run saved no checkpoint.")
    without = "" if evaluates else "; no metrics, since there is no validation data"
    return hold(f"load and export of {', '.join(compared)}{without}")


def compare_checkpoints(
    program: Program, options: Mapping[str, Any], folder: Path
) -> tuple[str, list[str]]:
    """Return what is wrong with the checkpoints of a run, "" if nothing is; and what they are.

    Args:
        program: that was trained.
        options: of the run.
        folder: which has it.
    """
    run = Run(folder / "run")
    compared = []
    for which in _list_weights(run):
        shown = str(which) if isinstance(which, str) else f"step {which}"
        config = program.config.replace_options(options)
        saved = run.saved(which)
        if saved.metrics and _is_measured(which, saved.evaluated):
            split = "val"
            _, metrics = evaluate_run(run, program.build(), config, split=split, which=which)
            for name, value in saved.metrics.items():
                if name in metrics and repr(metrics[name]) != repr(value):
                    return (
                        f"{name} of {shown} was {value} in the run (step {saved.step}), and is "
                        f"{metrics[name]} when its weights are loaded",
                        [],
                    )
        planned = plan_task(program.build(), config)
        try:
            different = next(_compare_export(run, planned, which, folder), "")
        except CheckpointError as error:  # such as state that is not a dense tensor
            shown = f"{shown} (not exported: {error})"
            different = ""
        if different:
            return f"{different} of {shown} is different in the exported file", []
        compared.append(shown)
    return "", compared


def _list_weights(run: Run) -> Iterator[Which | int]:
    last = run.find_checkpoint("last")
    if last is None:
        return
    yield "last"
    if run.find_checkpoint("best") is not None:
        yield "best"
    if last.has_average:
        yield "average"


def _is_measured(which: Which | int, evaluated: str) -> bool:
    """Return whether the recorded metrics are those of the weights that are loaded."""
    return which == "best" or (evaluated == "average") == (which == "average")


def _compare_export(
    run: Run, planned: PreparedTask, which: Which | int, folder: Path
) -> Iterator[str]:
    """Yield the names of the tensors that are different in an exported file."""
    path = folder / f"{which}.safetensors"
    run.export(path, which)
    exported: dict[str, Tensor] = load_file(path)
    model, _ = load_checkpoint_model(run, planned, which)
    for name, tensor in model.state_dict().items():
        if name in exported and digest_value(exported[name]) != digest_value(tensor):
            yield name
