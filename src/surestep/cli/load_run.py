"""The Task and the Config of a run, built again from its recipe."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from surestep.base.errors import ConfigError, RecipeError, RunError
from surestep.base.text import print_escaped
from surestep.config.config import Config
from surestep.engine.distributed.launcher_env import read_launched
from surestep.engine.step.gc import import_without_collecting
from surestep.mirror.link import FILE as LINK
from surestep.recipes.find import recipe_argument, sha256
from surestep.record.checkpoint_ref import split_name
from surestep.record.run import Run, Which

if TYPE_CHECKING:  # torch is imported with the recipe
    from surestep.recipes.load import RecipeCall


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
    """Return a prefix for "step N"; empty if the step itself was requested."""
    return "" if isinstance(which, int) else f"{which} checkpoint, "


def load_run_recipe(folder: Run, *, allow_changed: bool) -> RecipeCall:
    """Load the recipe's file as it is now, with the run's parameters and options.

    Raises:
        RunError: the run has no recipe.
        RecipeError: its file is missing, in a folder with a mirror, or has changed and
            `allow_changed` is False.
    """
    recorded = folder.config
    path = _check_recipe(folder, recorded["recipe"], allow_changed=allow_changed)
    if read_launched().rank == 0:
        print_escaped(f"Running {path}", file=sys.stderr)
    with import_without_collecting():
        from surestep.recipes.load import RecipeCall, load

    # Outside the block, since the recipe's own code may disable the collector.
    recipe = load(recipe_argument(recorded["recipe"]))
    config, place = Config.from_options(recorded["config"]), str(folder.path / "config.json")
    set_options = dict.fromkeys(config.set_options(), place)
    arguments = {f"task.{name}": place for name in recorded["task"]}
    return RecipeCall(recipe, config, recipe.typed(recorded["task"], arguments), set_options)


def _check_recipe(folder: Run, recorded: dict[str, Any], *, allow_changed: bool) -> Path:
    """Return the path of a run's recipe; reject a file that is missing or has changed."""
    if not recorded:
        raise RunError(
            f"{folder.path} was started from Python, not from a recipe. In Python, evaluate it "
            'with surestep.Trainer(task, config, run=path).evaluate("test") or predict with '
            '.predict("test"), load its weights with surestep.Run(path).load_model(model), or '
            "resume it with surestep.Trainer(task, config, run=path).fit()."
        )
    path = Path(recorded["path"])
    for parent in path.resolve().parents:
        if (parent / LINK).exists():
            raise RecipeError(
                f"The recipe {path} is in the run folder {parent}. Files of a run are not run as "
                "code, because they can come from a mirror. If you trust it, copy it to another "
                f"place: surestep train RECIPE --run {shlex.quote(str(folder.path))}."
            )
    if not path.is_file():
        raise RecipeError(
            f"The recipe of {folder.path} is missing: {path}. Restore the file, or pass its new "
            f"path: surestep train RECIPE --run {shlex.quote(str(folder.path))}."
        )
    if sha256(path) != recorded["sha256"] and not allow_changed:
        raise RecipeError(
            f"{path} has changed since {folder.path} was trained. Pass --allow recipe to run the "
            "changed file."
        )
    return path
