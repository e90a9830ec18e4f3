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
from surestep.doctor.runtime.graphs import attach_token, is_marked, take_marks
from surestep.doctor.runtime.tally import LineTally
from surestep.doctor.runtime.tensors import is_tensor
from surestep.doctor.source.dimensions import dim_of, shape_of
from surestep.doctor.source.losses import find_losses
from surestep.doctor.source.modules import traverse_inputs
from surestep.doctor.source.nodes import describe_source
from surestep.doctor.source.operators import find_operations, is_none
from surestep.doctor.source.trace import Program, Trace
from surestep.doctor.source.training import find_actions, is_function, tensor_of
from surestep.doctor.source.values import Call, Collection, Constant, Item, Operation, Value, walk
from surestep.doctor.watcher import Script, TorchCall, Watcher

if TYPE_CHECKING:
    from torch import Tensor, nn

SEVERITY = "error"
FIX = "Give both the same shape, such as prediction.squeeze(1) or target.unsqueeze(1)."
# The shapes are not in the source.
_LOSSES = ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss")
_GRIDS = ("arange", "linspace")
_MOST_PARTS = 500  # of a loss, or of what is ranked
_RANKS = (
    *"softmax log_softmax softmin gumbel_softmax logsumexp cross_entropy".split(),
    *"Softmax LogSoftmax Softmin CrossEntropyLoss".split(),
)
_RANKS_A_ROW = (  # if they are given a dimension
    "min max amin amax argmin argmax median kthvalue quantile sort argsort topk".split()
)
_ENDS = frozenset("detach item tolist numpy backward".split())  # of what a gradient flows through
_ENDS_OF_ROWS = _ENDS | frozenset("flatten ravel view reshape".split())
_FEWEST = 2  # calls
_MOST_STEPS = 4  # between a difference and the backward pass of its loss, of several optimizers
_OUTPUT, _DIFFERENCE = "SS405 output", "SS405 difference"  # marks in the graph
# Operations on each value; `view` and `unsqueeze` are how all pairs are compared on purpose.
_ELEMENTWISE = {
    f"{op}Backward"
    for op in "Sigmoid Tanh Relu Softplus Exp Log Clamp Squeeze ToCopy Mul Div Add Sub Neg".split()
}
_RANKING = {"MedianBackward1"} | {  # of the values of a row; MinBackward1 is of the least of all
    f"{op}Backward0"
    for op in "Softmax LogSoftmax Logsumexp Sort Topk Amin Amax Min Max Kthvalue Gather".split()
}


def check(program: Program) -> Iterator[Problem]:
    """Find losses, differences and comparisons of a column and a vector."""
    for trace in program.traces:
        for loss in find_losses(trace, *_LOSSES):
            if _find_pair(loss.input, loss.target):
                yield at_event(loss.event, _describe_pair((loss.input, loss.target), loss.written))
        for event in trace.events:
            for value in find_operations(event.value):
                is_comparison = value.operator in ("-", "==", "!=") and len(value.operands) == 2
                pair = _find_pair(*value.operands) if is_comparison else None
                if pair and _is_prediction_and_target(*pair) and not _is_ranked(value, trace):
                    text = _describe_pair(value.operands, _written(value))
                    yield at_node(value.node or event.node, event.file, text)


def _find_pair(left: Value, right: Value) -> tuple[Value, Value] | None:
    """Return a column and a vector that are broadcast to a table; None for other values."""
    match shape_of(left), shape_of(right):
        case (rows, 1), (length,) if rows != 1 != length:
            return left, right
        case (length,), (rows, 1) if rows != 1 != length:
            return right, left
    return None


def _describe_pair(values: tuple[Value, ...], nodes: tuple[ast.AST | None, ...]) -> str:
    first, second = (str(shape_of(value)).replace("None", "N") for value in values)
    left, right = map(describe_source, nodes)
    return f"`{left}` has shape {first} and `{right}` {second}: all pairs are compared."


def _written(value: Operation) -> tuple[ast.AST | None, ...]:
    match value.node:
        case ast.BinOp(left=left, right=right) | ast.Compare(left=left, comparators=[right]):
            return left, right
    return tuple(operand.node for operand in value.operands)


