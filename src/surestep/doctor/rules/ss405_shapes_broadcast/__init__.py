"""A loss compares every prediction with every target, because their shapes differ.

Predictions of shape (N, 1) and targets of shape (N,) are broadcast to a table of N x N pairs. The
loss is then least if the model predicts the mean of all targets for each sample. Nothing fails:
PyTorch warns for some losses, and not for those that are written by hand.

Shapes that are broadcast to the shape of one of the two, such as a constant target, are not
reported. Neither are pairs if the values of each row are ranked, such as distances to centers by
`amin(1)` or `softmax(1)`. In a run, losses of torch are seen, and differences of a target and the
output of a model as it was returned; comparisons, as for an accuracy, are not seen.

Source: https://docs.pytorch.org/docs/stable/notes/broadcasting.html

Wrong:

    import torch
    from torch.nn.functional import mse_loss

    x = torch.randn(64, 4)
    y = x.sum(1)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(10):
        loss = mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

Right:

    import torch
    from torch.nn.functional import mse_loss

    x = torch.randn(64, 4)
    y = x.sum(1)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(10):
        loss = mse_loss(model(x).squeeze(1), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

from surestep.doctor.problem import Location, Problem, at_event, at_node
from surestep.doctor.rules.ss405_shapes_broadcast.rankings import is_ranked
from surestep.doctor.runtime.graphs import attach_token, is_marked, take_marks
from surestep.doctor.runtime.tally import LineTally
from surestep.doctor.runtime.values import is_tensor
from surestep.doctor.source.dimensions import Shape, shape_of
from surestep.doctor.source.losses import find_losses
from surestep.doctor.source.modules import traverse_inputs
from surestep.doctor.source.nodes import describe_source
from surestep.doctor.source.operators import find_operations
from surestep.doctor.source.trace import Event, Program
from surestep.doctor.source.values import Call, Collection, Constant, Item, Operation, Value, walk
from surestep.doctor.watcher import Script, TorchCall, Watcher

if TYPE_CHECKING:
    from torch import Tensor, nn

SEVERITY = "error"
FIX = "Give both the same shape, such as prediction.squeeze(1) or target.unsqueeze(1)."
# The shapes are not in the source.
_LOSSES = ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss")
_COMPARISONS = ("-", "==", "!=")
_GRIDS = ("arange", "linspace")
_FEWEST = 2  # calls
_MOST_STEPS = 4  # between a difference and the backward pass of its loss, of several optimizers
_OUTPUT, _DIFFERENCE = "SS405 output", "SS405 difference"  # marks in the graph
# Operations on each value; `view` and `unsqueeze` are how all pairs are compared on purpose.
_ELEMENTWISE = frozenset(
    f"{name}Backward"
    for name in (
        *("Sigmoid", "Tanh", "Relu", "Softplus", "Exp", "Log", "Clamp", "Squeeze", "ToCopy"),
        *("Mul", "Div", "Add", "Sub", "Neg"),
    )
)
_RANKING = {"MedianBackward1"} | {  # of the values of a row; MinBackward1 is of the least of all
    f"{name}Backward0"
    for name in "Softmax LogSoftmax Logsumexp Sort Topk Amin Amax Min Max Kthvalue Gather".split()
}


def check(program: Program) -> Iterator[Problem]:
    """Find losses, differences and comparisons of a column and a vector."""
    for trace in program.traces:
        for loss in find_losses(trace, *_LOSSES):
            text = _describe_pair(loss.input, loss.target, *loss.written)
            if text:
                yield at_event(loss.event, text)
        for event in trace.events:
            for operation, problem in _check_operations(event):
                if not is_ranked(operation, trace):
                    yield problem


def _check_operations(event: Event) -> Iterator[tuple[Operation, Problem]]:
    for value in find_operations(event.value):
        if value.operator not in _COMPARISONS or len(value.operands) != 2:
            continue
        left, right = value.operands
        text = _describe_pair(left, right, *_written(value))
        column, vector = (left, right) if _is_column(shape_of(left)) else (right, left)
        if text and _may_be_targets(vector, column) and _is_prediction(column):
            yield value, at_node(value.node or event.node, event.file, text)


def _written(value: Operation) -> tuple[ast.AST | None, ast.AST | None]:
    match value.node:
        case ast.BinOp(left=left, right=right) | ast.Compare(left=left, comparators=[right]):
            return left, right
    return value.operands[0].node, value.operands[1].node


def _describe_pair(
    left: Value, right: Value, left_node: ast.AST | None, right_node: ast.AST | None
) -> str:
    """Return what is wrong if one is a column and the other a vector; "" otherwise."""
    shapes = shape_of(left), shape_of(right)
    for column, vector in (shapes, shapes[::-1]):
        if _is_column(column) and _is_vector(vector):
            first, second = (_show(shape) for shape in shapes if shape is not None)
            return (
                f"`{describe_source(left_node)}` has shape {first} and "
                f"`{describe_source(right_node)}` {second}: all pairs are compared."
            )
    return ""


def _may_be_targets(vector: Value, column: Value) -> bool:
    """Return whether a vector may have a value for each of a column: bins or centers have not."""
    lengths = {shape[0] for shape in (shape_of(vector), shape_of(column)) if shape}
    is_grid = any(isinstance(part, Call) and part.name in _GRIDS for part in walk(vector))
    return not is_grid and (None in lengths or len(lengths) == 1)


def _is_column(shape: Shape | None) -> bool:
    return shape is not None and len(shape) == 2 and shape[1] == 1 and shape[0] != 1


def _is_vector(shape: Shape | None) -> bool:
    return shape is not None and len(shape) == 1 and shape[0] != 1


def _show(shape: Shape) -> str:
    sizes = ", ".join("N" if size is None else str(size) for size in shape)
    return f"({sizes},)" if len(shape) == 1 else f"({sizes})"


def _is_prediction(value: Value) -> bool:
    """Return whether a column comes from a model, and was not made for broadcasting."""
    has_model = False
    for part in traverse_inputs(value, 60):
        if isinstance(part, Call) and part.name == "unsqueeze":
            return False
        if isinstance(part, Item):
            indices = part.index.elements if isinstance(part.index, Collection) else [part.index]
            if any(isinstance(index, Constant) and index.value is None for index in indices):
                return False
        has_model = has_model or (isinstance(part, Call) and part.path == "()")
    return has_model


class ShapesBroadcastWatcher(Watcher):
    """Compare the shapes of predictions and targets in losses and differences."""

    FUNCTIONS = (*_LOSSES, "sub")
    SAMPLED = ("after_forward", "on_call", "on_backward")

    def __init__(self) -> None:
        self._all, self._in_losses = LineTally(), LineTally()
        self._last_step = -_MOST_STEPS  # with a difference of all pairs

    def after_forward(
        self, run: Script, module: nn.Module, inputs: tuple[Any, ...], output: Any
    ) -> None:
        """Remember the output of a model, to know it in a difference."""
        if len(run.modules) == 1 and is_tensor(output):
            attach_token(output.grad_fn, _OUTPUT)

    def on_call(self, run: Script, call: TorchCall) -> None:
        if call.name != "sub":
            if _is_table(call["input"], call["target"]):
                seen = _describe(run, call.name, call["input"], call["target"])
                self._all.add_seen(*seen)
                self._in_losses.add_seen(*seen)
            return
        left, right = call["input"], call["other"]
        for prediction, target in ((left, right), (right, left)):
            node = getattr(call.result, "grad_fn", None)
            if node and _is_output_and_target(prediction, target) and _is_table(prediction, target):
                seen = _describe(run, "A difference", prediction, target)
                node.metadata[_DIFFERENCE] = seen
                self._all.add_seen(*seen)
                self._last_step = run.step

    def on_backward(self, run: Script, losses: Sequence[Tensor], keeps_graph: bool) -> None:
        """Count the differences in a loss, unless the values of each row are ranked."""
        if run.step - self._last_step < _MOST_STEPS:
            for seen in take_marks(losses, _DIFFERENCE, behind=_RANKING):
                self._in_losses.add_seen(*seen)

    def observe(self, run: Script) -> Iterator[Problem]:
        tally = self._in_losses if run.backwards else self._all  # of torch.autograd.grad
        for found in tally:
            if found.mistakes >= _FEWEST:
                yield found.report(
                    f"{found.reason}, in {found.mistakes} calls.", {"calls": found.mistakes}
                )


def _describe(run: Script, name: str, output: Tensor, target: Tensor) -> tuple[Location, int, str]:
    """Return where, since which step, and what is wrong."""
    shapes = f"{tuple(output.shape)} and {tuple(target.shape)}"
    reason = f"{name} of shapes {shapes} compared each prediction with all targets"
    return run.locate(), run.step + 1, reason


def _is_output_and_target(prediction: Any, target: Any) -> bool:
    if not is_marked(getattr(prediction, "grad_fn", None), _OUTPUT, _ELEMENTWISE):
        return False
    is_target = hasattr(target, "grad_fn") and not target.requires_grad
    # Centers or bins on the other side are usually not as many as the predictions.
    return is_target and prediction.numel() == target.numel()


def _is_table(prediction: Tensor, target: Tensor) -> bool:
    """Return whether values are paired that do not belong together, and not only repeated."""
    import torch

    if prediction.dim() == target.dim():
        return False  # as in a deliberate comparison of all pairs
    try:
        shape = torch.broadcast_shapes(prediction.shape, target.shape)
    except RuntimeError:
        return False
    return bool(prod(shape) > max(prediction.numel(), target.numel()))
