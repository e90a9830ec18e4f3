"""ReduceLROnPlateau gets no metric, or something that is not one.

Its `step()` needs the value that should improve. Without it, it raises an error, perhaps after a
long first epoch. With the number of the epoch it runs: the number grows, so after `patience` epochs
the learning rate falls again and again, whatever the model does. The same happens with the learning
rate itself, with an accuracy and the default `mode="min"`, and with a loss and `mode="max"`.

Ignore it if the quantity is one that should fall in spite of its name.

Source: https://docs.pytorch.org/docs/stable/generated/torch.optim.lr_scheduler.ReduceLROnPlateau.html

Wrong:

    import torch

    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=3)
    for _ in range(5):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).pow(2).mean().backward()
        optimizer.step()
        scheduler.step()  # type: ignore[call-arg]

Right:

    import torch

    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=3)
    for _ in range(5):
        optimizer.zero_grad()
        loss = model(torch.randn(8, 4)).pow(2).mean()
        loss.backward()
        optimizer.step()
        scheduler.step(loss.item())
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from surestep.doctor.problem import Location, Problem, at_event
from surestep.doctor.runtime.tally import Occurrence
from surestep.doctor.source.metric_names import find_better
from surestep.doctor.source.schedules import PLATEAU, creations
from surestep.doctor.source.trace import Event, Program
from surestep.doctor.source.training import describe, find_actions, is_made_by
from surestep.doctor.source.values import Call, Constant, Element, Unknown, Value, last_name
from surestep.doctor.watcher import Script, Watcher

SEVERITY = "error"
FIX = "Pass the metric that should improve: scheduler.step(val_loss); mode='max' if it should grow."

_OTHER = {"min": "max", "max": "min"}
_VERBS = {"min": "fall", "max": "grow"}
_RATE = re.compile(r"\.param_groups\b.*\[.lr.\]$|get_last_lr\(\)")
_FEWEST = 4  # calls in a row, from the first one on
# torch raises an error for the first one; only its name shows what the second one is.


def check(program: Program) -> Iterator[Problem]:
    """Find steps of a plateau schedule without a metric that fits its mode."""
    for trace in program.traces:
        for action in find_actions(trace):
            call = action.event.call
            if action.kind != "schedule" or call is None or not is_made_by(action.target, PLATEAU):
                continue
            if call.has_unknown_arguments:
                continue
            metric = call.argument(0, "metrics")
            name = describe(call)
            if metric is None:
                yield at_event(action.event, f"`{name}` gets no metric.")
            elif _is_count(metric, action.event):
                yield at_event(
                    action.event, f"`{name}` gets the number of a pass, which is not a metric."
                )
            elif _RATE.search(ast.unparse(metric.node) if metric.node else ""):
                yield at_event(
                    action.event, f"`{name}` gets the learning rate, which is not a metric."
                )
            elif better := _find_better(metric, call):
                modes = set(map(_read_mode, creations(action.target)))
                if modes == {_OTHER[better]}:
                    yield at_event(
                        action.event,
                        f"`{name}` gets a metric that should {_VERBS[better]}, but the mode of the "
                        f"schedule is '{_OTHER[better]}'.",
                    )


def _is_count(metric: Value, event: Event) -> bool:
    """Return whether a value is the number of a pass of a loop."""
    if isinstance(metric, Unknown) and metric.name == "":
        given = event.node.args[0] if isinstance(event.node, ast.Call) and event.node.args else None
        return isinstance(given, ast.Name) and given.id in ("epoch", "i", "step", "e", "ep")
    if not isinstance(metric, Element) or not isinstance(metric.of, Call):
        return False
    return metric.of.path in ("range", "tqdm.trange")


def _find_better(metric: Value, call: Call) -> str:
    """Return whether a metric should grow, "max", or fall, "min"; "" if its name is unclear."""
    node = call.node
    given = node.args[0] if isinstance(node, ast.Call) and node.args else None
    if not isinstance(given, (ast.Name, ast.Attribute)):
        return ""
    return find_better((given.id if isinstance(given, ast.Name) else given.attr, last_name(metric)))


def _read_mode(made: Call) -> str:
    """Return the mode of a schedule; "" if it is not certain."""
    mode = made.argument(1, "mode")
    if mode is None:
        return "" if made.has_unknown_arguments else "min"
    return str(mode.value) if isinstance(mode, Constant) else ""


@dataclass
class _Calls(Occurrence):
    """The steps of a schedule.

    Attributes:
        location: of the first one.
        since_step: of the first one, as all are wrong.
        number: of them.
        is_count: whether the metric grew by 1 in all of them.
        is_rate: whether the metric was the learning rate in all of them.
        last: the last metric.
    """

    location: Location
    since_step: int = 1
    number: int = 0
    is_count: bool = True
    is_rate: bool = True
    last: Any = None


class PlateauWithoutMetricWatcher(Watcher):
    """Find metrics that count their calls, or that are the learning rate."""

    def __init__(self) -> None:
        self._of: WeakKeyDictionary[Any, _Calls] = WeakKeyDictionary()
        self._all: list[_Calls] = []

    def on_schedule_step(self, run: Script, schedule: Any, arguments: tuple[Any, ...]) -> None:
        if not hasattr(schedule, "patience") or not arguments:
            return
        calls = self._of.get(schedule)
        if calls is None:
            calls = self._of[schedule] = _Calls(run.locate())
            self._all.append(calls)
        metric, last = arguments[0], calls.last
        calls.number += 1
        is_next = type(metric) is int and (last is None or metric == last + 1)
        calls.is_count = calls.is_count and is_next and schedule.mode == "min"
        rates = [group["lr"] for group in schedule.optimizer.param_groups]
        calls.is_rate = calls.is_rate and isinstance(metric, float) and metric in rates
        calls.last = metric

    def observe(self, run: Script) -> Iterator[Problem]:
        for calls in self._all:
            if calls.number < _FEWEST or not (calls.is_count or calls.is_rate):
                continue
            what = "a number that grew by 1" if calls.is_count else "the learning rate"
            yield calls.report(
                f"The metric of ReduceLROnPlateau was {what} in all of its {calls.number} calls.",
                {"calls": calls.number},
            )
