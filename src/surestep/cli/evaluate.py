"""`surestep evaluate RUN`."""

import sys
from typing import Annotated, Literal

import tyro

from surestep.base.text import print_escaped, print_json
from surestep.cli import output as show
from surestep.cli.load_run import (
    AllowRecipe,
    describe_which,
    load_run_recipe,
    parse_allowed,
    parse_run_ref,
)
from surestep.cli.parse import command
from surestep.record.io import dumps


@command("evaluate")
def run(
    checkpoint: Annotated[str, tyro.conf.arg(metavar="RUN")],
    /,
    *,
    split: str = "val",
    which: Literal["best", "last", "average"] = "best",
    allow: AllowRecipe = None,
    json: bool = False,
) -> int:
    """Evaluate a checkpoint of a run on one split of its data.

    Args:
        checkpoint: Run folder, or RUN@200 for the checkpoint of step 200.
        split: val, test, train, or the name of a validation set; val means all validation sets.
        which: Which weights to evaluate.
        allow: recipe: run the recipe although its file has changed; recipe-inside: run one that
            is in a run folder, a mirror or a study.
        json: Print the metrics as JSON.
    """
    folder, selected = parse_run_ref(checkpoint, which)
    call = load_run_recipe(folder, parse_allowed(allow))
    task = call.task()
    from surestep.engine.metrics.base import is_confusion
    from surestep.trainer.evaluator import evaluate_run

    reasons: list[str] = []
    samples: dict[str, int] = {}
    saved, metrics = evaluate_run(
        folder,
        task,
        call.config,
        split=split,
        which=selected,
        warn=reasons.append,
        count=samples.__setitem__,
    )
    for reason in reasons:
        print_escaped(reason, file=sys.stderr)
    if json:
        found = {"step": saved.step, "path": str(saved.path), "metrics": metrics}
        print_json(dumps(found | {"samples": samples}))
        return 0
    title = f"{folder.path.name}, {describe_which(selected)}step {saved.step}"
    show.print_table(title, ("metric", "value"), show.metric_rows(metrics))
    for name, value in metrics.items():
        if isinstance(value, list) and is_confusion(task.metrics.get(name.split("/", 1)[1])):
            show.print_confusion_matrix(name, value)
    if not reasons and any(value != value for value in metrics.values()):
        print_escaped(
            "A metric is nan if no sample or prediction counts for it, or if the model's outputs "
            "are nan."
        )
    counted = ", ".join(f"{count} samples of {name}" for name, count in samples.items())
    print_escaped(f"Measured: {counted}")
    return 0
