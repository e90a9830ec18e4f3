"""The pattern of --run: `runs/{recipe}-{optim.lr}` becomes `runs/digits-0.001`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from surestep.base.errors import ConfigError, suggest_names
from surestep.base.locations import flag
from surestep.base.paths import PLACEHOLDER, split_existing
from surestep.config.config import iter_options

if TYPE_CHECKING:  # torch is imported with the recipe
    from surestep.recipes.load import RecipeCall


def fill_in(run: str, call: RecipeCall) -> str:
    """Replace each `{name}` in the part of a run folder that does not exist.

    Args:
        run: the folder or address; "{recipe}" is the recipe's name, "{optim.lr}" an option, and
            "{task.hidden}" a parameter of the recipe.
        call: the recipe with its options.

    Raises:
        ConfigError: there is no such name, it has no value, or its value cannot name a folder.
    """
    existing, rest = split_existing(run)
    return existing + PLACEHOLDER.sub(lambda found: _value(found, run, call), rest)


def _value(found: re.Match[str], run: str, call: RecipeCall) -> str:
    name = found[1].replace("-", "_")
    parameters = call.recipe.parameters
    known: dict[str, Any] = {"recipe": call.recipe.name, **call.config.set_options()}
    known |= {
        f"task.{key}": call.parameters.get(key, parameters[key].default) for key in parameters
    }
    if name not in known:
        options = [option for option, _ in iter_options()]
        if name in options:
            raise ConfigError(
                f"--run {run}: {name} is not set, so surestep chooses its value. Set {flag(name)}, "
                f"or leave {found[0]} out."
            )
        raise ConfigError(
            f"--run {run}: {found[0]} is not an option. {suggest_names(name, [*known, *options])}"
        )
    text = re.sub(r"\s+", "-", str(known[name]))
    if not re.fullmatch(r"[\w.+,=-]+", text) or not text.strip("."):
        raise ConfigError(
            f"--run {run}: {name} is {str(known[name])!r}, which cannot name a folder. Leave "
            f"{found[0]} out."
        )
    return text
