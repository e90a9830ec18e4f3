"""The model kept as the best is the worst: the metric is compared the wrong way round.

An accuracy should grow and a loss should fall. `ModelCheckpoint` and `EarlyStopping` of Lightning
take the smallest value by default, `TrainingArguments` of transformers the largest one unless the
name of the metric ends with "loss". With the wrong direction, the checkpoint of the worst epoch is
kept, or the training stops as soon as the model gets better.

Ignore it if the metric means something else than its name says.

Source: https://lightning.ai/docs/pytorch/stable/api/lightning.pytorch.callbacks.ModelCheckpoint.html

Wrong:

    import torch

    model = torch.nn.Linear(4, 3)
    x, y = torch.randn(32, 4), torch.randint(3, (32,))
    best_accuracy = 1.0
    for _ in range(5):
        accuracy = (model(x).argmax(1) == y).float().mean().item()
        if accuracy < best_accuracy:
            best_accuracy = accuracy
            torch.save(model.state_dict(), "best.pt")

Right:

    import torch

    model = torch.nn.Linear(4, 3)
    x, y = torch.randn(32, 4), torch.randint(3, (32,))
    best_accuracy = 0.0
    for _ in range(5):
        accuracy = (model(x).argmax(1) == y).float().mean().item()
        if accuracy > best_accuracy:
            best_accuracy = accuracy
            torch.save(model.state_dict(), "best.pt")
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from surestep.doctor.problem import Problem, at_event
from surestep.doctor.source.metric_names import find_better
from surestep.doctor.source.trace import Branch, Event, Program, Trace
from surestep.doctor.source.training import describe
from surestep.doctor.source.values import Call, Constant, Value

SEVERITY = "error"
FIX = "Compare a metric that should grow with >, or pass mode='max'; one that should fall with <."
_DIRECTIONS: dict[type, str] = {ast.Lt: "min", ast.LtE: "min", ast.Gt: "max", ast.GtE: "max"}
_OTHER = {"min": "max", "max": "min"}
_VERBS = {"min": "smallest", "max": "largest"}
_LIGHTNING = ("lightning.", "pytorch_lightning.")
_POSITIONS = {"ModelCheckpoint": (2, 7), "EarlyStopping": (0, 4)}  # of `monitor` and `mode`
_BEST = re.compile("best", re.IGNORECASE)


def check(program: Program) -> Iterator[Problem]:
    """Find monitors and comparisons whose direction is not that of their metric."""
    for trace in program.traces:
        for event, call in trace.calls:
            name, kept = _find_monitored(call)
            better = find_better([name])
            if better and kept and better != kept:
                message = f"`{describe(call)}` takes the {_VERBS[kept]} `{name}` for the best one."
                yield at_event(event, message, metric=name)
        for event in trace.events:
            kept = _find_kept(event)
            if kept and find_better(_name_metric(trace, event)) == _OTHER[kept]:
                text = ast.unparse(event.node)
                yield at_event(
                    event,
                    f"`{text}` keeps the {_VERBS[kept]} value for the best one, and the metric "
                    f"should {'grow' if kept == 'min' else 'fall'}.",
                )


def _find_monitored(call: Call) -> tuple[str, str]:
    """Return the metric by which a library chooses the best model, and "min" or "max"."""
    if call.has_unknown_arguments:
        return "", ""
    if call.name in _POSITIONS and call.path.startswith(_LIGHTNING):
        at, mode_at = _POSITIONS[call.name]
        keeps_all = _read(call.argument(-1, "save_top_k")) in (0, -1)
        metric = _read(call.argument(at, "monitor"))
        mode = call.argument(mode_at, "mode")
        return str(metric or ""), "" if keeps_all else _read_mode(mode)
    if call.path.startswith("transformers.") and call.name.endswith("TrainingArguments"):
        metric = str(_read(call.keywords.get("metric_for_best_model")) or "")
        given = call.keywords.get("greater_is_better")
        grows = not metric.endswith("loss") if given is None else _read(given)
        return metric, "max" if grows is True else "min" if grows is False else ""
    return "", ""


def _read(value: Value | None) -> object:
    """Return a literal; None for others."""
    return value.value if isinstance(value, Constant) else None


def _read_mode(mode: Value | None) -> str:
    """Return the mode, which is "min" by default; "" if it is not certain."""
    written = "min" if mode is None else _read(mode)
    return written if written in ("min", "max") else ""


def _find_kept(event: Event) -> str:
    """Return which value an assignment under a condition keeps: "min", "max" or "" for others."""
    if event.kind != "store" or not event.branches or event.target is None:
        return ""
    target, value = ast.unparse(event.target), getattr(event.node, "value", None)
    if value is None or not (_BEST.search(target) or _is_in_best(event)):
        return ""
    pair = ast.unparse(value), target
    found = {_find_direction(compared, pair, event.branches[-1]) for compared in _list_tests(event)}
    return found.pop() if len(found) == 1 else ""


def _is_in_best(event: Event) -> bool:
    """Return whether an assignment is in something whose name says that it keeps the best."""
    owners = (getattr(function.owner, "cls", None) for function in event.stack[-1:])
    names = [getattr(getattr(owner, "definition", None), "name", "") for owner in owners]
    return any(map(_BEST.search, [*names, *(function.name for function in event.stack[-1:])]))


def _list_tests(event: Event) -> list[ast.Compare]:
    test = getattr(event.branches[-1].node, "test", None)
    parts = test.values if isinstance(test, ast.BoolOp) else [test]
    return [part for part in parts if isinstance(part, ast.Compare) and len(part.ops) == 1]


def _find_direction(test: ast.Compare, pair: tuple[str, str], branch: Branch) -> str:
    """Return the direction of `new < best`, if a test compares these two."""
    sides = ast.unparse(test.left), ast.unparse(test.comparators[0])
    kept = _DIRECTIONS.get(type(test.ops[0]), "")
    if not kept or sides not in (pair, pair[::-1]):
        return ""
    return kept if (sides == pair) == branch.is_taken else _OTHER[kept]


def _name_metric(trace: Trace, event: Event) -> list[str]:
    """Return the names of what is kept: where it was computed, or where it is compared."""
    stores = [e for e in trace.events if e.kind == "store" and e.value is event.value]
    names = [e.target.id for e in stores if e is not event and isinstance(e.target, ast.Name)]
    if find_better(names):
        return names
    value = getattr(event.node, "value", None)
    if isinstance(value, (ast.Name, ast.Attribute)) and event.target is not None:
        return [ast.unparse(value).rpartition(".")[2], ast.unparse(event.target)]
    return []