def _is_prediction_and_target(column: Value, vector: Value) -> bool:
    """Return whether a column comes from a model, and a vector may have a target for each of it.

    Bins or centers have not, and a column may be made for broadcasting.
    """
    lengths = {shape[0] for value in (column, vector) if (shape := shape_of(value))} - {None}
    is_grid = any(isinstance(part, Call) and part.name in _GRIDS for part in walk(vector))
    parts = list(traverse_inputs(column, 60))
    has_model = any(isinstance(part, Call) and part.path == "()" for part in parts)
    return has_model and not is_grid and len(lengths) < 2 and not any(map(_adds_dimension, parts))


def _adds_dimension(value: Value) -> bool:
    indices = getattr(value.index, "elements", [value.index]) if isinstance(value, Item) else []
    return any(map(is_none, indices)) or (isinstance(value, Call) and value.name == "unsqueeze")


def _is_ranked(table: Value, trace: Trace) -> bool:
    """Return whether the values of a row are ranked, such as the distances to centers.

    This is so if a loss contains a ranking of the table, or if no loss contains the table, and
    something else ranks it.
    """
    losses = [action.target for action in find_actions(trace) if action.kind == "backward"]
    contents = [list(_traverse(loss, _ENDS)) for loss in losses if loss is not None]
    parts = [part for loss in contents if table in loss for part in loss]
    calls = parts or [call for _, call in trace.calls]
    return any(isinstance(call, Call) and _ranks(call, table) for call in calls)


def _traverse(value: Value, ends: frozenset[str]) -> Iterator[Value]:
    return walk(value, _MOST_PARTS, stop_at=lambda part: getattr(part, "name", "") in ends)


def _ranks(call: Call, table: Value) -> bool:
    """Return whether a call ranks the values in each row of a table."""
    ranked = tensor_of(call)
    is_of_rows = is_function(call, *_RANKS_A_ROW) and _has_dimension(call)
    is_ranking = is_of_rows or is_function(call, *_RANKS)
    return is_ranking and ranked is not None and table in _traverse(ranked, _ENDS_OF_ROWS)


def _has_dimension(call: Call) -> bool:
    """Return whether a call is given a dimension, which is a number, and not a second tensor."""
    match dim_of(call, int(call.name in ("kthvalue", "quantile", "topk"))):
        case None:
            return call.name in ("sort", "argsort", "topk", "kthvalue")
        case Operation(operator="-", operands=(_,)) | Constant() | Collection():
            return True
    return False


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
        node = getattr(call.result, "grad_fn", None)
        for pair in ((call["input"], call["other"]), (call["other"], call["input"])):
            if node and _is_output_and_target(*pair) and _is_table(*pair):
                node.metadata[_DIFFERENCE] = seen = _describe(run, "A difference", *pair)
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
                message = f"{found.reason}, in {found.mistakes} calls."
                yield found.report(message, {"calls": found.mistakes})


def _describe(run: Script, name: str, output: Tensor, target: Tensor) -> tuple[Location, int, str]:
    """Return where, since which step, and what is wrong."""
    shapes = f"{tuple(output.shape)} and {tuple(target.shape)}"
    reason = f"{name} of shapes {shapes} compared each prediction with all targets"
    return run.locate(), run.step + 1, reason


def _is_output_and_target(prediction: Any, target: Any) -> bool:
    is_output = is_marked(getattr(prediction, "grad_fn", None), _OUTPUT, _ELEMENTWISE)
    is_target = hasattr(target, "grad_fn") and not target.requires_grad
    # Centers or bins on the other side are usually not as many as the predictions.
    return is_output and is_target and prediction.numel() == target.numel()


def _is_table(prediction: Tensor, target: Tensor) -> bool:
    """Return whether values are paired that do not belong together, and not only repeated."""
    import torch

    if prediction.dim() == target.dim():
        return False  # as in a deliberate comparison of all pairs
    pairs = prod(torch.broadcast_shapes(prediction.shape, target.shape))
    return bool(pairs > max(prediction.numel(), target.numel()))
