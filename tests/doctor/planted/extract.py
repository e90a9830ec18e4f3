"""Move the statements of a step into a function."""

from __future__ import annotations

import ast
import random

from tests.doctor.planted.matching import build_statements
from tests.doctor.planted.parts import all_names, is_batch_loop, is_stored
from tests.doctor.planted.scripts import Script
from tests.doctor.planted.view import statements_of


def extract_step(script: Script, rng: random.Random) -> None:
    """Move the statements from the forward pass to the step into a function."""
    for tree in script.trees.values():
        for site in list(statements_of(tree, ())):
            if not is_batch_loop(site.node) or any(isinstance(a, ast.ClassDef) for a in site.above):
                continue
            if extract_from(tree, site.node, site.above, rng):
                return


def extract_from(
    tree: ast.Module, loop: ast.For, above: tuple[ast.AST, ...], rng: random.Random
) -> bool:
    steps = [i for i, s in enumerate(loop.body) if "backward()" in ast.unparse(s)]
    if not steps or any(isinstance(n, (ast.Continue, ast.Break)) for n in ast.walk(loop)):
        return False
    ends = [i for i, s in enumerate(loop.body) if ".step(" in ast.unparse(s)] or steps
    first = rng.randint(0, min(steps))
    last = rng.randint(max(steps), max(ends))
    block = loop.body[first : last + 1]
    inside = [node for statement in block for node in ast.walk(statement)]
    if any(isinstance(n, (ast.FunctionDef, ast.Lambda, ast.Return, ast.Yield)) for n in inside):
        return False
    functions = [a for a in above if isinstance(a, ast.FunctionDef)]
    scope: ast.AST = functions[-1] if functions else tree
    local = {n.id for n in ast.walk(scope) if is_stored(n)}
    if functions:
        local |= {a.arg for a in ast.walk(functions[-1].args) if isinstance(a, ast.arg)}
    loaded = {n.id for n in inside if isinstance(n, ast.Name)}
    stored = {n.id for n in inside if is_stored(n)}
    simple = [s for s in block if isinstance(s, (ast.Assign, ast.AugAssign))]
    certain = {n.id for s in simple for n in ast.walk(s) if is_stored(n)}
    known = set(map(id, inside))
    needed = {n.id for n in ast.walk(scope) if is_loaded(n) and id(n) not in known}
    targets = [n.target for n in inside if isinstance(n, ast.AugAssign)]
    augmented = {target.id for target in targets if isinstance(target, ast.Name)}
    returned = sorted((stored & needed) | augmented)
    if not set(returned) <= certain:
        return False
    given = sorted((loaded & local) - (stored_before_use(block) - augmented))
    name = rng.choice(["train_step", "do_batch", "optimize", "_update"])
    if name in all_names(tree):
        return False
    result = ", ".join(returned)
    text = f"def {name}({', '.join(given)}):\n    pass" + (
        f"\n    return {result}" if returned else ""
    )
    (function,) = build_statements(text)
    assert isinstance(function, ast.FunctionDef)
    function.body[0:1] = block
    call = f"{name}({', '.join(given)})"
    loop.body[first : last + 1] = build_statements(f"{result} = {call}" if returned else call)
    at = next(i for i, node in enumerate(tree.body) if node in above or node is loop)
    tree.body.insert(at, function)
    return True


def stored_before_use(block: list[ast.stmt]) -> set[str]:
    """Return the names that a block assigns before it reads them."""
    stored: set[str] = set()
    read: set[str] = set()
    for statement in block:
        nodes = [n for n in ast.walk(statement) if isinstance(n, ast.Name)]
        simple = isinstance(statement, (ast.Assign, ast.Expr, ast.AugAssign))
        read |= {n.id for n in nodes if isinstance(n.ctx, ast.Load)} - stored
        if simple:
            stored |= {n.id for n in nodes if isinstance(n.ctx, ast.Store)} - read
        elif isinstance(statement, ast.With):
            read |= {n for n in stored_before_use_reads(statement.body) if n not in stored}
            stored |= stored_before_use(statement.body) - read
    return stored


def stored_before_use_reads(block: list[ast.stmt]) -> set[str]:
    first = stored_before_use(block)
    return {n.id for s in block for n in ast.walk(s) if is_loaded(n)} - first


def is_loaded(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
