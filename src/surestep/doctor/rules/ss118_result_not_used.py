"""The result of an operation on a tensor is not used: the tensor does not change.

`grad.add(x, alpha=d)` returns a new tensor, and `grad.add_(x, alpha=d)` changes `grad`. If a
statement is only the first, what it computes is lost. Nothing fails: weight decay, a mask or a
limit has no effect.

Ignore it if the class of the value has a method of this name that changes it.

Source: https://docs.pytorch.org/docs/stable/tensors.html

Wrong:

    import torch

    gradient, weight = torch.zeros(3), torch.ones(3)
    gradient.add(weight, alpha=0.1)
    print(gradient)

Right:

    import torch

    gradient, weight = torch.zeros(3), torch.ones(3)
    gradient.add_(weight, alpha=0.1)
    print(gradient)
"""

import ast
from collections.abc import Iterator

from surestep.doctor.problem import Problem, at_node
from surestep.doctor.source.trace import Program

SEVERITY = "error"
FIX = "Assign the result, or call the method that changes the tensor, such as add_()."
# Methods of tensors that few other objects have.
_OF_TENSORS = frozenset(
    "clamp clamp_min clamp_max masked_fill masked_scatter index_fill index_copy index_add "
    "scatter_add unsqueeze addcmul addcdiv".split()
)
_WITH_FACTOR = ("add", "sub", "subtract")  # of tensors only, with `alpha=`
_ARITHMETIC = frozenset("add sub mul div neg clone".split())


def check(program: Program) -> Iterator[Problem]:
    """Find statements that only call a method which returns a new tensor."""
    if program.file.is_notebook:  # the last expression of a cell is shown
        return
    own = {node.name for node in program.file.nodes if isinstance(node, ast.FunctionDef)}
    imported = {
        alias.asname or alias.name
        for node in program.file.nodes
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names
    }
    tested = {
        inner
        for node in program.file.nodes
        if isinstance(node, ast.With) and "raises" in ast.unparse(node.items[0])
        for inner in ast.walk(node)
    }
    for node in program.file.nodes:
        call = node.value if isinstance(node, ast.Expr) else None
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
            continue
        if call.func.attr not in own and _returns_tensor(call, call.func):
            tensor = ast.unparse(call.func.value)
            if tensor in imported or node in tested:  # `torch.add(a, b, out=a)`
                continue
            yield at_node(
                call,
                program.file,
                f"`{' '.join(ast.unparse(call).split())}` returns a new tensor, which nothing "
                f"uses: `{tensor}` does not change.",
            )


def _returns_tensor(call: ast.Call, method: ast.Attribute) -> bool:
    owner = method.value
    name = getattr(owner, "attr", getattr(owner, "id", ""))
    if name == "self":
        return False
    has_factor = any(word.arg == "alpha" for word in call.keywords)
    return (
        method.attr in _OF_TENSORS
        or (method.attr in _WITH_FACTOR and has_factor)
        or (method.attr in _ARITHMETIC and name in ("grad", "grads", "gradient"))
    )
