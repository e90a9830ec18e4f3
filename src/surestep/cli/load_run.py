"""The Task and the Config of a run, built again from its recipe."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from surestep.base.errors import ConfigError, RecipeError, RunError
from surestep.base.text import print_escaped
from surestep.config.config import Config
from surestep.engine.distributed.launcher_env import read_launched
from surestep.engine.step.gc import import_without_collecting
from surestep.recipes.find import SHIPPED, sha256
from surestep.record.checkpoint_ref import split_name
from surestep.record.run import Run, Which

if TYPE_CHECKING:  # torch is imported with the recipe
    from surestep.engine.task.task import Task
    from surestep.recipes.load import Recipe
    from surestep.trainer.planning import TaskOrigin


class RunRecipe(NamedTuple):
    """The recipe of a run as it is now, with the run's parameters and options."""

    folder: Run
    recipe: Recipe
    parameters: dict[str, Any]
    config: Config

    def task(self) -> Task:
        """Call the recipe's function."""
        return self.recipe.build(self.parameters, self.config)

    @property
    def origin(self) -> TaskOrigin:
        """Where the Task comes from."""
        place = f"{self.folder.path}/config.json"
        return self.recipe.origin(self.parameters, dict.fromkeys(self.config.set_options(), place))


def parse_run_ref(text: str, which: Which) -> tuple[Run, Which | int]:
    """Parse "RUN" with --which, or "RUN@STEP"; return the run and the checkpoint's name.

    Raises:
        ConfigError: both name a checkpoint, and they differ.
        RunError: there is no such run.
    """
    path, named = split_name(text)
    if named is not None and which not in ("best", named):
        raise ConfigError(f"{text} and --which {which} name different checkpoints. Use only one.")
    return Run(path), which if named is None else named


def describe_which(which: Which | int) -> str:
    """Return a prefix for "step N"; empty if the step itself was asked for."""
    return "" if isinstance(which, int) else f"{which} checkpoint, "


def load_run_recipe(folder: Run, *, allow_changed: bool) -> RunRecipe:
    """Load the recipe's file as it is now, with the run's parameters and options.

    Raises:
        RunError: the run has no recipe.
        RecipeError: its file is missing, or has changed and `allow_changed` is False.
    """
    recorded = folder.config
    recipe = _recipe(folder, recorded["recipe"], allow_changed=allow_changed)
    config = Config.from_options(recorded["config"])
    places = {f"task.{name}": str(folder.path / "config.json") for name in recorded["task"]}
    return RunRecipe(folder, recipe, recipe.typed(recorded["task"], places), config)


def _recipe(folder: Run, known: dict[str, str], *, allow_changed: bool) -> Recipe:
    """Print which file is run, and load the recipe; reject a file that has changed."""
    if not known:
        raise RunError(
            f"{folder.path} was started from Python, not from a recipe. In Python, load its "
            "weights with surestep.Run(path).load_model(model), or resume it with "
            "surestep.Trainer(task, config, run=path)."
        )
    path = Path(known["path"])
    if not path.is_file():
        raise RecipeError(
            f"The recipe of {folder.path} is missing: {path}. Restore the file, or pass its new "
            f"path: surestep train RECIPE --run {shlex.quote(str(folder.path))}."
        )
    if sha256(path) != known["sha256"] and not allow_changed:
        raise RecipeError(
            f"{path} has changed since {folder.path} was trained. Pass --allow recipe to run the "
            "changed file."
        )
    if read_launched().rank == 0:
        print_escaped(f"Running {path}", file=sys.stderr)
    with import_without_collecting():
        from surestep.recipes.load import load

    return load(recipe_argument(known))  # outside the block: its code may disable the collector


def recipe_argument(known: dict[str, str]) -> str:
    """Return a recorded recipe as it is typed: the name of a built-in one, else its path."""
    return known["name"] if Path(known["path"]).parent == SHIPPED else known["path"]
