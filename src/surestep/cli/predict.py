"""`surestep predict RUN`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro
from tqdm import tqdm

from surestep.base.paths import require_local_path
from surestep.base.text import print_escaped, print_json
from surestep.cli.load_run import (
    AllowRecipe,
    describe_which,
    load_run_recipe,
    parse_allowed,
    parse_run_ref,
)
from surestep.cli.parse import command
from surestep.record.io import dumps

if TYPE_CHECKING:  # they import numpy and torch
    from surestep.engine.evaluate.predict import Predictions
    from surestep.record.checkpoint.reader import CheckpointInfo
    from surestep.record.prediction_files import Arrays


@command("predict")
def run(
    checkpoint: Annotated[str, tyro.conf.arg(metavar="RUN")],
    /,
    *,
    split: str | None = None,
    which: Literal["best", "last", "average"] = "best",
    out: str | None = None,
    mc_dropout: int | None = None,
    overwrite: bool = False,
    allow: AllowRecipe = None,
    json: bool = False,
) -> int:
    """Write the model's prediction for every sample of one split, in stored order.

    Args:
        checkpoint: Run folder, or RUN@200 for the checkpoint of step 200.
        split: test, train, or the name of a validation set; the default is test, or val without
            test data.
        which: Which weights to use.
        out: File to write: .npz, .safetensors, .csv or .jsonl; the default is
            predictions-SPLIT.npz in the run folder.
        mc_dropout: Number of passes with dropout on (Monte-Carlo dropout), at least 2.
        overwrite: Replace an existing file.
        allow: recipe: run the recipe although its file has changed; recipe-inside: run one that
            is in a run folder, a mirror or a study.
        json: Print what was written as JSON.
    """
    folder, selected = parse_run_ref(checkpoint, which)
    from surestep.record.prediction_files import open_predictions  # imports numpy

    with ExitStack() as opened:

        def open_file(split: str | None) -> tuple[Path, Callable[[Arrays], None]]:
            default = folder.path / f"predictions-{split}.npz"
            path = require_local_path(default if out is None else out)
            return path, opened.enter_context(open_predictions(path, overwrite=overwrite))

        is_known = out is not None or split is not None  # so it is checked before the recipe runs
        file = open_file(split) if is_known else None
        call = load_run_recipe(folder, parse_allowed(allow))
        from surestep.trainer.evaluator import predict_run
        from surestep.trainer.planning import choose_split_to_predict

        task = call.task()
        part = split or choose_split_to_predict(task)
        if split is None and part != "test":
            print_escaped(f"The task has no test data, so {part} is predicted.", file=sys.stderr)
        path, write = file or open_file(part)
        # Without a terminal there is no bar.
        with tqdm(unit="sample", disable=None, file=sys.stderr, dynamic_ncols=True) as bar:

            def watch(done: int, total: int | None) -> None:
                bar.total = total
                bar.update(done - bar.n)

            saved, found = predict_run(
                folder,
                task,
                call.config,
                split=part,
                which=selected,
                mc_dropout=mc_dropout,
                watch=watch,
                folder=path.parent,
            )
        write(found.arrays)
    of = f"{describe_which(selected)}step {saved.step}: {found.samples} samples of {part}"
    _report(path, saved, found, of, as_json=json)
    return 0


def _report(
    path: Path, saved: CheckpointInfo, found: Predictions, of: str, *, as_json: bool
) -> None:
    """Print the path on stdout, and everything else on stderr."""
    for notice in found.notices:
        print_escaped(notice, file=sys.stderr)
    passes = "" if found.passes is None else f", {found.passes} passes"
    print_escaped(f"{of}{passes}", file=sys.stderr)
    if as_json:
        shapes = {name: list(array.shape) for name, array in found.arrays.items()}
        step = {"step": saved.step, "checkpoint": str(saved.path), "notices": found.notices}
        print_json(dumps({"path": str(path), "samples": found.samples, "arrays": shapes, **step}))
    else:
        print_escaped(str(path))
