"""`surestep predict RUN`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import tyro
from tqdm import tqdm

from surestep.base.local import local_path
from surestep.base.printable import print_escaped, print_json
from surestep.cli.parse import parse
from surestep.cli.rebuild import asked_for, called, rebuilt
from surestep.record.files import dumps

if TYPE_CHECKING:  # torch is imported once the command line is checked
    from surestep.trainer.predict import Watch


@dataclass(frozen=True)
class Options:
    """Write what the model of a run says of each sample of a part, in the order of the data.

    Attributes:
        run: Run folder. RUN@200 is its checkpoint of a step.
        part: test, train, or a validation set's name.
        which: Which checkpoint's weights.
        out: File to write: .npz, .safetensors, .csv or .jsonl; predictions-PART.npz in the
            run folder if not set.
        mc_dropout: Passes with dropout on (Monte-Carlo dropout), for mean and spread; 2 or more.
        overwrite: Replace the file if it is there.
        allow: recipe, to run it although its file has changed.
        json: Print what was written as JSON.
    """

    run: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    part: str = "test"
    which: Literal["best", "last", "average"] = "best"
    out: str | None = None
    mc_dropout: int | None = None
    overwrite: bool = False
    allow: Literal["recipe"] | None = None
    json: bool = False


def run(words: list[str]) -> int:
    """Write what the model of a run says of each sample of a part."""
    parsed = parse(Options, words, "surestep predict")
    folder, which = asked_for(parsed.run, parsed.which)
    out = (
        folder.path / f"predictions-{parsed.part}.npz"
        if parsed.out is None
        else local_path(parsed.out)
    )
    from surestep.record.predictions import writing  # with numpy, which --help does not need

    with writing(out, overwrite=parsed.overwrite) as write:
        task, config = rebuilt(folder, allow_changed=parsed.allow == "recipe")
        from surestep.trainer.predict import predict_run

        with _bar() as watch:
            saved, found = predict_run(
                folder,
                task,
                config,
                part=parsed.part,
                which=which,
                mc_dropout=parsed.mc_dropout,
                watch=watch,
                folder=out.parent,
            )
        write(found.arrays)
    for notice in found.notices:
        print_escaped(notice, file=sys.stderr)
    said = f"{called(which)}step {saved.step}: {len(found)} samples of {parsed.part}"
    print_escaped(
        said if found.passes is None else f"{said}, {found.passes} passes", file=sys.stderr
    )
    if parsed.json:
        shapes = {name: list(each.shape) for name, each in found.arrays.items()}
        step = {"step": saved.step, "checkpoint": str(saved.path), "notices": found.notices}
        print_json(dumps({"path": str(out), "samples": len(found), "arrays": shapes, **step}))
    else:
        print_escaped(str(out))
    return 0


@contextmanager
def _bar() -> Iterator[Watch]:
    """Show how far it is on stderr, where that is a terminal."""
    with tqdm(unit="sample", disable=None, file=sys.stderr, dynamic_ncols=True) as bar:

        def watch(done: int, total: int | None) -> None:
            bar.total = total
            bar.update(done - bar.n)

        yield watch
