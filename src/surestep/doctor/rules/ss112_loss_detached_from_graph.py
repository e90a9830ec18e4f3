"""The loss does not depend on the model any more when its gradient is computed.

`loss.detach()`, `loss.data`, `loss.item()`, `torch.tensor(loss)` and a forward pass under
`no_grad()` all leave a number without its graph. `backward()` would raise an error, but with
`requires_grad_()` or `requires_grad=True` it runs: the gradient ends at the new tensor, and no
parameter gets one. The loss is logged as usual, and the model does not learn.

Ignore it if the gradient of the new tensor itself is wanted.

Source: https://docs.pytorch.org/docs/stable/generated/torch.Tensor.detach.html

Wrong:

    import torch

    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(torch.randn(8, 4)), torch.randn(8, 1))
        loss = torch.tensor(loss.item(), requires_grad=True)
        loss.backward()
        optimizer.step()

Right:

    import torch

    flatten, head = torch.nn.Flatten(), torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
    for _ in range(5):
        x = torch.randn(8, 2, 2, requires_grad=True)
        flat = flatten(x)
        optimizer.zero_grad()
        (head(flat).pow(2).mean() + flat.abs().mean()).backward()
        optimizer.step()
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakSet

from surestep.doctor.problem import Location, Problem, at_event
from surestep.doctor.runtime.batches import list_tensors
from surestep.doctor.runtime.origins import find_leaves, name_node
from surestep.doctor.runtime.parameters import iter_parameters, list_held
from surestep.doctor.runtime.tally import FEWEST, Tally
from surestep.doctor.runtime.windows import Window, WindowWatcher, has_gradient
from surestep.doctor.source.gradients import GradientPaths, is_forward
from surestep.doctor.source.steps import StepOrder, unscale
from surestep.doctor.source.trace import Program
from surestep.doctor.source.training import describe
from surestep.doctor.source.values import Value

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

    from surestep.doctor.watcher import Script

SEVERITY = "error"
FIX = "Compute the loss from the model's output with tensor operations, and call backward() on it."


def check(program: Program) -> Iterator[Problem]:
    """Find losses that no path connects to a model with a gradient."""
    if program.mentions("grad"):  # the gradient of a detached tensor may be wanted
        return
    for trace in program.traces:
        order = StepOrder(trace)
        if not any(action.is_step for action in order.actions):
            continue
        paths = GradientPaths(trace)
        for action in order.actions:
            if action.kind != "backward":
                continue
            breaks = paths.find_breaks(unscale(action.target))
            if breaks:
                yield at_event(
                    action.event,
                    f"`{action.event.text}` reaches no parameter: {_describe_break(breaks[0])}.",
                    detached_line=breaks[0].line,
                )


def _describe_break(value: Value) -> str:
    if is_forward(value):
        return f"`{describe(value)}` runs without gradients"
    return f"`{describe(value)}` detaches the loss from the graph"


class LossDetachedFromGraphWatcher(WindowWatcher):
    """Find losses without a graph, and optimizers whose parameters no backward pass reaches.

    A loss may also be computed in part of the output of a model that was detached.
    """

    SAMPLED = ("on_backward", "after_forward")

    def __init__(self) -> None:
        super().__init__()
        self._reached: list[Tally] = []
        self._unreached: WeakKeyDictionary[Optimizer, Tally] = WeakKeyDictionary()
        self._models: WeakSet[nn.Module] = WeakSet()
        self._bare: dict[Location, Tally] = {}  # losses without a graph
        self._outputs: dict[int, weakref.ref[Tensor]] = {}  # of models, by their memory
        self._detached: Tally = Tally()
        self._is_split = False  # a script may use the gradient of a detached output later

    def on_model(self, run: Script, model: nn.Module) -> None:
        self._models.add(model)

    def on_backward(self, run: Script, losses: Sequence[Tensor], keeps_graph: bool) -> None:
        self._is_split |= any(loss.numel() != 1 for loss in losses)
        if self._is_of_detached_output(losses[0]):
            self._detached.add(run.locate(), run.step + 1)
        is_bare = len(losses) == 1 and _is_bare(losses[0], run)
        if is_bare and run.locate() not in self._bare:
            self._bare[run.locate()] = Tally(since_step=run.step + 1, location=run.locate())
        if self._bare and (tally := self._bare.get(run.locate())):
            tally.checked += 1
            tally.mistakes += is_bare

    def after_forward(
        self, run: Script, module: nn.Module, inputs: tuple[Any, ...], output: Any
    ) -> None:
        if len(run.modules) != 1 or run.in_backward:
            return
        given = {tensor.data_ptr() for tensor in list_tensors(inputs)}
        for tensor in list_tensors(output):
            memory = tensor.data_ptr()
            if tensor.grad_fn is not None and tensor.numel() and memory not in given:
                self._outputs[memory] = weakref.ref(tensor)

    def after_step(self, run: Script, optimizer: Optimizer) -> None:
        if run.is_sampled:
            self._outputs.clear()
            super().after_step(run, optimizer)
        # Its model may be trained later only, in steps that are not sampled.
        if (
            self._unreached
            and (tally := self._unreached.get(optimizer))
            and has_gradient(optimizer)
        ):
            self._reached.append(tally)
            del self._unreached[optimizer]

    def _is_of_detached_output(self, loss: Tensor) -> bool:
        """Return whether a loss reaches a leaf that has the memory of a model's output."""
        leaves = find_leaves(loss) if self._outputs else ()
        outputs = [self._outputs.get(leaf.data_ptr(), lambda: None)() for leaf in leaves]
        return any(output is not None for output in outputs)

    def judge(self, run: Script, optimizer: Optimizer, window: Window, tally: Tally) -> None:
        backward = window.find_last("other")
        is_trained = any(p.requires_grad for p in iter_parameters(optimizer))
        if run.histories[optimizer].is_reached or has_gradient(optimizer):
            self._reached.append(tally)
        elif backward >= 0 and is_trained and not self._is_of_another(optimizer):
            tally.add(window.events[backward].location, run.step)
            self._unreached[optimizer] = tally

    def _is_of_another(self, optimizer: Optimizer) -> bool:
        """Return whether a model has a gradient, and an optimizer is of one that is not called."""
        parameters = [p for model in list(self._models) for p in model.parameters()]
        called = {id(parameter) for parameter in parameters}
        is_called = any(id(p) in called for p in iter_parameters(optimizer))
        return not is_called and any(parameter.grad is not None for parameter in parameters)

    def observe(self, run: Script) -> Iterator[Problem]:
        for tally in self._bare.values():
            if tally.is_usual and run.step >= FEWEST:
                yield tally.report(
                    f"{tally.mistakes} of {tally.checked} losses had no graph here: backward() "
                    "computed no gradient of a parameter.",
                    {"mistakes": tally.mistakes, "losses": tally.checked},
                )
        if self._detached.mistakes >= FEWEST and run.step >= FEWEST and not self._is_split:
            yield self._detached.report(
                f"In {self._detached.mistakes} losses, a part was computed from an output of a "
                "model that was detached: backward() computed no gradient of that part.",
                {"mistakes": self._detached.mistakes},
            )
        reached = set(map(id, self._reached))
        self.tallies = [
            tally
            for tally in self.tallies
            if id(tally) not in reached and tally.location not in self._bare
        ]
        yield from super().observe(run)

    def describe(self, tally: Tally) -> str:
        return (
            f"{tally.mistakes} of {tally.checked} steps had no gradient: backward() reached no "
            "parameter of the optimizer."
        )


def _is_bare(loss: Tensor, run: Script) -> bool:
    """Return whether a loss, before it was scaled, is a leaf that no optimizer has."""
    import torch

    node = loss.grad_fn
    if node is not None and name_node(node) in ("Mul", "Div"):
        inputs = [found for found, _ in node.next_functions if found is not None]
        leaf = getattr(inputs[0], "variable", None) if len(inputs) == 1 else None
    else:
        leaf = loss if node is None else None
    if leaf is None or leaf.numel() != 1 or isinstance(leaf, torch.nn.Parameter):
        return False
    return id(leaf) not in list_held(run.optimizers)
