"""Find a recipe by name or path, read it, and call it.

A recipe is a Python file with a `config` and a function `task` that returns a Task; it may have
`callbacks`. It is imported under its own name, with its folder on `sys.path`, so that worker
processes that are spawned find its classes too.
"""

import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any, get_type_hints

from surestep.base.errors import RecipeError, SurestepError
from surestep.config.config import Config
from surestep.config.group import Locations
from surestep.engine.device import use_device
from surestep.engine.plan.system import SystemInfo, read_facts
from surestep.engine.rng import set_seed
from surestep.engine.rules.resolve import resolve_device, resolve_seed
from surestep.engine.step.callback import Callback
from surestep.engine.task.task import Task
from surestep.recipes.find import RecipeFile, find, sha256
from surestep.recipes.parameters import read_parameters
from surestep.trainer.planning import TaskOrigin


@dataclass(frozen=True)
class Recipe:
    """A recipe that was read."""

    name: str
    path: Path
    module: ModuleType

    @property
    def config(self) -> Config:
        """What the recipe asks for."""
        config = getattr(self.module, "config", None)
        if not isinstance(config, Config):
            raise RecipeError(
                f"{self.path} has no config. Write: config = surestep.Config(epochs=10)."
            )
        return config

    @property
    def callbacks(self) -> list[Callback]:
        """The recipe's watchers, as it names them; `prepare` checks them."""
        callbacks: list[Callback] = getattr(self.module, "callbacks", [])
        return callbacks

    @property
    def function(self) -> Callable[..., Any]:
        """The recipe's function, which returns a Task."""
        function: Callable[..., Any] | None = getattr(self.module, "task", None)
        if function is None or not callable(function):
            raise RecipeError(
                f"{self.path} has no function called task. Write: def task(hidden: int = 128) -> "
                "surestep.Task: ..."
            )
        return function

    @property
    def parameters(self) -> dict[str, inspect.Parameter]:
        """The parameters of the recipe's function."""
        return dict(inspect.signature(self.function).parameters)

    def types(self) -> dict[str, Any]:
        """Return the type of each parameter: as annotated, or its default's."""
        try:
            hints = get_type_hints(self.function)
        except NameError as error:
            raise RecipeError(
                f"{self.path}: an annotation of task() is not known: {error}."
            ) from error
        return {
            name: hints.get(name, str if each.default in (None, each.empty) else type(each.default))
            for name, each in self.parameters.items()
        }

    def typed(
        self, said: Mapping[str, Any], locations: Locations = MappingProxyType({})
    ) -> dict[str, Any]:
        """Read what was set for the parameters, as their types.

        Args:
            said: the values by name, which are text if they come from the command line.
            locations: where each was set, by its full name, "task.hidden".

        Raises:
            RecipeError: all unknown parameters, values that are not of their type, and parameters
                that must be set and are not.
        """
        values, faults = read_parameters(self.name, self.types(), said, locations)
        for name, each in self.parameters.items():
            if each.default is each.empty and name not in said:
                faults.append(f"{self.name}'s task needs {name}: set --task.{name} VALUE.")
        if faults:
            raise RecipeError("\n".join(faults))
        return values

    def build(
        self, parameters: Mapping[str, Any], config: Config, *, facts: SystemInfo | None = None
    ) -> Task:
        """Call the recipe's function, after seeding.

        Args:
            parameters: what it is called with.
            config: what is asked.
            facts: of the machine that is planned for; of this one where not said.

        Raises:
            RecipeError: it raised, or returned no Task.
            ConfigError: the device that was said cannot be had.
        """
        set_seed(resolve_seed(config))
        device = resolve_device(config, facts or read_facts())
        try:
            with use_device(device):  # what a recipe puts on "cuda" is to lie on the Plan's device
                task = self.function(**parameters)
        except SurestepError:
            raise
        except Exception as error:
            raise RecipeError(_what_happened(self.path, error)) from error
        if not isinstance(task, Task):
            raise RecipeError(
                f"{self.path}: task() returned a {type(task).__name__}, not a surestep.Task. Is a "
                "return missing?"
            )
        return task

    def origin(self, parameters: Mapping[str, Any], said: Mapping[str, str]) -> TaskOrigin:
        """Describe where the Task came from."""
        recipe = {"name": self.name, "path": str(self.path), "sha256": sha256(self.path)}
        return TaskOrigin(self.name, recipe, parameters, said)


def load(name: str) -> Recipe:
    """Find and read a recipe: the name of one that ships, or the path of a file.

    Raises:
        RecipeError: there is none, or it cannot be read.
    """
    return load_file(find(name))


def load_file(found: RecipeFile) -> Recipe:
    """Import a recipe that was found.

    Raises:
        RecipeError: it raised.
    """
    if found.ships:
        module = importlib.import_module(f"surestep.recipes.{found.name}")
        return Recipe(found.name, found.path, module)
    name, path = found.name, found.path
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except SurestepError:
        del sys.modules[name]
        raise
    except Exception as error:
        del sys.modules[name]
        raise RecipeError(_what_happened(path, error)) from error
    return Recipe(name, path, module)


def _what_happened(path: Path, error: BaseException) -> str:
    """Say what a recipe raised, and on which of its lines."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename == str(path)]
    line = own[-1].lineno if own else getattr(error, "lineno", None)
    where = f", line {line}" if line else ""
    return f"{path}{where}: {type(error).__name__}: {error}"
