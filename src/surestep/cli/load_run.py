"""The Task and the Config of a run, built again from the recipe it was trained by."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from surestep.base.errors import ConfigError, RecipeError, RunError
from surestep.base.text import print_escaped
from surestep.config.config import Config
from surestep.config.not_set import NOT_SET
from surestep.engine.distributed.launcher_env import read_launched
from surestep.engine.step.gc import import_without_collecting
from surestep.recipes.find import SHIPPED, sha256
from surestep.record.checkpoint_ref import split_name
from surestep.record.run import Run, Which

if TYPE_CHECKING:  # torch is imported with the recipe
    from surestep.engine.task.task import Task
    from surestep.recipes.load import Recipe


class RunRecipe(NamedTuple):
    """A recipe as it is now, with what a run was called with and asked for."""

    recipe: Recipe
    parameters: dict[str, Any]
    config: Config

    def task(self) -> Task:
        """Call the recipe's function."""
        return self.recipe.build(self.parameters, self.config)


def parse_run_ref(text: str, which: Which) -> tuple[Run, Which | int]:
    """Return the run and which of its checkpoints, by "RUN" and --which, or by "RUN@STEP".

    Raises:
        ConfigError: both say which.
        RunError: there is no such run.
    """
    path, named = split_name(text)
    if named is not None and which not in ("best", named):
        raise ConfigError(f"{text} and --which {which} name two checkpoints. Leave one out.")
    return Run(path), which if named is None else named


def describe_which(which: Which | int) -> str:
    """Return what goes before the step that was taken; a step itself needs no more."""
    return "" if isinstance(which, int) else f"{which} checkpoint, "


def load_task_and_config(folder: Run, *, allow_changed: bool) -> tuple[Task, Config]:
    """Return what was trained and what was asked, by the recipe's file as it is now.

    Raises:
        RunError, RecipeError: as `recorded()`.
    """
    found = load_run_recipe(folder, allow_changed=allow_changed)
    return found.task(), found.config


def load_run_recipe(folder: Run, *, allow_changed: bool) -> RunRecipe:
    """Return what a run was made of, by the recipe's file as it is now.

    Raises:
        RunError: the run has no recipe.
        RecipeError: its file is gone, or has changed and nobody allowed it.
    """
    asked = folder.config
    recipe = _recipe(folder, asked["recipe"], allow_changed=allow_changed)
    config = Config.from_options(asked["config"])
    places = {f"task.{name}": str(folder.path / "config.json") for name in asked["task"]}
    return RunRecipe(recipe, recipe.typed(asked["task"], places), config)


def _recipe(folder: Run, known: dict[str, str], *, allow_changed: bool) -> Recipe:
    """Return the recipe of a run; say which file is run, and refuse one that has changed."""
    if not known:
        raise RunError(
            f"{folder.path} was started from Python, not from a recipe. Load its weights there: "
            "surestep.Run(path).load_model(model); or go on with surestep.Trainer(task, config, "
            "run=path)."
        )
    path = Path(known["path"])
    if not path.is_file():
        raise RecipeError(
            f"The recipe of {folder.path} is not there any more: {path}. Put it back, or train by "
            f"its new place: surestep train RECIPE --run "
            f"{shlex.quote(str(folder.path))}."
        )
    if sha256(path) != known["sha256"] and not allow_changed:
        raise RecipeError(
            f"{path} has changed since {folder.path} was trained. Say --allow recipe to run it "
            "all the same."
        )
    if read_launched().rank == 0:
        print_escaped(f"Running {path}", file=sys.stderr)
    with import_without_collecting():
        from surestep.recipes.load import load

    return load(recipe_argument(known))  # its own code may switch the collector off


def recipe_argument(known: dict[str, str]) -> str:
    """Return how a recorded recipe is typed: by its name where it ships, else by its file."""
    return known["name"] if Path(known["path"]).parent == SHIPPED else known["path"]


def original_options(folder: Run, *, without: Sequence[str]) -> list[str]:
    """Return what a run was asked beyond its recipe, as it is typed.

    Args:
        folder: of the run.
        without: words that say some of it anew.

    Raises:
        RecipeError: its recipe cannot be read.
    """
    from surestep.recipes.load import load

    recipe = load(recipe_argument(folder.config["recipe"]))
    own, asked = (
        recipe.config.set_options(),
        Config.from_options(folder.config["config"]).set_options(),
    )
    told = {name: value for name, value in asked.items() if own.get(name, NOT_SET) != value}
    for name, each in recipe.parameters.items():
        value = folder.config["task"].get(name, each.default)
        told |= {f"task.{name}": value} if value != each.default else {}
    anew = {word.lstrip("-").partition("=")[0].replace("-", "_") for word in without}
    anew |= {"epochs", "max_steps"} if anew & {"epochs", "max_steps"} else set()
    return [
        word
        for name, value in told.items()
        if name not in anew and not isinstance(value, dict)
        for word in (f"--{name.replace('_', '-')}", *_words(value))
    ]


def _words(value: Any) -> list[str]:
    values = value if isinstance(value, list | tuple) else [value]
    return ["off" if each is None else str(each) for each in values]
