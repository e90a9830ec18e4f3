"""Find a recipe by name or path, read it, and call it.

A recipe is a Python file with a `config` and a function `task` that returns a Task; it may have
`callbacks`. It is imported under its own name, with its folder on `sys.path`, so that worker
processes that are spawned find its classes too.
"""

import hashlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, get_type_hints

from pydantic import PydanticSchemaGenerationError, TypeAdapter, ValidationError

from surestep.base.config import Config
from surestep.base.errors import RecipeError, SurestepError, near
from surestep.engine.callback import Callback
from surestep.engine.device import current
from surestep.engine.facts import Facts, read_facts
from surestep.engine.resolve import device_of, seed_of
from surestep.engine.seed import set_seed
from surestep.engine.task import Task
from surestep.trainer.planning import Origin

BUILT_IN = (
    "chars",
    "digits",
    "distill",
    "finetune",
    "gan",
    "hf",
    "imbalanced",
    "segment",
    "spiral",
    "tabular",
)
SHIPPED = Path(__file__).parent


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
        """The recipe's watchers."""
        return list(getattr(self.module, "callbacks", []))

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

    def typed(self, said: Mapping[str, Any]) -> dict[str, Any]:
        """Read what was said for the parameters, as their types.

        Raises:
            RecipeError: an unknown parameter, a value that is none of its type, or one missing.
        """
        types = self.types()
        for name in said:
            if name not in types:
                raise RecipeError(
                    f"{self.name}'s task has no parameter {name!r}. {near(name, types)}"
                )
        values = {name: _read(name, types[name], value) for name, value in said.items()}
        for name, each in self.parameters.items():
            if each.default is each.empty and name not in values:
                raise RecipeError(f"{self.name}'s task needs {name}: say --task.{name} VALUE.")
        return values

    def build(
        self, parameters: Mapping[str, Any], config: Config, *, facts: Facts | None = None
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
        set_seed(seed_of(config))
        device = device_of(config, facts or read_facts())
        try:
            with current(device):  # what a recipe puts on "cuda" is to lie on the Plan's device
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

    def origin(self, parameters: Mapping[str, Any], said: Mapping[str, str]) -> Origin:
        """Describe where the Task came from."""
        recipe = {"name": self.name, "path": str(self.path), "sha256": sha256(self.path)}
        return Origin(self.name, recipe, parameters, said)


def load(name: str) -> Recipe:
    """Find and read a recipe: the name of one that ships, or the path of a file.

    Raises:
        RecipeError: there is none, or it cannot be read.
    """
    if name in BUILT_IN:
        module = importlib.import_module(f"surestep.recipes.{name}")
        return Recipe(name, Path(str(module.__file__)), module)
    path = Path(name)
    if path.suffix != ".py":
        hint = f"Or give a file, such as {name}.py." if not path.exists() else "Give a .py file."
        raise RecipeError(f"There is no recipe {name!r}. {near(name, BUILT_IN)} {hint}")
    if not path.is_file():
        raise RecipeError(f"{name} is not there. Recipes that ship: {', '.join(BUILT_IN)}.")
    return _read_file(path.resolve())


def _read_file(path: Path) -> Recipe:
    name = path.stem
    _check_name(name, path)
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


def _check_name(name: str, path: Path) -> None:
    """Refuse a name under which Python would import something else."""
    if not name.isidentifier():
        raise RecipeError(
            f"{path.name} cannot be imported: {name!r} is no Python name. Rename it, for example "
            f"to {_as_name(name)}.py."
        )
    taken = getattr(sys.modules.get(name), "__spec__", None) or importlib.util.find_spec(name)
    if taken is not None and taken.origin != str(path):
        raise RecipeError(
            f"{path.name} has the name of a module that is used already: {name}. Rename it, for "
            f"example to my_{name}.py."
        )


def _as_name(text: str) -> str:
    name = "".join(each if each.isalnum() else "_" for each in text)
    return name if name.isidentifier() else f"my_{name}"


def _read(name: str, kind: Any, value: Any) -> Any:
    """Read a parameter's value, which is text where it comes from the command line."""
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(kind)
    except PydanticSchemaGenerationError:
        raise RecipeError(
            f"task.{name}={value!r} is not allowed: a {getattr(kind, '__name__', kind)} has no "
            "form as text. Set it in the recipe."
        ) from None
    try:
        return adapter.validate_python(None if value == "None" and kind is not str else value)
    except ValidationError as first:
        try:
            return adapter.validate_json(str(value))
        except ValidationError:
            raise RecipeError(
                f"task.{name}={value!r} is not allowed: {first.errors()[0]['msg'].lower()}."
            ) from None


def _what_happened(path: Path, error: BaseException) -> str:
    """Say what a recipe raised, and on which of its lines."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename == str(path)]
    line = own[-1].lineno if own else getattr(error, "lineno", None)
    where = f", line {line}" if line else ""
    return f"{path}{where}: {type(error).__name__}: {error}"


def sha256(path: Path) -> str:
    """Return the hash of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()
