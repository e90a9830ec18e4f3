"""The Task and the Config of a run, built again from its recipe."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from surestep.base.errors import ConfigError, RecipeError, RunError, suggest_names
from surestep.base.locations import recorded_place
from surestep.base.text import print_escaped
from surestep.cli.parse import split_names
from surestep.config.config import Config
from surestep.engine.distributed.launcher_env import read_launched
from surestep.engine.step.gc import import_without_collecting
from surestep.recipes.find import recipe_argument, sha256
from surestep.record.checkpoint_ref import split_name
from surestep.record.io import read_json
from surestep.record.run import Run, Which
from surestep.record.schemas import CONFIG, MIRROR, MIRRORED, STUDY

if TYPE_CHECKING:  # torch is imported with the recipe
    from surestep.recipes.load import RecipeCall

CHANGED, INSIDE = "recipe", "recipe-inside"
AllowRecipe = Annotated[str | None, tyro.conf.arg(metavar="NAMES")]
_FOLDERS = {"config.json": (CONFIG,), "mirror.json": (MIRROR, MIRRORED), "study.json": (STUDY,)}


def parse_allowed(text: str | None) -> tuple[str, ...]:
    """Parse the value of an option of type AllowRecipe.

    Raises:
        ConfigError: it has another name.
    """
    for name in (allowed := split_names(text)):
        if name not in (CHANGED, INSIDE):
            raise ConfigError(
                f"--allow {name}: there is no such name. {suggest_names(name, (CHANGED, INSIDE))}"
            )
    return allowed


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


def load_run_recipe(folder: Run, allow: Collection[str], *, shown: str | None = None) -> RecipeCall:
    """Load the recipe's file as it is now, with the run's parameters and options.

    The parameters and exceptions are those of `check_recipe`.
    """
    recorded, shown = folder.config, shown or str(folder.path)
    path = check_recipe(folder, allow, shown)
    if read_launched().rank == 0:
        print_escaped(f"Running {path}", file=sys.stderr)
    with import_without_collecting():
        from surestep.recipes.load import RecipeCall, load

    # Outside the block, since the recipe's own code may disable the collector.
    recipe = load(recipe_argument(recorded["recipe"]))
    place = recorded_place(shown)
    config = Config.from_options(recorded["config"], dict.fromkeys(recorded["config"], place))
    set_options = dict.fromkeys(config.set_options(), place)
    arguments = {f"task.{name}": place for name in recorded["task"]}
    return RecipeCall(recipe, config, recipe.typed(recorded["task"], arguments), set_options)


def check_recipe(folder: Run, allow: Collection[str], shown: str) -> Path:
    """Return the path of a run's recipe, which every command that runs it gets from here.

    Anyone may have written a run folder, a mirror or a study, together with the hash of a recipe in
    it. So such a recipe is as trustworthy as the folder, and needs the permission of the user.

    Args:
        folder: of the run; that of a mirror is an outline in a temporary folder.
        allow: "recipe" for a file that has changed, "recipe-inside" for one in such a folder.
        shown: the folder or the address, as it was typed.

    Raises:
        RunError: the run has no recipe.
        RecipeError: its file is missing, or not allowed.
    """
    recorded, name = folder.config["recipe"], shlex.quote(shown)
    if not recorded:
        raise RunError(
            f"{shown} was started from Python, not from a recipe. In Python, evaluate it "
            'with surestep.Trainer(task, config, run=path).evaluate("test") or predict with '
            '.predict("test"), load its weights with surestep.Run(path).load_model(model), or '
            "resume it with surestep.Trainer(task, config, run=path).fit()."
        )
    path = Path(recorded["path"])
    if not path.is_file():
        raise RecipeError(
            f"The recipe of {shown} is missing: {path}. Restore the file, or pass its new path: "
            f"surestep train RECIPE --run {name}"
        )
    if INSIDE not in allow and (parent := find_received_folder(path, folder.path)):
        raise RecipeError(
            f"The recipe {path} is in {parent}, a folder of surestep, which may come from anyone. "
            f"Read the file. If you trust it, pass --allow {INSIDE}, or copy it to another place: "
            f"surestep train RECIPE --run {name}"
        )
    if sha256(path) != recorded["sha256"] and CHANGED not in allow:
        raise RecipeError(
            f"{path} has changed since {shown} was trained. Pass --allow {CHANGED} to run the "
            "changed file."
        )
    return path


def find_received_folder(path: Path, folder: Path) -> Path | None:
    """Return the folder of a run, a mirror or a study that a file is in, through any links.

    Args:
        path: of the file.
        folder: of the run or study that names the file.
    """
    own = folder.resolve()
    return next((one for one in path.resolve().parents if one == own or _is_of_us(one)), None)


def _is_of_us(folder: Path) -> bool:
    """Return whether a folder has a record of surestep; other programs write files so named."""
    for name, schemas in _FOLDERS.items():
        for schema in schemas:
            with suppress(RunError):
                read_json(folder / name, schema)
                return True
    return False
