"""A model is trained in eval mode, which an evaluation left behind.

In eval mode dropout is off and BatchNorm uses its running statistics, which no longer change. If
an evaluation calls `model.eval()` and nothing calls `model.train()` afterwards, all later training
runs like this. Nothing fails: the model overfits, or trains with old statistics.

Ignore it if the whole model is meant to train in eval mode. A script that freezes parameters, or
switches only some layers, is not reported.

Source: https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html#torch.nn.Module.train
"""

from __future__ import annotations

import ast
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from surestep.doctor.problem import Problem, at_event
from surestep.doctor.runtime.modes import Switched, list_switched
from surestep.doctor.runtime.modes import depends_on_mode as is_switched
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
from surestep.doctor.watcher import NOWHERE, Observation, Run, Watcher
from surestep.doctor.watcher import Call as CallOfTorch

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
            line = getattr(switch.event.node, "lineno", None)
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


class Watch(Watcher):
    """Count the steps in the eval mode that an evaluation left behind."""

    FUNCTIONS = ("dropout",)

    def __init__(self) -> None:
        self._seen: dict[int, Switched] = {}  # by the first layer that depends on the mode
        self._ignored: set[int] = set()  # modules that call `dropout` by something else
        self._switched = NOWHERE

    def on_model(self, run: Run, model: nn.Module) -> None:
        self._add(model, list_switched(model))

    def on_call(self, run: Run, call: CallOfTorch) -> None:
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

    def on_mode(self, run: Run, module: nn.Module, is_training: bool) -> None:
        if not is_training:
            self._switched = run.locate()
        for seen in self._seen.values():
            seen.is_evaluated = False

    def on_forward(self, run: Run, module: nn.Module, inputs: tuple[Any, ...]) -> None:
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

    def on_step(self, run: Run, optimizer: Optimizer) -> None:
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

    def observe(self, run: Run) -> Iterator[Observation]:
        for seen in self._seen.values():
            if seen.mistakes >= _FEWEST:
                yield Observation(
                    seen.location,
                    f"{seen.name} stayed in eval mode after an evaluation: {seen.mistakes} steps "
                    f"that were checked trained it in this mode, {seen.trained} in train mode.",
                    seen.first,
                    {"eval_steps": seen.mistakes, "train_steps": seen.trained},
                )


def bad_never_switched_back():
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


def bad_switched_in_a_function():
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(4)
            self.head = nn.Linear(4, 1)

        def forward(self, x):
            return self.head(self.norm(x))

    @torch.no_grad()
    def evaluate(net, x, y):
        net.eval()
        return nn.functional.mse_loss(net(x), y).item()

    def train(net, epochs):
        optimizer = torch.optim.AdamW(net.parameters())
        for epoch in range(epochs):
            x, y = torch.randn(8, 4), torch.randn(8, 1)
            loss = nn.functional.mse_loss(net(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if epoch % 2 == 0:
                print(evaluate(net, x, y))

    train(Net(), 8)


def bad_in_methods():
    import torch
    from torch import nn

    class Trainer:
        def __init__(self):
            self.model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1))
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

        def train_epoch(self):
            for _ in range(3):
                self.optimizer.zero_grad()
                self.model(torch.randn(8, 4)).pow(2).mean().backward()
                self.optimizer.step()

        def validate(self):
            self.model.eval()
            with torch.no_grad():
                return self.model(torch.randn(8, 4)).pow(2).mean().item()

        def fit(self):
            for _ in range(2):
                self.train_epoch()
                print(self.validate())

    Trainer().fit()


def bad_function_that_depends_on_the_mode():
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm, self.head = nn.LSTM(4, 8), nn.Linear(8, 1)

        def forward(self, x):
            return self.head(nn.functional.dropout(self.lstm(x)[0], 0.3, self.training))

    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(3):
        for _ in range(3):
            optimizer.zero_grad()
            net(torch.randn(5, 8, 4)).pow(2).mean().backward()
            optimizer.step()
        net.eval()
        with torch.no_grad():
            print(net(torch.randn(5, 8, 4)).pow(2).mean().item())


def bad_evaluated_before_the_first_step():
    import torch
    from torch import nn

    @torch.no_grad()
    def evaluate(net):
        net.eval()
        return sum(net(torch.randn(8, 4)).pow(2).mean().item() for _ in range(9)) / 9

    net = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(52):
        if step % 25 == 0:
            print(step, evaluate(net))
        optimizer.zero_grad()
        net(torch.randn(8, 4)).pow(2).mean().backward()
        optimizer.step()


def good_switched_in_every_epoch():
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


def good_switched_back_by_the_evaluation():
    import torch
    from torch import nn

    def evaluate(net, x):
        was_training = net.training
        net.eval()
        with torch.no_grad():
            value = net(x).mean().item()
        net.train(was_training)
        return value

    net = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(6):
        optimizer.zero_grad()
        net(torch.randn(8, 4)).pow(2).mean().backward()
        optimizer.step()
        if step % 3 == 2:
            print(evaluate(net, torch.randn(8, 4)))


def good_one_phase_after_the_other():
    import torch
    from torch import nn

    net = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for phase in ("train", "val", "train", "val"):
        if phase == "train":
            net.train()
        else:
            net.eval()
        with torch.set_grad_enabled(phase == "train"):
            loss = net(torch.randn(8, 4)).pow(2).mean()
        if phase == "train":
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def good_eval_mode_in_every_epoch():
    import torch
    from torch import nn

    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(4):
        net.eval()
        print(torch.no_grad()(net)(torch.randn(8, 4)).mean().item())
        net.eval()  # the statistics of the norm stay as they are
        for _ in range(3):
            optimizer.zero_grad()
            net(torch.randn(8, 4)).pow(2).mean().backward()
            optimizer.step()


def good_frozen_teacher():
    import torch
    from torch import nn

    teacher = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1)).eval()
    student = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
    for _ in range(3):
        x = torch.randn(8, 4)
        with torch.no_grad():
            target = teacher(x)
        optimizer.zero_grad()
        nn.functional.mse_loss(student(x), target).backward()
        optimizer.step()


def good_frozen_body_stays_in_eval_mode():
    import torch
    from torch import nn

    body, head = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout()), nn.Linear(8, 1)
    model = nn.Sequential(body, head)
    body.requires_grad_(False)
    optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
    for epoch in range(3):
        model.eval()
        with torch.no_grad():
            print(model(torch.randn(8, 4)).std())
        for _ in range(5):
            optimizer.zero_grad()
            model(torch.randn(8, 4)).pow(2).mean().backward()
            optimizer.step()


def good_attacked_in_eval_mode():
    import torch
    from torch import nn

    def attack(model, x, y):
        model.eval()
        x = x.requires_grad_()
        with torch.no_grad():
            print((model(x).argmax(1) == y).float().mean())
        (gradient,) = torch.autograd.grad(nn.functional.cross_entropy(model(x), y), x)
        return (x + 0.1 * gradient.sign()).detach()

    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(8):
        y = torch.randint(2, (8,))
        x = attack(model, torch.randn(8, 4), y)
        model.train()
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()


def good_first_model_is_the_teacher_of_a_second_one():
    import torch
    from torch import nn

    def fit(model, target_of):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model.train()
        for _ in range(6):
            x = torch.randn(8, 4)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), target_of(x)).backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            print(model(torch.randn(8, 4)).argmax(1))
        return model

    def build():
        return nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2))

    teacher = fit(build(), lambda x: (x.sum(1) > 0).long())

    @torch.no_grad()
    def predict(x):
        return teacher(x).softmax(1)

    fit(build(), predict)
