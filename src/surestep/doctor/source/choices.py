"""What a script chooses by a name that its source does not show.

A member of a module outside the project, such as `getattr(torch.optim, name)`, has a path that ends
in "*": "torch.optim.*". What a table of classes or functions has under such a name may be each of
them.
"""

from __future__ import annotations

import ast
import re

from surestep.doctor.source.values import (
    ANY,
    Attribute,
    Call,
    Class,
    Collection,
    Constant,
    Function,
    Symbol,
    Unknown,
    Value,
    join,
)

_NAMESPACE = ".__dict__"


def choose_attribute(base: Value, name: Value) -> Symbol | Attribute | None:
    """Return any member of a module outside the project, or an attribute by its f-string.

    The attribute of `getattr(self, f"scaler{index}")` is called `scaler_index`. None is returned
    for other attributes.
    """
    if not isinstance(base, Symbol):
        text = ast.unparse(name.node) if isinstance(name.node, ast.JoinedStr) else ""
        written = "_".join(re.findall(r"\w+", text.removeprefix("f")))
        return Attribute(base, written, node=base.node, file=base.file) if written else None
    value = name.value if isinstance(name, Constant) else None
    member = value if isinstance(value, str) else ANY
    return Symbol(f"{base.path}.{member}", node=base.node, file=base.file)


def choose_item(base: Value, index: Value) -> Value | None:
    """Return what may be at an index of a table that the source shows; None if it does not.

    Args:
        base: a dict of classes or functions, or `torch.optim.__dict__`.
        index: into it.
    """
    match base:
        case Symbol(path=path) if path.endswith(_NAMESPACE):
            module = Symbol(path.removesuffix(_NAMESPACE), node=base.node, file=base.file)
            return choose_attribute(module, index)
        case Collection(is_complete=True, keys=(_, *_)) if not isinstance(index, Constant):
            is_table = all(isinstance(entry, Symbol | Class | Function) for entry in base.elements)
            return join(*base.elements) if is_table else None
    return None


def holds_options(value: Value) -> bool:
    """Return whether a value holds the options of a script, by how it was made or its name."""
    match value:
        case Call():
            return value.name in ("parse_args", "Namespace", "SimpleNamespace")
        case Unknown(name=name):
            return name.lower() in ("args", "opt", "opts", "cfg", "config", "hparams", "flags")
    return False


def is_chosen(value: Value) -> bool:
    """Return whether a value is the result of something that was chosen, such as a class."""
    return getattr(value, "path", "").endswith(f".{ANY}")
