"""`surestep replay INCIDENT`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from surestep.base.errors import ConfigError, RunError
from surestep.base.paths import require_local_path
from surestep.base.text import print_escaped, print_json
from surestep.cli import output as show
from surestep.cli.load_run import load_task_and_config
from surestep.cli.parse import parse
from surestep.record.incident import read_incident
from surestep.record.io import dumps
from surestep.record.run import Run

if TYPE_CHECKING:  # torch is imported once the command line is checked
    from surestep.trainer.replay import ReplayResult, StepNumbers


@dataclass(frozen=True)
class Options:
    """Run a step that was not finite again, and show what changes.

    Attributes:
        incident: Folder of the incident, RUN/incidents/step-XXXXXXXX.
        precision: Use a different precision: fp32, tf32, bf16 or fp16.
        without: Samples to exclude, by index in the dataset: 17,42.
        allow: Pass `recipe` to run the recipe although its file has changed.
        json: Print the result as JSON.
    """

    incident: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="INCIDENT")]
    precision: str | None = None
    without: Annotated[str, tyro.conf.arg(metavar="SAMPLES")] = ""
    allow: Literal["recipe"] | None = None
    json: bool = False


def run(words: list[str]) -> int:
    """Run a step that was not finite again, and show what changes."""
    parsed = parse(Options, words, "surestep replay")
    incident = read_incident(require_local_path(parsed.incident))
    without = _samples(parsed.without)
    folder = Run(incident.run)
    if not folder.config["recipe"]:
        raise RunError(
            f"{folder.path} was started from Python, not from a recipe. Take the step again there: "
            f"surestep.replay({str(incident.path)!r}, task)."
        )
    task, _ = load_task_and_config(folder, allow_changed=parsed.allow == "recipe")
    from surestep.trainer.replay import replay

    done = replay(incident.path, task, precision=parsed.precision, without=without)
    if parsed.json:
        print_json(dumps(asdict(done)))
        return 0
    _print(done)
    return 0


def _samples(text: str) -> list[int]:
    try:
        return [int(each) for each in text.split(",") if each.strip()]
    except ValueError:
        raise ConfigError(
            f"--without {text} is not known. Say indices of samples, such as --without 17,42."
        ) from None


def _print(done: ReplayResult) -> None:
    names = ("loss", "gradient norm", "finite", "first in", "made by", "samples")
    columns = zip(names, _shown(done.recorded), _shown(done.now), strict=True)
    changed = f", {' and '.join(done.changes)}" if done.changes else ""
    show.print_table(f"Step {done.step}{changed}", ("", "in the run", "now"), list(columns))
    if not done.has_each:
        print_escaped(
            "Gradient norms of parameters are not available: the ranks had pieces of gradients."
        )
    if done.as_recorded:
        print_escaped("Loss and gradient norms are bit for bit as recorded.")
    elif not done.can_tell and not done.differing:
        print_escaped(
            "All that was recorded is NaN or infinite, which does not tell one step from another."
        )
    else:
        names_of = list(done.differing)
        shown = ", ".join(names_of[:6]) + (" ..." if len(names_of) > 6 else "")
        print_escaped(
            f"Not bit for bit as recorded: {shown or 'the loss, the norm or what modules return'}."
        )
    print_escaped(done.now.text)


def _shown(figures: StepNumbers) -> tuple[str, ...]:
    norm = "none" if figures.grad_norm is None else f"{figures.grad_norm:.6g}"
    module = "the model itself" if figures.module == "" else figures.module or "no module"
    return (
        f"{figures.loss:.6g}",
        norm,
        "yes" if figures.finite else "no",
        "" if figures.finite else module,
        "" if figures.finite else figures.operation or "not known",
        ", ".join(map(str, figures.samples)),
    )
