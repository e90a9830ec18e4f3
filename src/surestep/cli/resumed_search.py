"""`surestep search --resume STUDY`: the command of a study, from what the study records."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from surestep.base.errors import ConfigError, RecipeError
from surestep.base.paths import require_local_path
from surestep.base.typed_targets import was_typed
from surestep.cli.load_run import find_received_folder
from surestep.recipes.find import recipe_argument
from surestep.tuning.settings import STUDY_FILE, StudySettings, read_settings

if TYPE_CHECKING:  # torch is imported with the recipe
    from surestep.recipes.load import RecipeCall
    from surestep.tuning.options import SearchOptions

_RESUME = "--resume"
_MIRROR = "checkpoint.mirror"


def expand_resume(words: list[str]) -> tuple[list[str], StudySettings | None]:
    """Return a command line with the recipe and the folder of the study in place of --resume.

    Returns:
        The words, and what the study records; None without --resume.

    Raises:
        ConfigError: --resume has no study, or there is --study too.
        RecipeError: the recorded recipe is missing, or in a folder that may come from anyone.
        RunError: there is no such study.
    """
    at = next((at for at, word in enumerate(words) if word.split("=")[0] == _RESUME), None)
    if at is None:
        return words, None
    word, after = words[at], words[at + 1 : at + 2]
    typed = [word.partition("=")[2]] if "=" in word else after
    if not typed or not typed[0] or typed[0].startswith("-"):
        raise ConfigError(
            f"{_RESUME} has no study. Write {_RESUME} searches/digits-20260101-120000."
        )
    rest = [*words[:at], *words[at + (1 if "=" in word else 2) :]]
    if any(word.split("=")[0] == "--study" for word in rest):
        raise ConfigError(f"{_RESUME} and --study name the same thing. Leave --study out.")
    study = require_local_path(typed[0])
    settings = read_settings(study)
    if not rest or rest[0].startswith("-"):
        rest = [_read_recipe(settings, study), *rest]
    return [*rest, "--study", typed[0]], settings


def _read_recipe(settings: StudySettings, study: Path) -> str:
    """Return the recorded recipe as it is typed.

    Raises:
        RecipeError: see above.
    """
    path, name = Path(settings.recipe["path"]), shlex.quote(str(study))
    if not path.is_file():
        raise RecipeError(
            f"The recipe of {study} is missing: {path}. Restore the file, or type its new path: "
            f"surestep search RECIPE {_RESUME} {name}"
        )
    if parent := find_received_folder(path, study):
        raise RecipeError(
            f"The recipe {path} is in {parent}, a folder of surestep, which may come from anyone. "
            f"Read the file. If you trust it, type it: surestep search {shlex.quote(str(path))} "
            f"{_RESUME} {name}"
        )
    return recipe_argument(settings.recipe)


def restore_search(
    call: RecipeCall, options: SearchOptions, settings: StudySettings
) -> tuple[RecipeCall, SearchOptions]:
    """Return a call and options with what the study records and the command line does not set.

    Raises:
        ConfigError: the recorded mirror was not typed on this machine.
    """
    from surestep.recipes.load import call_recipe
    from surestep.tuning.options import fixed_options

    typed = fixed_options(call)
    mirror = settings.fixed.get(_MIRROR)
    if mirror is not None and _MIRROR not in typed and not was_typed(settings.name, str(mirror)):
        raise ConfigError(
            f"The study names the mirror {mirror}, which was not typed on this machine, and the "
            f"study may come from anyone. To copy the trials there, pass --{_MIRROR} {mirror}"
        )
    places = dict.fromkeys(settings.fixed, STUDY_FILE)
    places |= {name: call.set_options[name] for name in typed}
    restored = call_recipe(call.recipe, {**settings.fixed, **typed}, places)
    space = options.space if options.space is not None else settings.space.as_json()
    return restored, replace(options, space=space)
