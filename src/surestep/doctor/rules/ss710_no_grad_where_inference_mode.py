"""A model generates under `no_grad()`, where `inference_mode()` is a little faster.

Both leave out the graph. `inference_mode()` also leaves out the version counters of tensors and
what tracks their views. This is some time of each operation, so it shows where operations are
small and many: in a loop that calls a model for each new token. A small GPT of 4 layers took 5%
less time on a CPU. The tensors that are made like this cannot be used in a graph later.

It is information only: other evaluations under `no_grad()` are not reported. Ignore it if
something trains on what is generated.

Source: https://docs.pytorch.org/docs/stable/notes/autograd.html#inference-mode

Wrong:

    import torch
    from torch import nn


    @torch.no_grad()
    def generate(model, tokens, count):
        model.eval()
        for _ in range(count):
            logits = model(tokens)[:, -1]
            token = torch.multinomial(logits.softmax(-1), 1)
            tokens = torch.cat([tokens, token], dim=1)
        return tokens


    model = nn.Sequential(nn.Embedding(16, 8), nn.Linear(8, 16))
    print(generate(model, torch.zeros(1, 1, dtype=torch.long), 8))

Right:

    import torch
    from torch import nn


    @torch.inference_mode()
    def generate(model, tokens, count):
        for _ in range(count):
            token = model(tokens)[:, -1].argmax(-1, keepdim=True)
            tokens = torch.cat([tokens, token], dim=1)
        return tokens


    model = nn.Sequential(nn.Embedding(16, 8), nn.Linear(8, 16)).eval()
    print(generate(model, torch.zeros(1, 1, dtype=torch.long), 8))
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from surestep.doctor.problem import Problem, at_event
from surestep.doctor.source.evaluation import find_forwards, has_training
from surestep.doctor.source.modules import traverse_inputs
from surestep.doctor.source.trace import Event, Program, Trace
from surestep.doctor.source.training import describe
from surestep.doctor.source.values import Call, Unknown, Value, last_name, walk

SEVERITY = "info"
FIX = "Write `with torch.inference_mode():`, or decorate the function with it."
_JOINS = ("cat", "concat", "hstack")
_MOST_INPUTS = 200


def check(program: Program) -> Iterator[Problem]:
    """Find loops under `no_grad()` that join what a model returns to its input."""
    if program.mentions("inference_mode"):
        return
    reported: set[int] = set()
    for trace in program.traces:
        for event, output in find_forwards(trace):
            blocks = [id(c.node) for c in event.contexts if last_name(c) == "no_grad"]
            if event.loop is None or not blocks or has_training(trace, event):
                continue
            if reported.isdisjoint(blocks) and _is_joined(trace, event, output):
                reported.update(blocks)  # one change mends all forward passes of a block
                yield at_event(
                    event,
                    f"`{describe(output)}` runs for each new element of a sequence under "
                    "no_grad(), which does more than inference_mode().",
                )


def _is_joined(trace: Trace, event: Event, output: Call) -> bool:
    """Return whether the output of a forward pass is joined to what the next pass reads."""
    read = _find_names(output)
    joined: list[Value] = []
    for later in trace.events[trace.index(event) + 1 :]:
        if event.loops != later.loops[: len(event.loops)]:
            return False
        call = later.call
        if call is not None and call.path.startswith("torch.") and call.name in _JOINS:
            if any(part is output for part in traverse_inputs(call, _MOST_INPUTS)):
                joined.append(call)
        elif later.kind == "store" and later.target is not None and joined:
            is_joined = any(part is made for part in walk(later.value, 50) for made in joined)
            if is_joined and ast.unparse(later.target) in read:
                return True
    return False


def _find_names(output: Call) -> set[str]:
    """Return the names from which the input of a forward pass is computed."""
    given = [part for arg in output.arguments for part in walk(arg, 100)]
    nodes = [n for part in given if part.node is not None for n in _list_nodes(part.node)]
    names = {part.name for part in given if isinstance(part, Unknown)}
    called = _list_nodes(output.node)
    return names | {
        ast.unparse(n) for n in (*nodes, *called) if isinstance(n, (ast.Name, ast.Attribute))
    }


def _list_nodes(node: ast.AST | None) -> Iterator[ast.AST]:
    return ast.walk(node) if isinstance(node, ast.expr) else iter(())
