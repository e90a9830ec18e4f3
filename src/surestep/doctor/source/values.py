"""What the expressions of a script are, as far as its source shows.

A value remembers how it was made: `F.softmax(model(x), 1)` is the call of a function whose first
argument is the call of a model. Two values are the same object only if they are the same value in
each execution, so they are compared by identity.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from surestep.doctor.source.files import SourceFile

ANY = "*"  # the last name of a symbol that the script chooses by a name
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


@dataclass(eq=False)
class Value:
    """A value.

    Attributes:
        node: the expression that made it.
        file: in which it is; None if it was not made by an expression.
    """

    node: ast.AST | None = field(default=None, kw_only=True)
    file: SourceFile | None = field(default=None, kw_only=True, repr=False)

    @property
    def line(self) -> int | None:
        """The line of the expression that made it."""
        return getattr(self.node, "lineno", None)

    @property
    def inputs(self) -> tuple[Value, ...]:
        """The values that it was made from."""
        return ()


@dataclass(eq=False)
class Unknown(Value):
    """A value of which only the name is known: a parameter, or a name without a definition."""

    name: str


@dataclass(eq=False)
class Constant(Value):
    """A literal."""

    value: Any


@dataclass(eq=False)
class Symbol(Value):
    """Something imported from outside the project: `torch.nn.functional.softmax`."""

    path: str


@dataclass(eq=False)
class Imported(Value):
    """An imported name that was not used yet: only then is its module executed.

    Attributes:
        load: returns its value.
    """

    load: Callable[[], Value]
    _value: Value | None = None

    def loaded(self) -> Value:
        """Return its value, which is loaded once; Unknown while it is loading."""
        if self._value is None:
            self._value = Unknown("")
            self._value = self.load()
        return self._value


@dataclass(eq=False)
class Scope:
    """The names of a module, a class or a function."""

    names: dict[str, Value]
    parent: Scope | None = None
    is_class: bool = False
    globals: set[str] = field(default_factory=set)  # declared `global` or `nonlocal`

    def find(self, name: str) -> Value | None:
        """Return the value of a name; names of a class are not visible in its methods."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.names and (scope is self or not scope.is_class):
                return scope.get(name)
            scope = scope.parent
        return None

    def get(self, name: str) -> Value | None:
        """Return the value of a name of this scope itself."""
        value = self.names.get(name)
        return value.loaded() if isinstance(value, Imported) else value


@dataclass(eq=False)
class ModuleValue(Value):
    """A module of the project."""

    scope: Scope


