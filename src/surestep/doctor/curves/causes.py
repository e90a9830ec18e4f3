"""The usual causes of each state of a curve, in the order to try, with what to type."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from surestep.doctor.curves.state import CurveState, Name

_LOWER, _HIGHER = 0.1, 10.0  # times the learning rate, in the suggested options


@dataclass(frozen=True)
class Cause:
    """A usual cause.

    Attributes:
        text: the cause, and how to recognize it.
        command: what to type, with {train} and other names to fill in; ""
            if there is nothing to type.
    """

    text: str
    command: str = ""


_OVERFIT = Cause(
    "The model, the loss or the update has a mistake: then it cannot even learn 32 samples.",
    "{train} --overfit 32",
)
_CHECK = Cause("The script has a mistake that raises no error.", "{check}")
_TOO_HIGH = Cause("The learning rate is too high.", "{train} --optim.lr {lower}")
_HALF = Cause("Half precision overflows.", "{train} --precision fp32")

CAUSES: dict[Name, tuple[Cause, ...]] = {
    "nonfinite": (
        Cause(
            "An operation such as log(0) or 1/0, or a sample that is not finite. A replay of the "
            "step finds the operation and the samples.",
            "surestep replay {incident}",
        ),
        _TOO_HIGH,
        _HALF,
    ),
    "diverging": (
        _TOO_HIGH,
        Cause("The first steps are too large.", "{train} --schedule.warmup 10%"),
        Cause("Single batches have far larger gradients.", "{train} --max-grad-norm 1"),
        Cause(
            "Inputs or targets have very different scales. Subtract the mean of the training data, "
            "and divide by its standard deviation."
        ),
        _CHECK,
    ),
    "stuck": (
        Cause(
            "The targets do not belong to the inputs: look them up for ten samples.",
            "surestep explain SS610",
        ),
        _OVERFIT,
        Cause("The learning rate is too low.", "{train} --optim.lr {higher}"),
        Cause(
            "The learning rate is too high: the first steps have saturated the model, so that it "
            "has no gradient.",
            "{train} --optim.lr {lower}",
        ),
        _CHECK,
    ),
    "flat": (
        Cause("The learning rate is zero, or too low.", "{train} --optim.lr {higher}"),
        _OVERFIT,
        Cause(
            "The loss does not reach the parameters: a detach(), a no_grad(), or an optimizer of "
            "other parameters.",
            "{check}",
        ),
        Cause("The targets do not belong to the inputs.", "surestep explain SS610"),
        Cause(
            "The learning rate is too high: the loss has been random from the first step on.",
            "{train} --optim.lr {lower}",
        ),
    ),
    "overfitting": (
        Cause(
            "The run is too long. Its best checkpoint is the one to use; stop the next run after "
            "the best evaluation.",
            "{train} --early-stop.patience 5",
        ),
        Cause("Too little weight decay.", "{train} --optim.weight-decay 0.1"),
        Cause("Too little data for the model: add data or augmentation, add dropout."),
        Cause("The model is too large: train one of half the width."),
        Cause(
            "The validation data is of another kind than the training data: split both at random "
            "from the same data, and compare."
        ),
    ),
    "leaking": (
        Cause(
            "Samples of the validation data are in the training data too.",
            "surestep explain SS605",
        ),
        Cause(
            "The inputs contain the target, such as an identifier or a column computed from it: "
            "train without one column after another."
        ),
        Cause(
            "The data was scaled, selected or filled in before it was split.",
            "{check} --select SS604,SS606",
        ),
        Cause("The task is that easy: a linear model, or the most frequent class, does as well."),
    ),
    "oscillating": (
        _TOO_HIGH,
        Cause("The batches are too small.", "{train} --batch-size {batch}"),
        Cause(
            "The data has an order: the loss rises and falls with it.",
            "surestep explain SS601",
        ),
        Cause("The learning rate stays high.", "{train} --schedule.name cosine"),
    ),
    "plateau": (
        Cause(
            "The learning rate stays high: a lower one at the end often gives more.",
            "{train} --schedule.name cosine",
        ),
        Cause("The model is too small: train one of twice the width."),
        Cause("The targets are noisy: no model has a lower loss."),
    ),
    "falling": (),
    "unclear": (Cause("Train longer.", "{train} --max-steps {steps}"),),
}


def list_causes(
    state: CurveState,
    config: Mapping[str, Any],
    *,
    recipe: str = "",
    script: str = "",
    run: str = "",
) -> list[Cause]:
    """Return the usual causes of a state, with the commands for a run.

    Args:
        state: of the curve.
        config: the content of the run's config.json.
        recipe: of the run, as it is typed; "" if a script started it.
        script: the file that has the recipe; "" if it is not known.
        run: the folder of the run, as it is typed; "" if it is not known.
    """
    decided = config.get("decided", {})
    rate, batch, steps = (decided.get(key) for key in ("optim.lr", "batch_size", "total_steps"))
    values = {
        "train": f"surestep train {shlex.quote(recipe or 'RECIPE')}",
        "check": f"surestep check {shlex.quote(script or 'SCRIPT.py')}",
        "incident": shlex.quote(f"{run or 'RUN'}/incidents/step-{state.since_step or 0:08d}"),
        "lower": _scale(rate, _LOWER),
        "higher": _scale(rate, _HIGHER),
        "batch": str(2 * batch) if isinstance(batch, int) and batch else "128",
        "steps": str(max(1000, 10 * steps)) if isinstance(steps, int) else "1000",
    }
    causes = [cause for cause in CAUSES[state.name] if cause is not _HALF or _is_half(decided)]
    return [Cause(cause.text, cause.command.format(**values)) for cause in causes]


def _is_half(options: Mapping[str, Any]) -> bool:
    """Whether a run has half precision, as far as its options show."""
    return options.get("precision") not in ("fp32", "tf32")


def _scale(rate: object, factor: float) -> str:
    """Return a learning rate times a factor; 0.001 if that of the run is not a positive number."""
    if not isinstance(rate, int | float) or not rate > 0:
        return "0.001"
    return f"{rate * factor:.2g}"
