"""Find a recipe by name or path, read it, and call it.

A recipe is a Python file with a `config` and a function `task` that returns a Task; it may have
`callbacks`. It is imported under its own name, with its folder on `sys.path`, so that worker
processes that are spawned find its classes too. For a recipe in a package, that is the folder which
has the package: files beside the recipe must not hide modules of the same name.
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

from pydantic import PydanticSchemaGenerationError, TypeAdapter, ValidationError

from surestep.base.errors import RecipeError, SurestepError, suggest_names
from surestep.base.missing_torch import INSTALL_TORCH, is_missing_torch
from surestep.config.config import Config
from surestep.config.group import Locations, not_allowed, placed
from surestep.engine.device import use_device
from surestep.engine.plan.system import SystemInfo, read_system
from surestep.engine.resolve.resolver import resolve_device, resolve_seed
from surestep.engine.rng import derive_seed, set_seed
from surestep.engine.step.callback import Callback
from surestep.engine.task.task import Task
from surestep.recipes.find import (
    NO_TASK,
    Parameter,
    RecipeFile,
    find,
    parse_attributes,
    sha256,
)
from surestep.tracking.tracker import Tracker
from surestep.trainer.planning import TaskOrigin

# By module, packages of the extras that recipes import. A module of another name may be a file.
PACKAGES = {
    "sklearn": "scikit-learn",
    "PIL": "pillow",
    **{name: name for name in ("torchmetrics", "transformers")},
}


@dataclass(frozen=True)
class Recipe:
    """A recipe that was read."""

    name: str
    path: Path
    module: ModuleType
    package: str = ""  # that it was imported from; "" if by its own name, or built in

    @property
    def config(self) -> Config:
        """The config of the recipe."""
        config = getattr(self.module, "config", None)
        if not isinstance(config, Config):
            raise RecipeError(
                f"{self.path} has no config. Write: config = surestep.Config(epochs=10)."
            )
        return config

    @property
    def callbacks(self) -> list[Callback]:
        """The recipe's callbacks; `prepare` checks them."""
        callbacks: list[Callback] = getattr(self.module, "callbacks", [])
        return callbacks

    @property
    def trackers(self) -> list[Tracker]:
        """The recipe's own trackers; `prepare` checks them."""
        trackers: list[Tracker] = getattr(self.module, "trackers", [])
        return trackers

    @property
    def function(self) -> Callable[..., Any]:
        """The recipe's function, which returns a Task."""
        function: Callable[..., Any] | None = getattr(self.module, "task", None)
        if function is None or not callable(function):
            raise RecipeError(NO_TASK.format(path=self.path))
        return function

    @property
    def parameters(self) -> dict[str, inspect.Parameter]:
        """The parameters of the recipe's function."""
        return dict(inspect.signature(self.function).parameters)

    def outline_parameters(self) -> dict[str, Parameter]:
        """Return the parameters for the help page."""
        about = parse_attributes(self.function.__doc__)
        return {
            name: Parameter(
                None if parameter.default is parameter.empty else repr(parameter.default),
                about.get(name, ""),
            )
            for name, parameter in self.parameters.items()
        }

    def typed(
        self, values: Mapping[str, Any], locations: Locations = MappingProxyType({})
    ) -> dict[str, Any]:
        """Parse the values of parameters, which may be text, as their types.

        Raises:
            RecipeError: lists unknown and missing parameters, and values of another type.
        """
        types, typed, faults = self._types(), {}, []
        for name, value in values.items():
            full = f"task.{name}"
            if name not in types:
                sentence = f"{self.name}'s task has no parameter {name!r}. "
                faults.append(placed(full, sentence + suggest_names(name, types), locations))
                continue
            try:
                typed[name] = _parse(types[name], value)
            except ValueError as error:
                faults.append(placed(full, not_allowed(full, value, str(error)), locations))
        for name, parameter in self.parameters.items():
            if parameter.default is parameter.empty and name not in values:
                faults.append(f"{self.name}'s task needs {name}: set --task.{name} VALUE.")
        if faults:
            raise RecipeError("\n".join(faults))
        return typed

    def _types(self) -> dict[str, Any]:
        """Return the type of each parameter: as annotated, or its default's."""
        try:
            hints = get_type_hints(self.function)
        except NameError as error:
            raise RecipeError(
                f"{self.path}: an annotation of task() is not known: {error}."
            ) from error
        return {
            name: hints.get(
                name,
                str if parameter.default in (None, parameter.empty) else type(parameter.default),
            )
            for name, parameter in self.parameters.items()
        }

    def build(
        self, parameters: Mapping[str, Any], config: Config, system: SystemInfo | None = None
    ) -> Task:
        """Call the recipe's function, after seeding, for a system; None is this one.

        Raises:
            RecipeError: it raised, or returned no Task.
            ConfigError: the device is not available.
        """
        set_seed(derive_seed("recipe", resolve_seed(config)))
        device = resolve_device(config, system or read_system())
        try:
            with use_device(device):  # "cuda" in a recipe is the Plan's device
                task = self.function(**parameters)
        except SurestepError:
            raise
        except Exception as error:
            raise RecipeError(_describe(self.path, error)) from error
        if not isinstance(task, Task):
            raise RecipeError(
                f"{self.path}: task() returned a {type(task).__name__}, not a surestep.Task. Is a "
                "return missing?"
            )
        return task


