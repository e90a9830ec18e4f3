"""`surestep predict RUN`."""

import sys
from typing import Annotated, Literal

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


@command("predict")
def run(
    checkpoint: Annotated[str, tyro.conf.arg(metavar="RUN")],
    /,
    *,
    split: str = "test",
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
        split: test, train, or the name of a validation set.
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
    path = require_local_path(folder.path / f"predictions-{split}.npz" if out is None else out)
    from surestep.record.prediction_files import open_predictions  # imports numpy

    with open_predictions(path, overwrite=overwrite) as write:
        call = load_run_recipe(folder, parse_allowed(allow))
        from surestep.trainer.evaluator import predict_run

        # Without a terminal there is no bar.
        with tqdm(unit="sample", disable=None, file=sys.stderr, dynamic_ncols=True) as bar:

            def watch(done: int, total: int | None) -> None:
                bar.total = total
                bar.update(done - bar.n)

            saved, found = predict_run(
                folder,
                call.task(),
                call.config,
                split=split,
                which=selected,
                mc_dropout=mc_dropout,
                watch=watch,
                folder=path.parent,
            )
        write(found.arrays)
    for notice in found.notices:
        print_escaped(notice, file=sys.stderr)
    summary = f"{describe_which(selected)}step {saved.step}: {found.samples} samples of {split}"
    passes = "" if found.passes is None else f", {found.passes} passes"
    print_escaped(f"{summary}{passes}", file=sys.stderr)
    if json:
        shapes = {name: list(array.shape) for name, array in found.arrays.items()}
        step = {"step": saved.step, "checkpoint": str(saved.path), "notices": found.notices}
        print_json(dumps({"path": str(path), "samples": found.samples, "arrays": shapes, **step}))
    else:
        print_escaped(str(path))
    return 0
