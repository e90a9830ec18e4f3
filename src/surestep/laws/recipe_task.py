"""A recipe as the function that makes its task, in this process or in a new interpreter."""

from collections.abc import Mapping
from typing import Any

from surestep.config.config import Config
from surestep.engine.task.task import Task
from surestep.recipes.load import RecipeCall, load

_BUILT_IN = "surestep.recipes."


class RecipeTask:
    """Makes the task of a recipe; a new interpreter that gets it imports the recipe again.

    Attributes:
        call: the recipe with its options and arguments.
    """

    def __init__(self, call: RecipeCall) -> None:
        self.call = call

    def __call__(self) -> Task:
        """Make the task."""
        return self.call.task()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the name of the recipe, with its options."""
        call, recipe = self.call, self.call.recipe
        name = str(recipe.path)
        if recipe.module.__name__.startswith(_BUILT_IN):
            name = recipe.name
        elif recipe.package:
            name = f"{recipe.package}.{recipe.name}"
        return _load_again, (name, call.config, call.parameters, call.set_options)


def _load_again(
    name: str, config: Config, parameters: dict[str, Any], set_options: Mapping[str, str]
) -> RecipeTask:
    return RecipeTask(RecipeCall(load(name), config, parameters, dict(set_options)))
