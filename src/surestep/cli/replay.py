"""`surestep replay INCIDENT`."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import tyro

from surestep.base.errors import ConfigError, RunError
from surestep.base.paths import require_local_path
from surestep.base.text import print_escaped, print_json
from surestep.cli import output as show
from surestep.cli.load_run import AllowRecipe, load_run_recipe, parse_allowed
from surestep.cli.parse import command
from surestep.record.incident import read_incident
from surestep.record.io import dumps
from surestep.record.run import Run

if TYPE_CHECKING:  # torch is imported once the command line is checked
    from surestep.trainer.replay import ReplayResult, StepNumbers


@command("replay")
def run(
    incident: Annotated[str, tyro.conf.arg(metavar="INCIDENT")],
    /,
    *,
    precision: str | None = None,
    without: Annotated[str, tyro.conf.arg(metavar="SAMPLES")] = "",
    allow: AllowRecipe = None,
    json: bool = False,
) -> int:
    """Run a step that was not finite again, and show what changes.

    Args:
        incident: Folder of the incident, RUN/incidents/step-XXXXXXXX.
        precision: Use a different precision: fp32, tf32, bf16 or fp16.
        without: Samples to exclude, by index in the dataset: 17,42.
        allow: recipe: run the recipe although its file has changed; recipe-inside: run one that
            is in a run folder, a mirror or a study.
        json: Print the result as JSON.
    """
    recorded = read_incident(require_local_path(incident))
    samples = _parse_samples(without)
    folder = Run(recorded.run)
    if not folder.config["recipe"]:
        raise RunError(
            f"{folder.path} was started from Python, not from a recipe. Replay the step in Python: "
            f"surestep.replay({str(recorded.path)!r}, task)."
        )
    call = load_run_recipe(folder, parse_allowed(allow))
    from surestep.trainer.replay import replay

    done = replay(recorded.path, call.task(), precision=precision, without=samples)
    if json:
        print_json(dumps(asdict(done)))
    else:
        _print(done)
    return 0


def _parse_samples(text: str) -> list[int]:
    try:
        return [int(index) for index in text.split(",") if index.strip()]
    except ValueError:
        raise ConfigError(
            f"--without {text} is not a list of indices. Pass indices of samples, such as "
            "--without 17,42."
        ) from None


def _print(done: ReplayResult) -> None:
    names = ("loss", "gradient norm", "finite", "first module", "operation", "samples")
    columns = zip(names, _format_numbers(done.recorded), _format_numbers(done.now), strict=True)
    changed = f", {' and '.join(done.changes)}" if done.changes else ""
    show.print_table(f"Step {done.step}{changed}", ("", "in the run", "now"), list(columns))
    if done.as_recorded:
        print_escaped("Loss and gradient norms are bitwise identical to the run's.")
    elif not done.is_comparable and not done.differing:
        print_escaped("All recorded numbers are NaN or infinite, so the steps cannot be compared.")
    else:
        names_of = list(done.differing)
        shown = ", ".join(names_of[:6]) + (" ..." if len(names_of) > 6 else "")
        print_escaped(
            f"Not bitwise identical: {shown or 'the loss, the norm or the outputs of modules'}."
        )
    print_escaped(done.now.text)


def _format_numbers(numbers: StepNumbers) -> tuple[str, ...]:
    norm = "none" if numbers.grad_norm is None else f"{numbers.grad_norm:.6g}"
    module = "the model itself" if numbers.module == "" else numbers.module or "no module"
    return (
        f"{numbers.loss:.6g}",
        norm,
        "yes" if numbers.finite else "no",
        "" if numbers.finite else module,
        "" if numbers.finite else numbers.operation or "not known",
        ", ".join(map(str, numbers.samples)),
    )
