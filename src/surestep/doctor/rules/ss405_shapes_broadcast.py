"""A loss compares every prediction with every target, because their shapes differ.

Predictions of shape (N, 1) and targets of shape (N,) are broadcast to a table of N x N pairs. The
loss is then least if the model predicts the mean of all targets for each sample. Nothing fails:
PyTorch warns for some losses, and not for those that are written by hand.

Shapes that are broadcast to the shape of one of the two, such as a constant target, are not
reported. Neither are pairs if the values of each row are ranked, such as distances to centers by
`amin(1)` or `softmax(1)`. In a run, losses of torch are seen, and differences of a target and the
output of a model as it was returned; comparisons, as for an accuracy, are not seen.

Source: https://docs.pytorch.org/docs/stable/notes/broadcasting.html
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

from surestep.doctor.problem import Problem, at_event
from surestep.doctor.runtime.graphs import attach_token, is_marked, take_marks
from surestep.doctor.runtime.tally import Tally
from surestep.doctor.runtime.values import is_tensor
from surestep.doctor.source.dimensions import Shape, shape_of
from surestep.doctor.source.losses import find_losses
from surestep.doctor.source.modules import traverse_inputs
from surestep.doctor.source.operators import find_operations
from surestep.doctor.source.rankings import is_ranked
from surestep.doctor.source.trace import Event, Program
from surestep.doctor.source.training import describe_source
from surestep.doctor.source.values import Call as CallValue
from surestep.doctor.source.values import Collection, Constant, Item, Operation, Value, walk
from surestep.doctor.watcher import Call, Location, Observation, Run, Watcher

if TYPE_CHECKING:
    from torch import Tensor, nn

SEVERITY = "error"
FIX = "Give both the same shape, such as prediction.squeeze(1) or target.unsqueeze(1)."
# The shapes are not in the source.
CHECK_SKIPS = ("bad_squeezed_targets", "bad_difference_in_criterion")
WATCH_SKIPS = ("bad_accuracy",)  # a comparison of something computed from the output
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
            yield value, Problem(value.node or event.node, event.file, text)


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
    is_grid = any(isinstance(part, CallValue) and part.name in _GRIDS for part in walk(vector))
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
        if isinstance(part, CallValue) and part.name == "unsqueeze":
            return False
        if isinstance(part, Item):
            indices = part.index.elements if isinstance(part.index, Collection) else [part.index]
            if any(isinstance(index, Constant) and index.value is None for index in indices):
                return False
        has_model = has_model or (isinstance(part, CallValue) and part.path == "()")
    return has_model


class Watch(Watcher):
    """Compare the shapes of predictions and targets in losses and differences."""

    FUNCTIONS = (*_LOSSES, "sub")
    SAMPLED = ("after_forward", "on_call", "on_backward")

    def __init__(self) -> None:
        self._all, self._in_losses = Tally(), Tally()
        self._last_step = -_MOST_STEPS  # with a difference of all pairs

    def after_forward(
        self, run: Run, module: nn.Module, inputs: tuple[Any, ...], output: Any
    ) -> None:
        """Remember the output of a model, to know it in a difference."""
        if len(run.modules) == 1 and is_tensor(output):
            attach_token(output.grad_fn, _OUTPUT)

    def on_call(self, run: Run, call: Call) -> None:
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

    def on_backward(self, run: Run, losses: Sequence[Tensor], keeps_graph: bool) -> None:
        """Count the differences in a loss, unless the values of each row are ranked."""
        if run.step - self._last_step < _MOST_STEPS:
            for seen in take_marks(losses, _DIFFERENCE, behind=_RANKING):
                self._in_losses.add_seen(*seen)

    def observe(self, run: Run) -> Iterator[Observation]:
        tally = self._in_losses if run.backwards else self._all  # of torch.autograd.grad
        for found in tally:
            if found.count >= _FEWEST:
                yield Observation(
                    found.location,
                    f"{found.reason}, in {found.count} calls.",
                    found.since_step,
                    {"calls": found.count},
                )


def _describe(run: Run, name: str, prediction: Tensor, target: Tensor) -> tuple[Location, int, str]:
    """Return where, since which step, and what is wrong."""
    shapes = f"{tuple(prediction.shape)} and {tuple(target.shape)}"
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
    return prod(shape) > max(prediction.numel(), target.numel())


def bad_column_and_vector() -> None:
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


def bad_criterion() -> None:
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    class Regressor(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.net(x)

    X = torch.randn(96, 4)
    loader = DataLoader(TensorDataset(X, X[:, 0] * 2), batch_size=32, shuffle=True)
    model, criterion = Regressor(), nn.L1Loss()
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(2):
        for inputs, targets in loader:
            opt.zero_grad()
            loss = criterion(model(inputs), targets)
            loss.backward()
            opt.step()


def bad_squeezed_targets() -> None:
    import torch
    import torch.nn as nn

    class Forecaster(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = nn.GRU(1, 8, batch_first=True)
            self.out = nn.Linear(8, 1)

        def forward(self, series: torch.Tensor) -> torch.Tensor:
            hidden, _ = self.rnn(series)
            return self.out(hidden[:, -1])

    model = Forecaster()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loss_fn = nn.SmoothL1Loss()
    for _ in range(5):
        windows = torch.randn(16, 11, 1)
        prediction = model(windows[:, :10])
        loss = loss_fn(prediction, windows[:, 10].squeeze())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def bad_accuracy():
    import torch
    import torch.nn.functional as F

    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = torch.randn(8, 4), torch.randint(0, 2, (8,)).float()
    for _ in range(3):
        logits = model(x)
        loss = F.binary_cross_entropy_with_logits(logits.squeeze(1), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(((logits > 0) == y).float().mean())


def bad_difference():
    import torch

    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x = torch.randn(8, 4)
    y = x.sum(dim=1)
    for _ in range(3):
        loss = ((model(x) - y) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def good_same_shape() -> None:
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


def good_one_target_for_all() -> None:
    import torch
    from torch.nn.functional import mse_loss

    critic = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(critic.parameters(), lr=0.05)
    real = torch.tensor(1.0)
    for _ in range(10):
        loss = mse_loss(critic(torch.randn(16, 4)), real)  # least squares, as in LSGAN
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def good_all_pairs() -> None:
    import torch
    from torch.nn.functional import l1_loss

    encoder = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(encoder.parameters(), lr=0.05)
    for _ in range(10):
        codes, others = encoder(torch.randn(8, 4)), encoder(torch.randn(8, 4))
        loss = l1_loss(codes[:, None, :], others[None, :, :])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def good_both_columns():
    import torch
    import torch.nn.functional as F
    from torch.utils.data import DataLoader, TensorDataset

    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = TensorDataset(torch.randn(32, 4), torch.randn(32).view(-1, 1))
    for x, y in DataLoader(data, batch_size=8, shuffle=True):
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()


def good_all_pairs_on_purpose():
    import torch

    model = torch.nn.Linear(4, 1)
    x, y = torch.randn(8, 4), torch.randn(8)
    scores = model(x).squeeze(1)
    order = y[:, None] > y
    loss = torch.relu(1 - (scores.unsqueeze(1) - scores))[order].mean()
    loss.backward()
    print(model.weight.grad)


def good_targets_of_unknown_shape():
    import torch
    import torch.nn.functional as F

    def train(model, x, y):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()

    train(torch.nn.Linear(4, 1), *(torch.randn(8, size) for size in (4, 1)))


def bad_difference_in_criterion() -> None:
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    class LogCosh(nn.Module):
        def forward(self, predicted: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
            return torch.log(torch.cosh(wanted - predicted)).mean()

    X = torch.randn(48, 4)
    loader = DataLoader(TensorDataset(X, X.sum(1, keepdim=True)), batch_size=16, shuffle=True)
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 1), nn.Flatten(0))
    optimizer, criterion = torch.optim.Adam(model.parameters()), LogCosh()
    for _ in range(2):
        for inputs, targets in loader:
            optimizer.zero_grad()
            criterion(model(inputs), targets).backward()
            optimizer.step()


def good_differences() -> None:
    import torch

    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x = torch.randn(8, 4)
    rewards = torch.randn(8, 8)  # as many samples of each row as rows
    for _ in range(4):
        values = model(x)
        advantages = rewards - values  # a baseline of each row
        loss = advantages.pow(2).mean() + (values - x.sum(1, keepdim=True)).abs().mean()
        loss = loss + (values - values.detach().T).relu().mean()  # all pairs
        pairs = values.squeeze(1).unsqueeze(0) - x.sum(1).unsqueeze(1)
        optimizer.zero_grad()
        (loss + pairs.abs().mean()).backward()
        optimizer.step()


def good_mean_is_subtracted():
    import torch

    model = torch.nn.Linear(4, 1)
    output = model(torch.randn(8, 4))
    (output - output.mean(dim=0)).pow(2).mean().backward()


def bad_probability_and_vector() -> None:
    import torch

    torch.manual_seed(0)
    x = torch.randn(32, 3)
    y = (x[:, 0] > 0).float()
    net = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    opt = torch.optim.Adam(net.parameters())
    for _ in range(5):
        probability = torch.sigmoid(net(x.bfloat16().float()))
        brier = (y - probability).square().mean()
        opt.zero_grad()
        brier.backward()
        opt.step()


def good_distances_to_centers() -> None:
    import torch

    net, score = torch.nn.Linear(4, 2), torch.nn.Linear(4, 1)
    centers, levels = torch.randn(5, 2), torch.randn(16)
    opt = torch.optim.SGD([*net.parameters(), *score.parameters()], lr=0.1)
    for _ in range(5):
        x = torch.randn(16, 4)
        distances = (torch.tanh(net(x)).unsqueeze(1) - centers).norm(dim=2)
        to_levels = (score(x) - levels).abs()
        opt.zero_grad()
        (distances.amin(1) + to_levels.amin(1)).mean().backward()
        opt.step()


def good_heat_maps() -> None:
    import torch

    net, grid = torch.nn.Linear(4, 1), torch.arange(65.0) - 1
    opt = torch.optim.Adam(net.parameters())
    for _ in range(5):
        x = torch.randn(16, 4)
        center = torch.sigmoid(net(x)) * 64
        heat = torch.exp(-((center - grid) ** 2) / 8)
        opt.zero_grad()
        (heat - torch.rand(16, 65)).pow(2).mean().backward()
        opt.step()
