"""A `train` method of a module ignores its argument, so `eval()` switches to train mode.

`eval()` calls `train(False)`. A module that overrides `train(mode)` and calls `super().train()`
without the mode is in train mode after both. Nothing fails: each evaluation runs with dropout, and
BatchNorm learns its statistics from the validation data.

A method that reads its mode before the call, or calls `eval()` itself, is not reported.

Source: https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html#torch.nn.Module.train

Wrong:

    import torch


    class Net(torch.nn.Sequential):
        def train(self, mode=True):
            super().train()
            self[0].eval()
            return self


    print(Net(torch.nn.BatchNorm1d(4), torch.nn.Dropout()).eval()(torch.ones(2, 4)))

Right:

    import torch


    class Net(torch.nn.Sequential):
        def train(self, mode: bool = True) -> "Net":
            super().train(mode)
            self[0].training = False
            return self


    print(Net(torch.nn.BatchNorm1d(4), torch.nn.Dropout()).eval()(torch.ones(2, 4)))
"""

import ast
import re
from collections.abc import Iterator

from surestep.doctor.problem import Problem, at_node
from surestep.doctor.source.nodes import find_names
from surestep.doctor.source.trace import Program

SEVERITY = "error"
_CALL = re.compile(r"super\(.*\)\.train\(\)")
FIX = "Pass the mode on: super().train(mode)."


def check(program: Program) -> Iterator[Problem]:
    """Find calls of `super().train()` in methods that are given a mode."""
    for cls in program.classes:
        for method in cls.definition.body if cls.is_module else ():
            if isinstance(method, ast.FunctionDef) and method.name == "train":
                call = _find_call(method)
                if call is not None:
                    yield at_node(
                        call,
                        program.file,
                        f"`eval()` calls `train(False)`, but `{ast.unparse(call)}` switches "
                        f"`{cls.definition.name}` to train mode.",
                    )


def _find_call(method: ast.FunctionDef) -> ast.Call | None:
    """Return a call of the method of the base without a mode, in each case of the mode."""
    args = method.args.args
    if len(args) != 2:
        return None
    for statement in method.body:
        value = getattr(statement, "value", None)
        if isinstance(value, ast.Call) and _CALL.fullmatch(ast.unparse(value)):
            return None if _handles_mode(method, args[1].arg) else value
        if isinstance(statement, ast.If) and args[1].arg in find_names(statement.test):
            return None
    return None


def _handles_mode(method: ast.FunctionDef, mode: str) -> bool:
    """Return whether a method switches itself to the mode by other calls."""
    return any(
        isinstance(node, ast.Attribute)
        and node.attr in ("training", "eval", "train")
        and ast.unparse(node.value) == "self"
        for node in ast.walk(method)
    ) or any(
        isinstance(node, ast.Call) and mode in {ast.unparse(argument) for argument in node.args}
        for node in ast.walk(method)
    )
