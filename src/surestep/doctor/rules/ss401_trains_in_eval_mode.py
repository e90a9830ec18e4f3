"""A model is trained in eval mode, which an evaluation left behind.

In eval mode dropout is off and BatchNorm uses its running statistics, which no longer change. If
an evaluation calls `model.eval()` and nothing calls `model.train()` afterwards, all later training
runs like this. Nothing fails: the model overfits, or trains with old statistics.

Ignore it if the whole model is meant to train in eval mode. A script that freezes parameters, or
switches only some layers, is not reported.

Source: https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html#torch.nn.Module.train

Wrong:

    import torch
    from torch import nn

    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = [(torch.randn(8, 4), torch.randint(2, (8,))) for _ in range(4)]
    model.train()
    for _ in range(2):
        for x, y in batches[:3]:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            for x, y in batches[3:]:
                print((model(x).argmax(1) == y).float().mean())

Right:

    import torch
    from torch import nn

    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = [(torch.randn(8, 4), torch.randint(2, (8,))) for _ in range(4)]
    for _ in range(2):
        model.train()
        for x, y in batches[:3]:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            for x, y in batches[3:]:
                print((model(x).argmax(1) == y).float().mean())
"""

from __future__ import annotations

import ast
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from surestep.doctor.problem import NOWHERE, Problem, at_event
from surestep.doctor.runtime.mode_layers import Switched, list_switched
from surestep.doctor.runtime.mode_layers import depends_on_mode as is_switched
from surestep.doctor.source.evaluation import find_forwards
from surestep.doctor.source.modes import find_lasting_switch, find_switch
from surestep.doctor.source.modules import depends_on_mode, models_of, traverse_inputs
from surestep.doctor.source.trace import Event, Program, Trace
from surestep.doctor.source.training import (
    Action,
    describe,
    find_actions,
    is_made_by,
    is_same,
    is_without_grad,
    strip,
)
from surestep.doctor.source.values import Value
from surestep.doctor.watcher import Script, TorchCall, Watcher

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

SEVERITY = "error"
FIX = "Call model.train() before training continues, at the start of each epoch."
_FEWEST = 3  # steps in eval mode
_MOST_MODELS = 100


def check(program: Program) -> Iterator[Problem]:
    """Find forward passes with a backward pass and a step, after a call of `eval()`."""
    for trace in program.traces:
        actions = find_actions(trace)
        steps = [action for action in actions if action.kind == "step"]
        losses = [action.target for action in actions if action.kind == "backward"]
        if not steps or not losses or _freezes(trace):
            continue
        for event, output in find_forwards(trace):
            model = strip(output.receiver)
            if model is None or is_without_grad(event) or depends_on_mode(model) is False:
                continue
            is_in_loss = any(
                loss is not None and any(part is output for part in traverse_inputs(loss))
                for loss in losses
            )
            if not is_in_loss or not _is_trained(trace, model, steps, event):
                continue
            switch = find_switch(trace, event, model, is_training=False)
            switch = switch or find_lasting_switch(trace, event, model, is_training=False)
            if switch is None or not _is_for_evaluation(trace, switch.event, model):
                continue
            line = switch.event.line
            yield at_event(
                event,
                f"`{describe(output.receiver)}` is trained in eval mode: line {line} switched it, "
                "and nothing switches it back.",
                eval_line=line,
            )


def _freezes(trace: Trace) -> bool:
    """Return whether parameters are frozen; then eval mode is likely deliberate."""
    for event in trace.events:
        target = event.target
        if event.kind == "store" and isinstance(target, ast.Attribute):
            if target.attr == "requires_grad":
                return True
        elif event.call is not None and event.call.name == "requires_grad_":
            return True
    return False


def _is_trained(trace: Trace, model: Value, steps: list[Action], forward: Event) -> bool:
    """Return whether a step updates the model."""
    known = [step for step in steps if is_made_by(step.target, "torch.optim.")]
    if known:
        return any(is_same(other, model) for step in known for other in models_of(step.target))
    models = {id(strip(output.receiver)) for event, output in find_forwards(trace)}
    return len(models) == 1


def _is_for_evaluation(trace: Trace, switch: Event, model: Value) -> bool:
    """Return whether a forward pass without gradients follows the switch to eval mode."""
    start = trace.index(switch)
    for event, output in find_forwards(trace):
        if trace.index(event) > start and is_same(output.receiver, model):
            return is_without_grad(event)
    return False


class TrainsInEvalModeWatcher(Watcher):
    """Count the steps in the eval mode that an evaluation left behind."""

    FUNCTIONS = ("dropout",)

    def __init__(self) -> None:
        self._seen: dict[int, Switched] = {}  # by the first layer that depends on the mode
        self._ignored: set[int] = set()  # modules that call `dropout` by something else
        self._switched = NOWHERE

    def on_model(self, run: Script, model: nn.Module) -> None:
        self._add(model, list_switched(model))

    def on_call(self, run: Script, call: TorchCall) -> None:
        module = run.modules[-1] if run.modules else None
        if module is None or not call["p"] or is_switched(module):
            return
        if call["training"] != module.training:
            self._ignored.add(id(module))
            self._seen.pop(id(module), None)
        elif id(module) not in {*self._seen, *self._ignored} and not list_switched(run.modules[0]):
            self._add(run.modules[0], [module])
            self.on_forward(run, module, ())

    def _add(self, model: nn.Module, layers: list[nn.Module]) -> None:
        if layers and len(self._seen) < _MOST_MODELS:
            name, references = type(model).__name__, [weakref.ref(layer) for layer in layers]
            seen = self._seen.get(id(layers[0]))
            if seen is None or seen.layers[0]() is not layers[0]:
                self._seen[id(layers[0])] = Switched(weakref.ref(model), name, references)

    def on_mode(self, run: Script, module: nn.Module, is_training: bool) -> None:
        if not is_training:
            self._switched = run.locate()
        for seen in self._seen.values():
            seen.is_evaluated = False

    def on_forward(self, run: Script, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        seen = self._seen.get(id(module))
        if seen is None or run.in_backward or seen.layers[0]() is not module:
            return
        import torch

        if torch.is_grad_enabled():
            seen.is_used = True
            seen.was_switched = seen.was_switched or module.training
        elif not module.training:
            seen.evaluations += not seen.is_evaluated
            seen.is_evaluated = True

    def on_step(self, run: Script, optimizer: Optimizer) -> None:
        for seen in self._seen.values():
            if not seen.is_used:
                continue
            if seen.was_switched:
                seen.trained, seen.early = seen.trained + 1, 0
            elif seen.is_evaluated:
                if not seen.is_trained_by(optimizer):
                    seen.is_used = run.is_sampled  # maybe for the step of another optimizer
                    continue
                seen.add_mistake(run.step + 1, self._switched)
            seen.is_used = seen.was_switched = False

    def observe(self, run: Script) -> Iterator[Problem]:
        for seen in self._seen.values():
            if seen.mistakes >= _FEWEST:
                yield seen.report(
                    f"{seen.name} stayed in eval mode after an evaluation: {seen.mistakes} steps "
                    f"that were checked trained it in this mode, {seen.trained} in train mode.",
                    {"eval_steps": seen.mistakes, "train_steps": seen.trained},
                )
