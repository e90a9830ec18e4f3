"""`surestep predict RUN`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import tyro
from tqdm import tqdm

from surestep.base.paths import require_local_path
from surestep.base.text import print_escaped, print_json
from surestep.cli.load_run import describe_which, load_run_recipe, parse_run_ref
from surestep.cli.parse import parse
from surestep.record.io import dumps

if TYPE_CHECKING:  # torch is imported once the command line is checked
    from surestep.trainer.evaluator import Watch


@dataclass(frozen=True)
class Options:
    """Write the model's prediction for every sample of one split, in stored order.

    Attributes:
        run: Run folder, or RUN@200 for the checkpoint of step 200.
        split: test, train, or the name of a validation set.
        which: Which weights to use.
        out: File to write: .npz, .safetensors, .csv or .jsonl; the default is
            predictions-SPLIT.npz in the run folder.
        mc_dropout: Number of passes with dropout on (Monte-Carlo dropout), at least 2.
        overwrite: Replace an existing file.
        allow: Pass `recipe` to run the recipe although its file has changed.
        json: Print what was written as JSON.
    """

    run: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    split: str = "test"
    which: Literal["best", "last", "average"] = "best"
    out: str | None = None
    mc_dropout: int | None = None
    overwrite: bool = False
    allow: Literal["recipe"] | None = None
    json: bool = False


def run(words: list[str]) -> int:
    """Write the model's prediction for every sample of one split."""
    parsed = parse(Options, words, "surestep predict")
    folder, which = parse_run_ref(parsed.run, parsed.which)
    out = (
        folder.path / f"predictions-{parsed.split}.npz"
        if parsed.out is None
        else require_local_path(parsed.out)
    )
    from surestep.record.prediction_files import (
        open_predictions,  # with numpy, which --help does not need
    )

    with open_predictions(out, overwrite=parsed.overwrite) as write:
        loaded = load_run_recipe(folder, allow_changed=parsed.allow == "recipe")
        from surestep.trainer.evaluator import predict_run

        with _bar() as watch:
            saved, found = predict_run(
                folder,
                loaded.task(),
                loaded.config,
                split=parsed.split,
                which=which,
                mc_dropout=parsed.mc_dropout,
                watch=watch,
                folder=out.parent,
            )
        write(found.arrays)
    for notice in found.notices:
        print_escaped(notice, file=sys.stderr)
    summary = f"{describe_which(which)}step {saved.step}: {len(found)} samples of {parsed.split}"
    passes = "" if found.passes is None else f", {found.passes} passes"
    print_escaped(f"{summary}{passes}", file=sys.stderr)
    if parsed.json:
        shapes = {name: list(array.shape) for name, array in found.arrays.items()}
        step = {"step": saved.step, "checkpoint": str(saved.path), "notices": found.notices}
        print_json(dumps({"path": str(out), "samples": len(found), "arrays": shapes, **step}))
    else:
        print_escaped(str(out))
    return 0


@contextmanager
def _bar() -> Iterator[Watch]:
    """Show a progress bar on stderr if that is a terminal."""
    with tqdm(unit="sample", disable=None, file=sys.stderr, dynamic_ncols=True) as bar:

        def watch(done: int, total: int | None) -> None:
            bar.total = total
            bar.update(done - bar.n)

        yield watch
