"""A model is evaluated without `torch.no_grad()`.

`eval()` switches dropout and BatchNorm, not the recording of operations. So each forward pass keeps
all activations for a backward pass that never happens. The result is right, but the evaluation
needs several times the memory and more time.

Ignore it if gradients are wanted later. A script that asks for gradients in the evaluation, such as
for saliency maps or adversarial examples, is not reported.

Source: https://docs.pytorch.org/docs/stable/notes/autograd.html#locally-disable-grad-doc

Wrong:

    import torch
    from torch import nn

    x, y, x_val, y_val = (torch.randn(16, width) for width in (4, 1, 4, 1))
    model, criterion = nn.Linear(4, 1), nn.MSELoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(6):
        loss = criterion(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(loss.item(), criterion(model(x_val), y_val).item())

Right:

    import torch
    from torch import nn

    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(6):
        output, y = model(torch.randn(8, 4)), torch.randn(8, 1)
        optimizer.zero_grad()
        nn.functional.mse_loss(output, y).backward()
        optimizer.step()
        print(nn.functional.l1_loss(output, y).item())
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from surestep.doctor.problem import Location, Problem, at_event
from surestep.doctor.runtime.batches import list_tensors
from surestep.doctor.runtime.evaluations import EvaluationWatcher
from surestep.doctor.runtime.graphs import Token, attach_token, wants_gradients
from surestep.doctor.runtime.tally import Tally
from surestep.doctor.source.evaluation import (
    describe_caller,
    find_forwards,
    is_frozen,
    is_measured,
    is_validation,
    name_unknown_caller,
    uses_graph,
)
from surestep.doctor.source.modes import find_switch
from surestep.doctor.source.modules import is_used_as_module
from surestep.doctor.source.trace import Program
from surestep.doctor.source.training import describe, is_model, is_without_grad, strip
from surestep.doctor.watcher import Script, TorchCall

if TYPE_CHECKING:
    from torch import Tensor, nn

SEVERITY = "warning"
FIX = "Evaluate inside `with torch.no_grad():`."
_FEWEST = 3  # graphs that were built for nothing
_MOST = 64  # graphs that are remembered
_LOSSES = ("cross_entropy", "nll_loss", "binary_cross_entropy_with_logits", "mse_loss", "l1_loss")


def check(program: Program) -> Iterator[Problem]:
    """Find loops that measure a model in eval mode, or on held-out data, and record a graph."""
    for trace in program.traces:
        for event, output in find_forwards(trace):
            model = strip(output.receiver)
            if event.loop is None or is_without_grad(event) or model is None:
                continue
            if not is_model(model) and not is_used_as_module(trace, model):
                continue
            switch = find_switch(trace, event, model, is_training=False)
            is_switched = switch is not None and event.loop not in switch.event.loops
            if not is_switched and not is_validation(trace, event, output):
                continue
            if uses_graph(trace, event) or not is_measured(trace, event, output):
                continue
            if is_frozen(trace, model):
                continue
            caller = name_unknown_caller(trace, model)
            yield at_event(
                event,
                f"`{describe(output)}` keeps all activations: nothing turns gradients off"
                f"{describe_caller(event)}.",
                assumed=f"What calls `{caller}` does not turn them off." if caller else "",
            )


class _Graph(NamedTuple):
    """The graph of a forward pass in eval mode.

    Attributes:
        token: gone with the graph.
        gradients: that were asked for before.
        step: after which it was built.
    """

    token: weakref.ref[Token]
    gradients: int
    step: int


class _Pass:
    """A forward pass of a model with a graph.

    Attributes:
        model: the class of the model.
        step: after which it was.
        outputs: of the model.
        has_gradient: whether a gradient reached one of them.
    """

    def __init__(self, model: str, step: int, outputs: list[Tensor]) -> None:
        self.model, self.step = model, step
        self.outputs = [weakref.ref(output) for output in outputs]
        self.has_gradient = False
        for output in outputs:
            if output.requires_grad:
                output.register_hook(self._see)

    def _see(self, _: Tensor) -> None:
        self.has_gradient = True

    def made(self, tensor: Tensor) -> bool:
        """Return whether a tensor is one of its outputs."""
        return any(output() is tensor for output in self.outputs)


class EvaluationBuildsGraphWatcher(EvaluationWatcher):
    """Find graphs of an evaluation that are gone, and that no backward pass could use.

    Outputs in eval mode are of an evaluation, and so are those in a pass over a DataLoader in which
    nothing is trained, and those of a line with a loss that never gets a gradient.
    """

    FUNCTIONS = ("grad", *_LOSSES)

    def __init__(self) -> None:
        super().__init__()
        self._graphs: list[_Graph] = []
        self._gradients = 0  # backward passes, and calls of torch.autograd.grad
        self._steps: list[int] = []  # after which graphs were built for nothing
        self._first = Tally()
        self._name = ""
        self._pass: _Pass | None = None  # the last one
        self._passes: dict[Location, list[_Pass]] = {}  # by the line of their losses

    def on_backward(self, run: Script, losses: Any, keeps_graph: bool) -> None:
        self._count()
        self._gradients += 1

    def on_call(self, run: Script, call: TorchCall) -> None:
        if call.name == "grad":
            self.on_backward(run, (), keeps_graph=False)
            return
        is_loss = run.is_sampled and not run.in_backward and call.result.requires_grad
        if is_loss and self._pass is not None and self._pass.made(call["input"]):
            passes = self._passes.setdefault(run.locate(), [])
            if len(passes) < _MOST:
                passes.append(self._pass)

    def after_forward(
        self, run: Script, module: nn.Module, inputs: tuple[Any, ...], output: Any
    ) -> None:
        if len(run.modules) != 1 or run.in_backward:
            return
        found = next((t for t in list_tensors(output) if t.grad_fn is not None), None)
        self._pass = None
        if found is None or wants_gradients(inputs):
            return
        if run.is_sampled:
            self._pass = _Pass(type(module).__name__, run.step, list_tensors(output))
        self.count_call(run, type(module).__name__, list_tensors(output))
        if module.training or len(self._graphs) >= _MOST or len(self._steps) >= _MOST:
            return
        self._count()
        token = attach_token(found.grad_fn, "SS403")
        if token is not None:
            self._graphs.append(_Graph(token, self._gradients, run.step))
        self._first.add_here(run)
        self._name = self._name or type(module).__name__

    def _count(self) -> None:
        """Count the graphs that are gone without a backward pass since."""
        if not self._graphs:
            return
        unused = [graph for graph in self._graphs if graph.gradients == self._gradients]
        self._steps += [graph.step for graph in unused if graph.token() is None]
        self._graphs = [graph for graph in unused if graph.token() is not None]

    def observe(self, run: Script) -> Iterator[Problem]:
        self._count()
        evaluations = self.list_evaluations(run)
        if len(self._steps) >= _FEWEST or len(set(self._steps)) > 1:
            yield self._first.report(
                f"{self._name} built {len(self._steps)} graphs in eval mode, for which no "
                "backward pass was called.",
                {"graphs": len(self._steps)},
            )
        elif len(evaluations) > 1:
            yield evaluations[0].report(
                f"{evaluations[0].model} built graphs in {len(evaluations)} passes over a "
                "DataLoader in which no backward pass was called.",
                {"passes": len(evaluations)},
            )
        else:
            yield from self._observe_losses()

    def _observe_losses(self) -> Iterator[Problem]:
        trained = {at for at, passes in self._passes.items() if any(p.has_gradient for p in passes)}
        # If nothing is trained, it is SS106 or SS112.
        for location, passes in self._passes.items() if trained else ():
            is_usual = len(passes) >= _FEWEST and len({seen.step for seen in passes}) > 1
            if is_usual and location not in trained:
                yield Problem(
                    f"{passes[0].model} built {len(passes)} graphs for losses whose gradient "
                    "nothing computed.",
                    {"graphs": len(passes)},
                    location=location,
                    since_step=passes[0].step + 1,
                )
