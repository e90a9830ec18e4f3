"""A softmax normalises over a dimension that is not that of the classes.

Over dimension 0, the probabilities of each class sum to 1 over the samples of the batch, so they
depend on which samples are in it. Without `dim`, PyTorch takes dimension 0 for tensors of 1 or 3
dimensions, and dimension 1 for others. Nothing fails: the values are between 0 and 1 either way.

A softmax over dimension 0 is reported only if its result is used as the prediction of a batch: in a
loss, or by an argmax over the classes. Weights over samples, as in attention pooling, are right.

Source: https://docs.pytorch.org/docs/stable/generated/torch.nn.Softmax.html

Wrong:

    import torch
    import torch.nn.functional as F

    model = torch.nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(10):
        x, y = torch.randn(8, 4), torch.randint(3, (8,))
        output = F.log_softmax(model(x), dim=0)
        loss = F.nll_loss(output, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

Right:

    import torch
    import torch.nn.functional as F

    model = torch.nn.Linear(4, 3)
    x, y = torch.randn(8, 4), torch.randint(3, (8,))
    log_probabilities = F.log_softmax(model(x), dim=1)
    F.nll_loss(log_probabilities, y).backward()
    prediction = log_probabilities.softmax(dim=-1).argmax(dim=-1)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING
from weakref import ref

from surestep.doctor.problem import Problem, at_event
from surestep.doctor.runtime.origins import find_origin, name_node, name_origin, read_dim
from surestep.doctor.runtime.tally import LineTally
from surestep.doctor.source.dimensions import KEEPING_MODULES, KEEPS_SHAPE, shape_of
from surestep.doctor.source.loaders import gives_batches
from surestep.doctor.source.losses import find_losses
from surestep.doctor.source.outputs import Origin, Outputs
from surestep.doctor.source.trace import Event, Program
from surestep.doctor.source.training import describe, is_function, option_of, options_of, tensor_of
from surestep.doctor.source.values import Call, Constant, Element, Item, Operation, Unknown, Value
from surestep.doctor.watcher import Script, TorchCall, Watcher

if TYPE_CHECKING:
    from torch import Tensor

SEVERITY = "warning"
FIX = "Give softmax the dimension of the classes: dim=-1, or dim=1 for images (N, C, H, W)."
_OVER_BATCH = "{} normalizes over dimension 0, the samples of the batch"
_SAMPLES = 8  # of a batch whose probabilities are summed
_MOST_VALUES = 1_000_000
_ROUNDING = 1e-2  # also of 16 bits
_BATCH = "0, over the samples of the batch"
_SOFTMAX = ("softmax", "log_softmax")
_FUNCTIONS = ("torch.nn.functional.softmax", "torch.nn.functional.log_softmax")
_MODULES = ("torch.nn.Softmax", "torch.nn.LogSoftmax")
_MAX_DEPTH = 20
_KEEPS_RANK = KEEPS_SHAPE | KEEPING_MODULES | {"Linear", "BatchNorm2d", "Sequential"}
_LOSSES = ("nll_loss", "binary_cross_entropy", "mse_loss", "kl_div", "cross_entropy")


def check(program: Program) -> Iterator[Problem]:
    """Find softmax without a dimension, and predictions that are normalised over a wrong one."""
    outputs = Outputs(program)
    for trace in program.traces:
        for event, call in trace.calls:
            if _is_implicit(call):
                yield at_event(
                    event,
                    f"`{event.text}` has no `dim`: the dimension depends on the number "
                    "of dimensions of its input.",
                )
            if is_function(call, "argmax", "max") and (dim := _dim_of(call)) in (1, -1):
                origin = outputs.all_are(tensor_of(call), *_SOFTMAX)
                if origin is not None and _is_over_batch(origin, is_batch=dim == 1):
                    yield _report(event, origin, _BATCH)
        for loss in find_losses(trace, *_LOSSES):
            compared = (loss.input, loss.target) if loss.name == "kl_div" else (loss.input,)
            for origin in (outputs.all_are(value, *_SOFTMAX) for value in compared):
                if origin is not None and _is_over_batch(origin):
                    yield _report(loss.event, origin, _BATCH)
                elif origin is not None and loss.name == "nll_loss" and _is_swapped(origin):
                    yield _report(loss.event, origin, "1, which is not that of the classes here")


def _report(event: Event, origin: Origin, dim: str) -> Problem:
    return at_event(
        event,
        f"`{event.text}` uses `{describe(origin.value)}`, which normalises over dimension {dim}.",
        softmax_line=origin.line,
    )


def _is_implicit(call: Call) -> bool:
    is_softmax = call.path in (*_FUNCTIONS, *_MODULES)
    return is_softmax and not call.has_unknown_arguments and _dim_of(call) is None


def _dim_of(call: Call | None, name: str = "dim") -> object:
    """Return the dimension of a function, a method or a module; None if it has none."""
    if call is None:
        return None
    dim = call.argument(0, name) if call.name[:1].isupper() else option_of(call, name)
    return dim.value if isinstance(dim, Constant) else dim


def _is_over_batch(origin: Origin, *, is_batch: bool = False) -> bool:
    """Return whether a softmax is over dimension 0 of a tensor that has a batch.

    Args:
        origin: the softmax.
        is_batch: whether its tensor is known to have two dimensions.
    """
    is_over_first = _dim_of(origin.settings) == 0 and not origin.reshapes
    return is_over_first and (is_batch or _has_batch(origin.tensor))


def _is_swapped(origin: Origin) -> bool:
    """Return whether dimension 1 was normalised, and then swapped with dimension 2."""
    match origin.reshapes:
        case (Call(path=".transpose" | ".permute") as swap,) if _dim_of(origin.settings) == 1:
            dims = [arg.value for arg in swap.args if isinstance(arg, Constant)]
            return dims in ([1, 2], [2, 1], [0, 2, 1])
    return False


def _has_batch(value: Value | None, depth: int = 0) -> bool:
    """Return whether a tensor certainly has two dimensions or more, the first for the samples."""
    options = options_of(value) if depth < _MAX_DEPTH else ()
    return bool(options) and all(_one_has_batch(option, depth + 1) for option in options)


def _one_has_batch(value: Value, depth: int) -> bool:
    if (shape := shape_of(value)) is not None:
        return len(shape) > 1
    match value:
        case Element(of=of) | Item(base=Element(of=of)):
            is_named = isinstance(of, Unknown) and "loader" in of.name.lower()
            return is_named or gives_batches(of)
        case Operation(operator="+" | "-" | "*" | "/", operands=operands):
            return any(_has_batch(operand, depth) for operand in operands)
        case Call(result=Value() as result):
            return _has_batch(result, depth)
        case Call(path="()"):
            made = options_of(value.receiver)
            names = {module.name if isinstance(module, Call) else "" for module in made}
            return names <= _KEEPS_RANK and _has_batch(value.argument(0, "input"), depth)
        case Call(name="flatten"):
            return _dim_of(value, "start_dim") == 1
        case Call():
            return value.name in _KEEPS_RANK and _has_batch(tensor_of(value), depth)
    return False


class SoftmaxOverWrongDimensionWatcher(Watcher):
    """Check over which dimension predictions sum to 1."""

    FUNCTIONS = (*_SOFTMAX, "argmax", *_LOSSES)
    SAMPLED = ("on_call",)

    def __init__(self) -> None:
        self._tally = LineTally()
        # Without a graph, only the last softmax itself shows that its result is used.
        self._over_batch: Callable[[], object] = lambda: None

    def on_call(self, run: Script, call: TorchCall) -> None:
        if call.name in _SOFTMAX:
            if call["dim"] is None:
                self._tally.add(run, f"{call.name} had no `dim`: its input decides")
            elif call["dim"] in (0, -call.result.dim()):
                if call.result.dim() == 2:
                    self._over_batch = ref(call.result)
                elif _is_of_images(call["input"]):
                    self._tally.add(run, _OVER_BATCH.format(call.name))
            return
        is_of_classes = call.name == "argmax" and call.arguments.get("dim") in (1, -1)
        is_divergence = call.name == "kl_div"
        is_used = self._over_batch() is call["target" if is_divergence else "input"]
        is_wrong = is_used and (is_of_classes or is_divergence)
        self._tally.add(run, _OVER_BATCH.format(call.name) if is_wrong else _explain(call))

    def observe(self, run: Script) -> Iterator[Problem]:
        for seen in self._tally:
            yield seen.report(
                f"{seen.reason}, in {seen.mistakes} of the calls that were checked.",
                {"mistakes": seen.mistakes},
            )


def _explain(call: TorchCall) -> str:
    """Return what is wrong with the dimension of a softmax that a prediction comes from."""
    name, tensor = call.name, call["input"]
    node = find_origin(tensor, keeps_all=True) if tensor.dim() > 1 else None
    operation = "" if node is None else name_node(node)
    if operation not in ("Softmax", "LogSoftmax"):
        return ""
    if node is tensor.grad_fn and read_dim(node) in (0, -tensor.dim()):
        is_of_classes = name in ("nll_loss", "cross_entropy")
        is_of_rows = name != "argmax" and tensor.dim() == 2 and _is_of_rows(call["target"])
        return _OVER_BATCH.format(name) if is_of_classes or is_of_rows else ""
    if name == "nll_loss" and operation == "LogSoftmax" and _is_over_other(tensor):
        return "nll_loss got a softmax over a dimension that is not that of the classes, 1"
    return ""


def _is_of_images(tensor: Tensor) -> bool:
    """Return whether a tensor is the result of a convolution of several images."""
    operation = name_origin(tensor, keeps_all=True) if tensor.dim() == 4 and len(tensor) > 1 else ""
    return operation in ("Convolution", "MkldnnConvolution")


def _is_over_other(tensor: Tensor) -> bool:
    """Return whether log-probabilities do not sum to 1 over the classes."""
    part = tensor.detach()[:_SAMPLES]
    if part.device.type != "cpu" or part.numel() > _MOST_VALUES:
        return False
    return bool((part.float().exp().sum(1) - 1).abs().amin() > _ROUNDING)


def _is_of_rows(target: Tensor) -> bool:
    """Return whether the rows of targets are probabilities, and its columns are not."""
    if target.dim() != 2 or not target.is_floating_point() or target.device.type != "cpu":
        return False
    errors = [(target.detach().sum(dim) - 1).abs().amax() for dim in (1, 0)]
    return bool(errors[0] < _ROUNDING) and bool(errors[1] > _ROUNDING)