@dataclass(frozen=True)
class RecipeCall:
    """A recipe with the options and the arguments of its function."""

    recipe: Recipe
    config: Config
    parameters: dict[str, Any]
    set_options: dict[str, str]  # where each option and argument was set, by full name
    tuned: Mapping[str, Any] | None = None  # of the file of options, if surestep tune wrote it

    def task(self, system: SystemInfo | None = None) -> Task:
        """Call the recipe's function; see `Recipe.build`."""
        return self.recipe.build(self.parameters, self.config, system)

    @property
    def origin(self) -> TaskOrigin:
        """Where the Task comes from."""
        name, path = self.recipe.name, self.recipe.path
        recipe = {"name": name, "path": str(path), "sha256": sha256(path)}
        if package := self.recipe.package:
            recipe["package"] = package
        defaults = {
            name: parameter.default
            for name, parameter in self.recipe.parameters.items()
            if name not in self.parameters and parameter.default is not parameter.empty
        }
        set_options, tuned = self.set_options, self.tuned
        return TaskOrigin(name, recipe, self.parameters, defaults, set_options, tuned=tuned)


def call_recipe(
    recipe: Recipe, options: Mapping[str, Any], set_at: Mapping[str, str]
) -> RecipeCall:
    """Put options over those of a recipe.

    Args:
        recipe: the recipe.
        options: of the Config and, as "task.NAME", of the recipe's function; they may be text.
        set_at: where each was set.

    Raises:
        ConfigError, RecipeError: lists the options that are invalid.
    """
    arguments = {
        name.removeprefix("task."): value
        for name, value in options.items()
        if name.startswith("task.")
    }
    of_config = {name: value for name, value in options.items() if not name.startswith("task.")}
    config = recipe.config.replace_options(of_config, set_at)
    parameters = recipe.typed(arguments, set_at)
    set_in_recipe = dict.fromkeys(recipe.config.set_options(), f"recipe {recipe.name}")
    return RecipeCall(recipe, config, parameters, {**set_in_recipe, **set_at})


def _parse(kind: Any, value: Any) -> Any:
    """Parse one value.

    Raises:
        ValueError: it is not of its type.
    """
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(kind)
    except PydanticSchemaGenerationError:
        name = getattr(kind, "__name__", kind)
        raise ValueError(f"a {name} has no form as text. Set it in the recipe.") from None
    try:
        return adapter.validate_python(None if value == "None" and kind is not str else value)
    except ValidationError as first:
        try:
            return adapter.validate_json(str(value))
        except ValidationError:
            text = str(first.errors()[0]["msg"])
            raise ValueError(text.replace("Input should be", "it must be")) from None


def load(name: str) -> Recipe:
    """Find and read a recipe: the name of one that ships, a path, or "my.pkg.recipe".

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
    path, package = found.path, found.package
    name = f"{package}.{found.name}" if package else found.name
    for folder in (found.root,) if package else (found.root, path.parent):
        if str(folder) not in sys.path:
            sys.path.insert(0, str(folder))
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        if package:
            importlib.import_module(package)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    except Exception as error:
        sys.modules.pop(name, None)
        if isinstance(error, SurestepError):
            raise
        raise RecipeError(_describe(path, error)) from error
    return Recipe(found.name, path, module, package)


def _describe(path: Path, error: BaseException) -> str:
    """Return what a recipe raised, and on which of its lines."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename == str(path)]
    line = own[-1].lineno if own else getattr(error, "lineno", None)
    where = f", line {line}" if line else ""
    text = f"{path}{where}: {type(error).__name__}: {error}"
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    if is_missing_torch(error):
        return f"{text}. {INSTALL_TORCH}"
    package = PACKAGES.get((missing or "").partition(".")[0])
    return text if package is None else f"{text}. Install it: pip install {package}"
