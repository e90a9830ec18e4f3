"""The Task and the Config of a run, built again from its recipe."""

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
    """The recipe of a run as it is now, with the run's parameters and options."""

    recipe: Recipe
    parameters: dict[str, Any]
    config: Config

    def task(self) -> Task:
        """Call the recipe's function."""
        return self.recipe.build(self.parameters, self.config)


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


def load_task_and_config(folder: Run, *, allow_changed: bool) -> tuple[Task, Config]:
    """Return the task and the config of a run, from the recipe's file as it is now.

    Raises:
        RunError, RecipeError: as `load_run_recipe()`.
    """
    found = load_run_recipe(folder, allow_changed=allow_changed)
    return found.task(), found.config


def load_run_recipe(folder: Run, *, allow_changed: bool) -> RunRecipe:
    """Load the recipe's file as it is now, with the run's parameters and options.

    Raises:
        RunError: the run has no recipe.
        RecipeError: its file is missing, or has changed and `allow_changed` is False.
    """
    asked = folder.config
    recipe = _recipe(folder, asked["recipe"], allow_changed=allow_changed)
    config = Config.from_options(asked["config"])
    places = {f"task.{name}": str(folder.path / "config.json") for name in asked["task"]}
    return RunRecipe(recipe, recipe.typed(asked["task"], places), config)


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


def original_options(folder: Run, *, without: Sequence[str]) -> list[str]:
    """Return the command-line options of a run that differ from its recipe's defaults.

    Args:
        folder: of the run.
        without: options that are typed again, and so are left out.

    Raises:
        RecipeError: its recipe cannot be read.
    """
    from surestep.recipes.load import load

    recipe = load(recipe_argument(folder.config["recipe"]))
    defaults = recipe.config.set_options()
    recorded = Config.from_options(folder.config["config"]).set_options()
    options = {k: value for k, value in recorded.items() if defaults.get(k, NOT_SET) != value}
    for name, parameter in recipe.parameters.items():
        value = folder.config["task"].get(name, parameter.default)
        options |= {f"task.{name}": value} if value != parameter.default else {}
    replaced = {word.lstrip("-").partition("=")[0].replace("-", "_") for word in without}
    replaced |= {"epochs", "max_steps"} if replaced & {"epochs", "max_steps"} else set()
    return [
        word
        for name, value in options.items()
        if name not in replaced and not isinstance(value, dict)
        for word in (f"--{name.replace('_', '-')}", *_words(value))
    ]


def _words(value: Any) -> list[str]:
    values = value if isinstance(value, list | tuple) else [value]
    return ["off" if value is None else str(value) for value in values]
