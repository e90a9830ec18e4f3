"""The `__init__` of a module does not call `super().__init__()`.

`torch.nn.Module` then has no place for layers, parameters, buffers and hooks. Assigning the first
layer, or the first call of the module, raises an error that does not name the cause.

Ignore it if `__init__` is never used, because another method creates the object.

Source: https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html

Wrong:

    from torch import nn


    class Net(nn.Module):
        def __init__(self, width):
            self.hidden = nn.Linear(4, width)
            self.head = nn.Linear(width, 1)

        def forward(self, x):
            return self.head(self.hidden(x).relu())


    print(Net.__name__)

Right:

    from torch import nn


    class Net(nn.Module):
        def __init__(self, width):
            super(Net, self).__init__()
            self.head = nn.Linear(4, width)


    print(Net(3))
"""

import ast
from collections.abc import Iterator

from surestep.doctor.problem import Problem, at_node
from surestep.doctor.source.trace import Program
from surestep.doctor.source.values import Class

SEVERITY = "error"
FIX = "Call super().__init__() in the first line of __init__."

_BASES = frozenset(("torch.nn.Module", "pytorch_lightning.LightningModule"))


def check(program: Program) -> Iterator[Problem]:
    """Find modules that assign attributes without the `__init__` of their base."""
    for cls in program.classes:
        if not cls.outside_bases or not cls.outside_bases <= _BASES or not _is_known(cls):
            continue
        for node in cls.definition.body:
            if not isinstance(node, ast.FunctionDef) or node.name != "__init__":
                continue
            if _assigns(node) and not _may_initialize(node) and cls.file is not None:
                message = f"`{cls.definition.name}.__init__` does not call `super().__init__()`."
                yield at_node(node, cls.file, message)


def _is_known(cls: Class) -> bool:
    """Return whether nothing else of the class can do what `super().__init__()` does."""
    nodes = (node for base in cls.lineage() for node in base.definition.body)
    names = {getattr(node, "name", "") for node in nodes}
    has_metaclass = any(base.definition.keywords for base in cls.lineage())
    return "__new__" not in names and not has_metaclass and not cls.definition.decorator_list


def _assigns(init: ast.FunctionDef) -> bool:
    """Return whether an attribute of the object is assigned."""
    return any(
        isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
        for node in ast.walk(init)
    )


def _may_initialize(init: ast.FunctionDef) -> bool:
    for node in ast.walk(init):
        if isinstance(node, ast.Attribute) and node.attr in (
            "__init__",
            "__dict__",
            "__setstate__",
        ):
            return True
        if isinstance(node, ast.Name) and node.id == "super":
            return True
    return False
