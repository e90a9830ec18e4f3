"""A remainder is a condition: what one of N passes should do happens in the others.

`if step % 100:` is true in 99 of 100 passes, as every number but 0 is true. If it chooses when to
log, save or step, `== 0` is missing. Nothing fails: the values are logged of the wrong steps, or an
optimizer steps with a part of the gradients.

A condition that skips the pass, such as `if step % 100: continue`, or that has an `else` is not
reported.

Source: https://docs.python.org/3/library/stdtypes.html#truth-value-testing

Wrong:

    import torch

    model, every = torch.nn.Linear(4, 1), 10
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(40):
        optimizer.zero_grad()
        loss = model(torch.randn(8, 4)).pow(2).mean()
        loss.backward()
        optimizer.step()
        if step % every or step == 39:
            print(step, loss.item())

Right:

    import torch

    model, every = torch.nn.Linear(4, 1), 10
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(40):
        optimizer.zero_grad()
        loss = model(torch.randn(8, 4)).pow(2).mean()
        loss.backward()
        optimizer.step()
        if step % every == 0 or step == 39:
            print(step, loss.item())
"""

import ast
import re
from collections.abc import Iterator

from surestep.doctor.problem import Problem, at_node
from surestep.doctor.source.trace import Program

SEVERITY = "warning"
FIX = "Compare the remainder: step % N == 0."
_EVERY = re.compile(r"log|print|every|freq|interval|accum|save|eval|period", re.IGNORECASE)
_CALLS = frozenset("step print info log log_dict add_scalar save validate evaluate".split())


def check(program: Program) -> Iterator[Problem]:
    """Find conditions with a bare remainder before a step, a log or a save."""
    for node in program.file.nodes:
        if not isinstance(node, ast.If) or node.orelse:
            continue
        remainder = next(_find_remainders(node.test), None)
        if remainder is not None and (_has_last(node.test) or _acts(node)):
            text = ast.unparse(remainder)
            yield at_node(
                remainder,
                program.file,
                f"`{text}` is true in all passes but one of `{ast.unparse(remainder.right)}`.",
            )


def _find_remainders(test: ast.expr) -> Iterator[ast.BinOp]:
    """Yield the remainders of a number of passes that are operands of a condition."""
    for part in test.values if isinstance(test, ast.BoolOp) else [test]:
        if isinstance(part, ast.BoolOp):
            yield from _find_remainders(part)
        match part:
            case ast.BinOp(op=ast.Mod(), right=right) if _EVERY.search(ast.unparse(right)):
                yield part


def _has_last(test: ast.expr) -> bool:
    """Return whether a condition is also true in one pass: `step % 10 or step == last`."""
    choices = [n for n in ast.walk(test) if isinstance(n, ast.BoolOp) and isinstance(n.op, ast.Or)]
    return any(
        any(_find_remainders(choice))
        and any(isinstance(v, ast.Compare) and isinstance(v.ops[0], ast.Eq) for v in choice.values)
        for choice in choices
    )


def _acts(node: ast.If) -> bool:
    """Return whether the body of a condition steps, logs or saves itself."""
    calls = [
        statement.value.func
        for statement in node.body
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call)
    ]
    return any(getattr(call, "attr", getattr(call, "id", "")) in _CALLS for call in calls)