@dataclass(eq=False)
class Function(Value):
    """A function of the project.

    Attributes:
        definition: its source.
        scope: where it is defined.
        decorators: their values, from top to bottom.
        owner: the object whose method it is.
        defaults: values of its parameters, by name.
    """

    definition: Definition
    scope: Scope
    decorators: tuple[Value, ...] = ()
    owner: Value | None = None
    defaults: Mapping[str, Value] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Its name; "lambda" without one."""
        return getattr(self.definition, "name", "lambda")

    def has_decorator(self, *names: str) -> bool:
        """Return whether a decorator has one of these last names, such as "property"."""
        return any(last_name(decorator) in names for decorator in self.decorators)


@dataclass(eq=False)
class Class(Value):
    """A class of the project."""

    definition: ast.ClassDef
    scope: Scope
    bases: tuple[Value, ...] = ()

    def lineage(self) -> Iterator[Class]:
        """Yield the class and its bases in the project, nearest first."""
        seen: set[int] = set()
        waiting: list[Value] = [self]
        while waiting:
            found = waiting.pop(0)
            if isinstance(found, Class) and id(found) not in seen:
                seen.add(id(found))
                yield found
                waiting.extend(found.bases)

    def find(self, name: str) -> Value | None:
        """Return an attribute of the class or of a base in the project."""
        for cls in self.lineage():
            if name in cls.scope.names:
                return cls.scope.get(name)
        return None

    @property
    def outside_bases(self) -> frozenset[str]:
        """The paths of the bases outside the project, such as "torch.nn.Module"."""
        bases = (base for cls in self.lineage() for base in cls.bases)
        return frozenset(base.path for base in bases if isinstance(base, Symbol))

    @property
    def is_module(self) -> bool:
        """Whether it is a module of PyTorch, as far as its bases show."""
        return any(is_module_path(path) for path in self.outside_bases)


@dataclass(eq=False)
class Instance(Value):
    """An object of a class of the project.

    Attributes:
        cls: its class.
        attributes: what was assigned to it.
        branches: number of branches around its creation; an assignment in a deeper one may or may
            not happen.
    """

    cls: Class
    attributes: dict[str, Value] = field(default_factory=dict)
    branches: int = 0


@dataclass(eq=False)
class Call(Value):
    """The call of something that is not followed, or of a module.

    Attributes:
        path: "torch.optim.Adam"; ".step" for a method of `receiver`; "()" if `receiver` is called.
        receiver: the object of a method, or what is called.
        args: positional arguments.
        keywords: keyword arguments; "**" for `**options`.
        result: what the forward of a module of the project returned.
    """

    path: str
    receiver: Value | None = None
    args: tuple[Value, ...] = ()
    keywords: Mapping[str, Value] = field(default_factory=dict)
    result: Value | None = None

    @property
    def inputs(self) -> tuple[Value, ...]:
        """The values that it was made from."""
        receiver = () if self.receiver is None else (self.receiver,)
        return (*receiver, *self.arguments)

    @property
    def arguments(self) -> tuple[Value, ...]:
        """What is given to it, by position or by name."""
        return (*self.args, *self.keywords.values())

    @property
    def name(self) -> str:
        """The last part of its path: "Adam", "step", or "()"."""
        return self.path.rpartition(".")[2]

    @property
    def is_method(self) -> bool:
        """Whether a method of `receiver` is called."""
        return self.path.startswith(".")

    def argument(self, position: int, name: str) -> Value | None:
        """Return an argument that is given by its position or its name.

        Args:
            position: from 0; -1 if it can only be given by its name.
            name: of the parameter.
        """
        if name in self.keywords:
            return self.keywords[name]
        return self.args[position] if 0 <= position < len(self.args) else None

    @property
    def has_unknown_arguments(self) -> bool:
        """Whether `*args` or `**options` may hold any argument."""
        return "**" in self.keywords or any(
            isinstance(arg, Operation) and arg.operator == "*args" for arg in self.args
        )


@dataclass(eq=False)
class Attribute(Value):
    """An attribute of a value that is not of the project."""

    base: Value
    name: str

    @property
    def inputs(self) -> tuple[Value, ...]:
        """The values that it was made from."""
        return (self.base,)


@dataclass(eq=False)
class Operation(Value):
    """An operator: "+", "/", "==", "not", "and", "f-string", or "*args" for unpacked arguments."""

    operator: str
    operands: tuple[Value, ...]

    @property
    def inputs(self) -> tuple[Value, ...]:
        """The values that it was made from."""
        return self.operands


@dataclass(eq=False)
class Item(Value):
    """An item: `base[index]`, or one of the values of an unpacked `base`."""

    base: Value
    index: Value

    @property
    def inputs(self) -> tuple[Value, ...]:
        """The values that it was made from."""
        return (self.base, self.index)


@dataclass(eq=False)
class Element(Value):
    """One of the values over which a loop iterates."""

    of: Value

    @property
    def inputs(self) -> tuple[Value, ...]:
        """The values that it was made from."""
        return (self.of,)


@dataclass(eq=False)
class Collection(Value):
    """A list, tuple, set, dict or generator.

    Attributes:
        type: "list", "tuple", "set", "dict" or "generator".
        elements: its elements, or the values of a dict; more may be appended.
        keys: of a dict; None is that of `**mapping`.
        is_complete: whether these are all elements.
    """

    type: str
    elements: list[Value]
    keys: tuple[Value | None, ...] = ()
    is_complete: bool = True

    @property
    def inputs(self) -> tuple[Value, ...]:
        """The values that it was made from."""
        return tuple(self.elements)

    @property
    def entries(self) -> dict[object, Value]:
        """The values of a dict, by their keys, as far as these are known."""
        pairs = zip(self.keys, self.elements, strict=False)
        return {key.value: value for key, value in pairs if isinstance(key, Constant)}

    def find(self, index: Value) -> Value | None:
        """Return the value of a key, or the element at an index, if all elements are known."""
        if not self.is_complete or not isinstance(index, Constant):
            return None
        at, count = index.value, len(self.elements)
        if self.keys:
            return self.entries.get(at)
        return self.elements[at] if isinstance(at, int) and -count <= at < count else None


@dataclass(eq=False)
class Either(Value):
    """One of several values, which depends on the branches that were taken."""

    options: tuple[Value, ...]

    @property
    def inputs(self) -> tuple[Value, ...]:
        """The values that it was made from."""
        return self.options


def join(*values: Value | None) -> Value | None:
    """Return one value that is any of these; None is "not assigned"."""
    options: list[Value] = []
    for value in values:
        if isinstance(value, Imported):
            value = value.loaded()
        if value is not None:
            options.extend(value.options if isinstance(value, Either) else (value,))
    unique = list(dict.fromkeys(options))
    if not unique:
        return None
    if len(unique) > 8:
        return Unknown("", node=unique[0].node, file=unique[0].file)
    return unique[0] if len(unique) == 1 else Either(tuple(unique), node=unique[0].node)


def last_name(value: Value | None) -> str:
    """Return the last name of a symbol, a call, an attribute or a function; "" for others."""
    match value:
        case Symbol(path=path) | Call(path=path):
            return path.rpartition(".")[2]
        case Attribute(name=name) | Unknown(name=name):
            return name
        case Function():
            return value.name
        case Class():
            return value.definition.name
    return ""


def is_module_path(path: str) -> bool:
    """Return whether a path is that of a class of modules, such as "torch.nn.Linear"."""
    start, _, name = path.rpartition(".")
    if name in _MODULE_BASES:
        return True
    is_class = name[:1].isupper() and name not in _NO_MODULES
    return is_class and start.startswith(("torch.nn", "torchvision.models"))


_MODULE_BASES = frozenset(
    ("Module", "LightningModule", "PreTrainedModel", "MessagePassing", "ModelMixin")
)


# Classes of torch.nn whose objects are tensors.
_NO_MODULES = frozenset(("Parameter", "Buffer", "UninitializedParameter", "UninitializedBuffer"))


def walk(
    value: Value, limit: int = 1000, *, stop_at: Callable[[Value], bool] | None = None
) -> Iterator[Value]:
    """Yield a value and everything that it was made from, each once.

    Args:
        value: of the script.
        limit: how many values are yielded.
        stop_at: returns whether to leave out what a value was made from.
    """
    seen: set[int] = set()
    waiting = [value]
    while waiting and len(seen) < limit:
        found = waiting.pop()
        if id(found) in seen:
            continue
        seen.add(id(found))
        yield found
        if stop_at is not None and stop_at(found):
            continue
        waiting.extend(found.inputs)
        if isinstance(found, Call) and found.result is not None:
            waiting.append(found.result)


def is_made_from(value: Value, source: Value | None) -> bool:
    """Return whether a value is a source, or was made from it."""
    return any(part is source for part in walk(value))


@dataclass(eq=False)
class Super(Value):
    """`super()` in a method."""

    instance: Instance
    lineage: tuple[Class, ...]

    def find(self, name: str) -> Value | None:
        """Return an attribute of a base in the project."""
        scopes = (cls.scope for cls in self.lineage if name in cls.scope.names)
        return next((scope.get(name) for scope in scopes), None)
