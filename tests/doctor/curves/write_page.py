"""Write docs/curves.md and its pictures: `python -m tests.doctor.curves.write_page`.

docs/curves/ has one picture for each state: the training loss and, if the state needs it, that of
the validation.
"""

import math
from pathlib import Path

import numpy as np

from surestep.doctor.curves.causes import list_causes
from surestep.doctor.curves.curve import Curve, Evaluations
from surestep.doctor.curves.state import TITLES, CurveState, Name

DOCS = Path(__file__).parents[3] / "docs"
HEADER = "<!-- Written by `python -m tests.doctor.curves.write_page`: edit that module. -->"
INTRO = """\
# The loss curve of a run

`surestep diagnose` names the curve of a run, shows the numbers, and lists the usual causes in the
order to try, with what to type. It also lists the
[findings](running.md#findings-at-the-end-of-a-run) of the run, and its
[steps that were not finite](incidents.md) with the command that runs each again.

<!-- not run: the runs do not exist -->
```sh
surestep diagnose                  # the newest run in the folder runs
surestep diagnose runs/digits      # of a run that is running, stopped, failed or finished
surestep diagnose s3://bucket/run  # of its mirror
surestep diagnose runs/digits --json
```

For example, a large network that was trained on 200 digits with some wrong labels:

```text
runs/few: finished, step 420 of 420

overfitting since step 63
  The validation loss rose from 1.53 at step 63 to 2.86 in 51 evaluations, and the training loss
  fell from 1.07 to 0.0628.

  Usual causes, in the order to try:
  1. The run is too long. Its best checkpoint is the one to use; stop the next run after the best
     evaluation.
       surestep train RECIPE --early-stop.patience 5
  ...
```

At the end of a run, the states *overfitting*, *flat from the start*, *stuck at log(classes)* and
*diverging* are findings of the rule [SS408](rules/ss408-unhealthy-loss-curve.md), and *leaking* is
one of [SS607](rules/ss607-too-good-too-early.md).

## The states

The training loss is blue, and the validation loss is orange.

| curve | state | condition |
|---|---|---|
"""
RULES = """\
## How a curve is named

- The losses are averaged over 40 equal parts of the run, so that the log interval and the batch
  size matter little. Single losses that are far from the others of their part are limited.
- A difference counts only if it is more than three times its own noise, and a share of the loss.
  The noise is measured by the differences of neighboring losses. So multiplying the loss by a
  number changes no state, except for *stuck at log(classes)*.
- A curve is named from 20 losses and 100 steps on. If the noise may hide a fall, or if the learning
  rate is still rising, the state is *not clear yet*. Only NaN and infinity are always named.
- Steps that were repeated after a resume or a rollback count once. The evaluations are those of the
  validation set of `validation.metric`.
- The number of classes is the size of the model's output, if the loss is a cross-entropy.
- [Manual steps](manual-steps.md) with several losses have no curve to name.

Of 18,000 random curves of correct runs, 5 were called oscillating and 2 flat from the start, and
none had another state in which something is wrong. `tests/doctor/curves/generators.py` draws them:
exponential and power-law falls, late falls, step decay and warm restarts, with independent, skewed
and similar noise, bad batches and NaN.

`--json` prints `"curve"`, a list of one or two states with `"name"`, `"since_step"`, `"message"`,
`"evidence"`, `"is_healthy"` and `"causes"`, and also `"findings"`, `"incidents"` and `"memory"`,
the reports of [memory that ran out](profiling.md#when-memory-runs-out).
"""
CONDITIONS: dict[Name, str] = {
    "falling": "the training loss fell. Nothing seems to be wrong",
    "plateau": "it fell, and has not fallen any more for at least 40% of the run, although the "
    "learning rate is not near zero",
    "overfitting": "the validation loss rises from its best for at least 5 evaluations, by 20% or "
    "more, while the training loss falls. If a score such as the accuracy still becomes much "
    "better, it is not reported",
    "flat": "the training loss did not fall: not even the largest fall that the noise may hide is "
    "8% of it",
    "stuck": "a cross-entropy stays within 2% of log(classes), that of equal probabilities, and "
    "was never below it",
    "diverging": "the training loss ends far above its start, has lost most of its fall although "
    "the learning rate did not rise, or rose to many times its start and is still not below it",
    "nonfinite": "a NaN or infinite step ended the run, or the last losses are all NaN or infinite",
    "oscillating": "in the second half of the run, the loss rises and falls at least 5 times, by "
    "more than half of itself and of its fall",
    "leaking": "the first evaluation is near perfect in the first tenth of the run, or the "
    "validation loss is less than a tenth of the training loss without dropout, label smoothing or "
    "mixup",
    "unclear": "too few losses, or too much noise",
}
FOLDER = DOCS / "curves"
_COUNT, _WIDTH, _HEIGHT, _MARGIN = 400, 240, 130, 10
_TRAIN, _VAL, _AXIS, _NOTE = "#3b82f6", "#f97316", "#94a3b8", "#7c8aa0"


