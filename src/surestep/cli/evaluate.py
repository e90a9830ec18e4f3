"""`surestep evaluate RUN`."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Annotated, Literal

import tyro

from surestep.base.printable import print_escaped, print_json
from surestep.cli import show
from surestep.cli.parse import parse
from surestep.cli.rebuild import asked_for, called, rebuilt
from surestep.record.files import dumps

_NAN = (
    "nan is not a number: there was nothing to measure it by (no sample or prediction of that "
    "kind), or the outputs are not numbers themselves."
)


@dataclass(frozen=True)
class Options:
    """Measure the weights of a run's checkpoint on a part of its data.

    Attributes:
        run: Run folder. RUN@200 is its checkpoint of a step.
        part: val, test, train, or a validation set's name; val means all of those.
        which: Which checkpoint's weights.
        allow: recipe, to run it although its file has changed.
        json: Print the metrics as JSON.
    """

    run: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    part: str = "val"
    which: Literal["best", "last", "average"] = "best"
    allow: Literal["recipe"] | None = None
    json: bool = False


def run(words: list[str]) -> int:
    """Measure the weights of a run's checkpoint on a part of its data."""
    parsed = parse(Options, words, "surestep evaluate")
    folder, which = asked_for(parsed.run, parsed.which)
    task, config = rebuilt(folder, allow_changed=parsed.allow == "recipe")
    from surestep.engine.metrics import is_confusion
    from surestep.trainer.measure import measure_run

    reasons: list[str] = []
    saved, metrics = measure_run(
        folder, task, config, part=parsed.part, which=which, warn=reasons.append
    )
    for reason in reasons:
        print_escaped(reason, file=sys.stderr)
    if parsed.json:
        print_json(dumps({"step": saved.step, "path": str(saved.path), "metrics": metrics}))
        return 0
    title = f"{folder.path.name}, {called(which)}step {saved.step}"
    show.table(title, ("metric", "value"), show.metric_rows(metrics))
    for name, value in metrics.items():
        if isinstance(value, list) and is_confusion(task.metrics.get(name.split("/", 1)[1])):
            show.confusion(name, value)
    if not reasons and any(value != value for value in metrics.values()):
        print_escaped(_NAN)
    return 0
