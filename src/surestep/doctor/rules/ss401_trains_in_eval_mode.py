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

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import ref

from surestep.doctor.problem import NOWHERE, Problem, at_event
from surestep.doctor.runtime.mode_layers import is_mode_layer, list_mode_layers
from surestep.doctor.runtime.parameters import list_held
from surestep.doctor.runtime.tally import FEWEST, Tally
from surestep.doctor.source.evaluation import find_forwards, is_evaluated_after, is_trained
from surestep.doctor.source.losses import find_trained
from surestep.doctor.source.modes import find_lasting_switch, find_switch
from surestep.doctor.source.modules import depends_on_mode, has_self
from surestep.doctor.source.trace import Event, Program, Trace
from surestep.doctor.source.training import describe, is_without_grad, strip
from surestep.doctor.watcher import Script, TorchCall, Watcher

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

    from surestep.doctor.source.files import SourceFile

SEVERITY = "error"
FIX = "Call model.train() before training continues, at the start of each epoch."
_MOST_MODELS = 100
_FEWEST_EVALUATIONS = 2  # that show their own switch, if the model never was in train mode


def check(program: Program) -> Iterator[Problem]:
    """Find forward passes with a backward pass and a step, after a call of `eval()`."""
    for trace in program.traces:
        trained = find_trained(trace)
        for event, output in () if _freezes(trace) else find_forwards(trace):
            model = strip(output.receiver)
            depends = None if model is None else depends_on_mode(model)
            if model is None or is_without_grad(event) or depends is False:
                continue
            if id(output) not in trained or not is_trained(trace, model):
                continue
            switch = find_switch(trace, event, model, is_training=False)
            switch = switch or find_lasting_switch(trace, event, model, is_training=False)
            if switch is not None and is_evaluated_after(trace, switch.event, model):
                is_at_switch = event.file is not _place(program, switch.event)  # mend it there
                subject = f"`{describe(output.receiver)}` is trained in eval mode"
                if is_at_switch:
                    subject += f" in line {event.line} of {event.file.path.name}"
                line = f"line {switch.event.line}"
                if not is_at_switch and switch.event.file is not event.file:
                    line += f" of {switch.event.file.path.name}"
                yield at_event(
                    switch.event if is_at_switch else event,
                    f"{subject}: {line} switched it, and nothing switches it back.",
                    eval_line=switch.event.line,
                    assumed="" if depends else "The model has layers such as dropout or BatchNorm.",
                )


def _place(program: Program, switch: Event) -> SourceFile:
    """Return the file that should switch a model back: not that of a method of the model."""
    return program.file if has_self(switch) else switch.file


def _freezes(trace: Trace) -> bool:
    """Return whether parameters are frozen; then eval mode is likely deliberate."""
    return any(
        getattr(event.target, "attr", "") == "requires_grad"
        or (event.call is not None and event.call.name == "requires_grad_")
        for event in trace.events
    )


@dataclass(kw_only=True)
class _Model(Tally):
    """The steps of a model in the eval mode that an evaluation left behind.

    Attributes:
        model: that was called.
        name: of its class.
        layers: that depend on the mode; or a module that calls `dropout` by its own mode.
        mode: whether the first of them was in train mode in a call with gradients since the last
            step; None without one.
        is_evaluated: whether it was called without gradients since it was put into eval mode.
        evaluations: how often it was evaluated like this.
        trained: steps in train mode.
        is_certain: whether these show that the mode is not wanted.
    """

    model: ref[nn.Module]
    name: str
    layers: list[ref[nn.Module]]
    mode: bool | None = None
    is_evaluated: bool = False
    evaluations: int = 0
    trained: int = 0
    is_certain: bool = False

    def is_trained_by(self, optimizer: Optimizer) -> bool:
        """Return whether a step is for the model, of which no such layer is in train mode.

        A step of a head behind its frozen layers is not.
        """
        model, layers = self.model(), [layer() for layer in self.layers]
        if model is None or any(layer is None or layer.training for layer in layers):
            return False
        used = list_held([optimizer])
        trained = {id(p) for p in model.parameters() if p.requires_grad and id(p) in used}
        frozen = {
            id(module)
            for part in model.children()
            if (own := list(part.parameters())) and not any(p.requires_grad for p in own)
            for module in part.modules()
        }
        return bool(trained) and not frozen.issuperset(map(id, layers))


class TrainsInEvalModeWatcher(Watcher):
    """Count the steps in the eval mode that an evaluation left behind."""

    FUNCTIONS = ("dropout",)

    def __init__(self) -> None:
        self._seen: dict[int, _Model] = {}  # by the first layer that depends on the mode
        self._ignored: set[int] = set()  # modules that call `dropout` by something else
        self._switched = NOWHERE

    def on_model(self, run: Script, model: nn.Module) -> None:
        self._add(model, list_mode_layers(model))

    def on_call(self, run: Script, call: TorchCall) -> None:
        module = run.modules[-1] if run.modules else None
        if module is None or not call["p"] or is_mode_layer(module):
            return
        is_new = id(module) not in {*self._seen, *self._ignored}
        if call["training"] != module.training:
            self._ignored.add(id(module))
            self._seen.pop(id(module), None)
        elif is_new and not list_mode_layers(run.modules[0]):
            self._add(run.modules[0], [module])
            self.on_forward(run, module, ())

    def _add(self, model: nn.Module, layers: list[nn.Module]) -> None:
        if layers and len(self._seen) < _MOST_MODELS:
            key, name = id(layers[0]), type(model).__name__
            seen = self._seen.get(key)
            if seen is None or seen.layers[0]() is not layers[0]:
                self._seen[key] = _Model(model=ref(model), name=name, layers=[*map(ref, layers)])

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
            seen.mode = seen.mode or module.training
        elif not module.training:
            seen.evaluations += not seen.is_evaluated
            seen.is_evaluated = True

    def on_step(self, run: Script, optimizer: Optimizer) -> None:
        for seen in self._seen.values():
            if seen.mode:
                seen.trained += 1
                seen.mistakes *= seen.is_certain  # earlier ones were meant
            elif seen.mode is not None and seen.is_evaluated:
                if not seen.is_trained_by(optimizer):
                    seen.mode = False if run.is_sampled else None  # of another optimizer, maybe
                    continue
                seen.add(self._switched, run.step + 1)
                seen.is_certain = seen.trained > 0 or seen.evaluations >= _FEWEST_EVALUATIONS
            seen.mode = None

    def observe(self, run: Script) -> Iterator[Problem]:
        for seen in self._seen.values():
            if seen.is_certain and seen.mistakes >= FEWEST:
                yield seen.report(
                    f"{seen.name} stayed in eval mode after an evaluation: {seen.mistakes} steps "
                    f"that were checked trained it in this mode, {seen.trained} in train mode.",
                    {"eval_steps": seen.mistakes, "train_steps": seen.trained},
                )