def make_curves() -> dict[Name, Curve]:
    """Return a curve of each state."""
    rng = np.random.default_rng(0)
    t = np.arange(_COUNT) / _COUNT
    wiggle = 1 + 0.04 * rng.normal(size=_COUNT)
    fall = np.exp(-4 * t)
    blow_up = np.where(t < 0.45, fall, fall + 2.5 * np.minimum((t - 0.45) / 0.3, 1))
    late_nan = np.where(t < 0.6, fall * wiggle, np.nan)
    swings = 0.45 + 0.3 * np.sin(38 * t) + 0.5 * np.exp(-25 * t)
    val = np.where(t < 0.35, 0.35 + 0.65 * (1 - t / 0.35) ** 2, 0.35 + 0.7 * (t - 0.35))
    ten = math.log(10)
    return {
        "falling": _curve(fall * wiggle, 1.08 * fall),
        "plateau": _curve((0.35 + 0.65 * np.exp(-16 * t)) * wiggle),
        "flat": _curve(np.full(_COUNT, 0.85) * wiggle),
        "stuck": _curve(
            (ten + 0.7 * np.exp(-25 * t)) * (1 + 0.02 * rng.normal(size=_COUNT)), classes=10
        ),
        "diverging": _curve(blow_up * wiggle),
        "nonfinite": _curve(late_nan),
        "oscillating": _curve(swings * wiggle),
        "overfitting": _curve(np.exp(-6 * t) * wiggle, val),
        "leaking": _curve(fall * wiggle, np.full(_COUNT, 0.002)),
        "unclear": _curve((fall * wiggle)[:15]),
    }


def _curve(losses: np.ndarray, val: np.ndarray | None = None, classes: int | None = None) -> Curve:
    steps = np.arange(1, len(losses) + 1.0)
    at = np.arange(19, len(losses), 20)
    found = Evaluations()
    if val is not None:
        scores = {"accuracy": 1 - np.minimum(1.0, 0.5 * val[at])}
        found = Evaluations(steps[at], val[at], scores)
    return Curve(
        steps,
        losses,
        np.full(len(losses), 1e-3),
        found,
        classes=classes,
        total_steps=_COUNT,
    )


def draw(name: Name, curve: Curve) -> str:
    """Return a picture as SVG; its colors are readable on white and on black."""
    losses = curve.losses[np.isfinite(curve.losses)]
    high = max(float(losses.max()), *curve.evaluations.losses, 0.0) * 1.1
    parts = [_axes()]
    if name == "stuck":
        y = _y(math.log(10), high)
        parts.append(_line([(_MARGIN, y), (_WIDTH - _MARGIN, y)], _NOTE, 'stroke-dasharray="3 3"'))
        parts.append(_text(_WIDTH - _MARGIN, y + 14, "log(classes)", _NOTE))
    parts.append(_line(_points(curve.steps, curve.losses, high), _TRAIN))
    if name == "nonfinite":
        last = _points(curve.steps, curve.losses, high)[-1]
        parts.append(_text(last[0] + 32, last[1] + 3, "NaN", _TRAIN))
    found = curve.evaluations
    if len(found.steps):
        points = _points(found.steps, found.losses, high)
        parts.append(_line(points, _VAL))
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2" fill="{_VAL}"/>' for x, y in points]
    size = f'width="{_WIDTH}" height="{_HEIGHT}" viewBox="0 0 {_WIDTH} {_HEIGHT}"'
    label = "training loss" + (" and validation loss" if len(found.steps) else "")
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{name}: {label}">'
    )
    return "\n".join([head, *parts, "</svg>"]) + "\n"


def _y(value: float, high: float) -> float:
    return _HEIGHT - _MARGIN - value / high * (_HEIGHT - 2 * _MARGIN)


def _points(steps: np.ndarray, values: np.ndarray, high: float) -> list[tuple[float, float]]:
    width = _WIDTH - 2 * _MARGIN
    return [
        (_MARGIN + step / _COUNT * width, _y(value, high))
        for step, value in zip(steps, values, strict=True)
        if math.isfinite(value)
    ]


def _line(points: list[tuple[float, float]], color: str, more: str = "") -> str:
    text = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{text}" fill="none" stroke="{color}" stroke-width="1.5" {more}/>'


def _axes() -> str:
    bottom = _HEIGHT - _MARGIN
    corner = [(_MARGIN, _MARGIN), (_MARGIN, bottom), (_WIDTH - _MARGIN, bottom)]
    return _line([(float(x), float(y)) for x, y in corner], _AXIS)


def _text(x: float, y: float, text: str, color: str) -> str:
    style = f'fill="{color}" font-family="sans-serif" font-size="11" text-anchor="end"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{text}</text>'


def render_page() -> str:
    """Return the page: the states with their pictures and conditions, and the causes of each."""
    rows = [
        f"| ![{name}](curves/{name}.svg) | **{TITLES[name]}** | {text} |"
        for name, text in CONDITIONS.items()
    ]
    causes = (
        "## The usual causes, in the order to try\n\nThe commands are those for a run of the "
        "recipe digits with a learning rate of 0.003."
    )
    sections = [section for name in CONDITIONS if (section := _render_causes(name))]
    states = INTRO + "\n".join(rows)
    return "\n\n".join([HEADER, states, causes, *sections, RULES])


def _render_causes(name: Name) -> str:
    config = {"decided": {"optim.lr": 0.003, "batch_size": 64, "total_steps": 570}}
    state = CurveState(name, "", 6 if name == "nonfinite" else None)
    script = "src/surestep/recipes/digits.py"
    causes = list_causes(state, config, recipe="digits", script=script, run="runs/digits")
    if not causes:
        return ""
    lines = []
    for number, cause in enumerate(causes, 1):
        command = f" `{cause.command}`" if cause.command else ""
        lines.append(f"{number}. {cause.text}{command}")
    title = TITLES[name][0].upper() + TITLES[name][1:]
    return "\n".join([f"### {title}", "", *lines])


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    (DOCS / "curves.md").write_text(render_page(), encoding="utf-8")
    for name, curve in make_curves().items():
        (FOLDER / f"{name}.svg").write_text(draw(name, curve), encoding="utf-8")


if __name__ == "__main__":
    main()
