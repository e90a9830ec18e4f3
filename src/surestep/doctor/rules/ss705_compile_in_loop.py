"""A model is compiled again in each pass of a loop.

Each `torch.compile` wraps the model again, and the first call of each wrapper is compiled or looked
up again, which takes seconds. Wrappers can pile up around the model. Training is slower than
without compilation.

Ignore it if the loop compares options of the compiler. A loop that compiles a new model, or a
different layer, in each pass is not reported.

Source: https://docs.pytorch.org/docs/stable/generated/torch.compile.html

Wrong:

    import torch

    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        compiled = torch.compile(model, backend="eager")
        optimizer.zero_grad()
        compiled(torch.randn(8, 4)).pow(2).mean().backward()
        optimizer.step()

Right:

    import torch

    model = torch.nn.Linear(4, 1)
    compiled = torch.compile(model, backend="eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        compiled(torch.randn(8, 4)).pow(2).mean().backward()
        optimizer.step()
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from surestep.doctor.problem import Location, Problem, at_event
from surestep.doctor.runtime.tally import Occurrence, Tally
from surestep.doctor.source.nodes import find_names
from surestep.doctor.source.trace import Event, Program, SourceLoop, Trace
from surestep.doctor.source.training import describe, is_model, options_of
from surestep.doctor.source.values import Call, Element, Function, Value, walk
from surestep.doctor.watcher import Script, Watcher

SEVERITY = "speed"
FIX = "Call torch.compile once, before the loop."
_FEWEST_CALLS = 3  # of torch.compile
_WARMUP = 3  # steps in which graphs may be compiled
_FEWEST_STEPS = 4  # later steps that compiled a graph: two for a last batch and an evaluation
_MOST = 64  # models, and steps


def check(program: Program) -> Iterator[Problem]:
    """Find models from before a loop that are compiled in it."""
    for trace in program.traces:
        for event, call in trace.calls:
            if call.path != "torch.compile" or event.loop is None:
                continue
            compiled = call.argument(0, "model")
            if event.branches or _depends_on_loop(call, event.loop):
                continue
            if _is_from_before(trace, event.loop, compiled):
                yield at_event(
                    event, f"`{describe(call)}` compiles the model in each pass of the loop."
                )


def _depends_on_loop(call: Call, loop: SourceLoop) -> bool:
    """Return whether a call uses what changes with each pass of a loop."""
    if any(isinstance(part, Element) for part in walk(call)) or call.node is None:
        return True
    changing = getattr(loop.node, "target", None)
    names = set() if changing is None else find_names(changing)
    return bool(names & find_names(call.node))


def _is_from_before(trace: Trace, loop: SourceLoop, value: Value | None) -> bool:
    """Return whether a model or a function was made before the loop."""
    options = options_of(value)
    if len(options) != 1 or not (is_model(options[0]) or isinstance(options[0], Function)):
        return False
    for event in trace.events:
        if loop in event.loops:
            return False
        if _has(event, options[0]):
            return True
    return False


def _has(event: Event, value: Value) -> bool:
    is_call = isinstance(value, Call) and event.value is value
    return is_call or (event.kind == "store" and value in options_of(event.value))


@dataclass
class _Compiled(Occurrence):
    """Calls of torch.compile in one line with the same model and options."""

    location: Location
    since_step: int
    name: str
    calls: int = 0


class CompileInLoopWatcher(Watcher):
    """Count how often a model is compiled, and the graphs that torch compiles in later steps."""

    def __init__(self) -> None:
        self._compiled: dict[tuple[object, ...], _Compiled] = {}
        self._graphs = 0
        self._steps: list[int] = []  # that followed the compilation of a graph
        self._again = Tally()  # the first of them

    def on_compile(self, run: Script, model: Any, options: Mapping[str, Any]) -> None:
        location = run.locate()
        key = (id(model), location, repr(sorted(options.items(), key=str)))
        if len(self._compiled) < _MOST or key in self._compiled:
            name = type(model).__name__
            seen = self._compiled.setdefault(key, _Compiled(location, run.step + 1, name))
            seen.calls += 1

    def after_step(self, run: Script, optimizer: Any) -> None:
        if not self._compiled or len(self._steps) >= _MOST:
            return
        from surestep.doctor import private

        graphs = private.count_graphs()
        if graphs > self._graphs:
            self._graphs = graphs
            if run.step > _WARMUP:
                if not self._steps:
                    self._again.add(run.locate(), run.step)
                self._steps.append(run.step)

    def observe(self, run: Script) -> Iterator[Problem]:
        for seen in self._compiled.values():
            if seen.calls >= _FEWEST_CALLS:
                yield seen.report(
                    f"The same {seen.name} was compiled {seen.calls} times with the same options.",
                    {"calls": seen.calls},
                )
                return
        if len(self._steps) >= _FEWEST_STEPS:
            yield self._again.report(
                f"{len(self._steps)} steps after the first {_WARMUP} compiled a graph again, the "
                f"last one at step {self._steps[-1]}: shapes or Python values change.",
                {"steps": len(self._steps), "last": self._steps[-1]},
            )
