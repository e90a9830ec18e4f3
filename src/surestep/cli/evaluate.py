"""`surestep evaluate RUN`."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from surestep.base.config import Config
from surestep.base.errors import RecipeError, RunError
from surestep.cli import show
from surestep.recipes.load import SHIPPED, Recipe, load, sha256
from surestep.record.files import dumps
from surestep.record.run import Run
from surestep.trainer.measure import measure_run


@dataclass(frozen=True)
class Options:
    """Measure the weights of a run's checkpoint on a part of its data.

    Attributes:
        run: Run folder.
        part: val, test, train, or a validation set's name; val means all of those.
        which: Which checkpoint's weights.
        allow_changed: Run the recipe although its file has changed.
        json: Print the metrics as JSON.
    """

    run: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    part: str = "val"
    which: Literal["best", "last", "average"] = "best"
    allow_changed: bool = False
    json: bool = False


def run(words: list[str]) -> int:
    """Measure the weights of a run's checkpoint on a part of its data."""
    parsed = tyro.cli(
        Options, args=words, prog="surestep evaluate", config=(tyro.conf.FlagCreatePairsOff,)
    )
    folder = Run(Path(parsed.run))
    asked = folder.config
    recipe = _recipe(folder, asked["recipe"], allow_changed=parsed.allow_changed)
    config = Config.from_options(asked["config"])
    task = recipe.build(recipe.typed(asked["task"]), config)
    saved, metrics = measure_run(folder, task, config, part=parsed.part, which=parsed.which)
    if parsed.json:
        print(dumps({"step": saved.step, "path": str(saved.path), "metrics": metrics}))
        return 0
    title = f"{folder.path.name}, {parsed.which} checkpoint, step {saved.step}"
    show.table(title, ("metric", "value"), show.metric_rows(metrics))
    return 0


def _recipe(folder: Run, known: dict[str, str], *, allow_changed: bool) -> Recipe:
    """Return the recipe of a run; say which file is run, and refuse one that has changed."""
    if not known:
        raise RunError(
            f"{folder.path} was started from Python, not from a recipe. Load its weights there: "
            "surestep.Run(path).load_model(model)."
        )
    path = Path(known["path"])
    if not path.is_file():
        raise RecipeError(f"The recipe of {folder.path} is not there any more: {path}.")
    if sha256(path) != known["sha256"] and not allow_changed:
        raise RecipeError(
            f"{path} has changed since {folder.path} was trained. Say --allow-changed to run it "
            "all the same."
        )
    print(f"Running {path}", file=sys.stderr)
    return load(known["name"] if path.parent == SHIPPED else str(path))
