"""A metric is the mean of the means of batches, although the last batch is smaller.

If 100 samples are evaluated in batches of 64, the last 36 count as much as the first 64. The mean
of the two means is not the mean over the samples, and it changes with the batch size. The
difference is small for a large data set, but it is there in every comparison.

Ignore it if all batches are equally large. Training losses, and loaders with `drop_last=True`, are
not reported, nor data sets whose size is a multiple of the batch size, if the source shows it.

Source: https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.DataLoader (drop_last)

Wrong:

    import torch
    import torch.nn.functional as F
    from torch.utils.data import DataLoader, TensorDataset

    data = TensorDataset(torch.randn(100, 4), torch.randint(3, (100,)))
    loader = DataLoader(data, batch_size=64)
    model = torch.nn.Linear(4, 3)
    total = 0.0
    with torch.inference_mode():
        for x, y in loader:
            total += F.cross_entropy(model(x), y).item()
    print(total / len(loader))

Right:

    import torch
    import torch.nn.functional as F
    from torch.utils.data import DataLoader, TensorDataset

    data = TensorDataset(torch.randn(100, 4), torch.randint(3, (100,)))
    loader = DataLoader(data, batch_size=64)
    model = torch.nn.Linear(4, 3)
    total = 0.0
    with torch.inference_mode():
        for x, y in loader:
            total += F.cross_entropy(model(x), y).item() * len(x)
    print(total / len(data))
"""

import ast
from collections.abc import Iterator

from surestep.doctor.problem import Problem, at_node
from surestep.doctor.source.dimensions import count_samples
from surestep.doctor.source.loaders import SourceLoader, find_loader_of, find_loaders
from surestep.doctor.source.losses import SourceLoss, find_losses
from surestep.doctor.source.trace import Event, Program, Trace
from surestep.doctor.source.training import describe, is_without_grad, options_of
from surestep.doctor.source.values import Call, Collection, Constant, Operation, Value

SEVERITY = "info"
FIX = "Add loss.item() * len(x), and divide the sum by the number of samples."
_LOSSES = (
    *("cross_entropy", "nll_loss", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"),
    *("binary_cross_entropy", "binary_cross_entropy_with_logits"),
)
_NUMBERS = frozenset((".item", ".detach", ".cpu", ".double", ".float"))


def check(program: Program) -> Iterator[Problem]:
    """Find divisions of a sum of means by the number of batches."""
    for trace in program.traces:
        loaders = [loader for loader in find_loaders(trace) if _has_smaller_batch(loader)]
        if not loaders:
            continue
        means = _find_means(trace, loaders)
        if means:
            for event in trace.events:
                yield from _check_event(event, means)


def _has_smaller_batch(loader: SourceLoader) -> bool:
    """Return whether the last batch is smaller, unless the unknown sizes happen to fit."""
    if loader.is_set("drop_last") or loader.is_set("batch_sampler"):
        return False
    size = loader.option("batch_size")
    if size is None:
        return False
    if not isinstance(size, Constant):
        return True
    if not isinstance(size.value, int) or size.value < 2:
        return False
    count = count_samples(loader.option("dataset"))
    return count is None or count % size.value > 0


def _find_means(trace: Trace, loaders: list[SourceLoader]) -> dict[int, SourceLoader]:
    """Return the loader behind each mean of a batch that a sum or a list gathers."""
    losses = {id(loss.event.value) for loss in find_losses(trace, *_LOSSES) if _is_mean(loss)}
    found = {}
    for event in trace.events:
        added = _added(event)
        loader = find_loader_of(event.loops, loaders)
        if (
            added is not None
            and loader is not None
            and is_without_grad(event)
            and _is_mean_of_batch(added, losses)
        ):
            found[id(added)] = loader
    return found


def _is_mean(loss: SourceLoss) -> bool:
    reduction = loss.option("reduction")
    return reduction is None or (isinstance(reduction, Constant) and reduction.value == "mean")


def _added(event: Event) -> Value | None:
    if event.kind == "augment" and isinstance(event.node, ast.AugAssign):
        return event.value if isinstance(event.node.op, ast.Add) else None
    call = event.call
    if call is not None and call.path == ".append" and isinstance(call.receiver, Collection):
        return call.argument(0, "")
    return None


def _is_mean_of_batch(value: Value, losses: set[int]) -> bool:
    options = (value,) if isinstance(value, Call) else options_of(value)
    return bool(options) and all(_is_one_mean(option, losses) for option in options)


def _is_one_mean(value: Value, losses: set[int]) -> bool:
    if id(value) in losses:
        return True
    if not isinstance(value, Call):
        return False
    if value.path in _NUMBERS and value.receiver is not None:
        return _is_mean_of_batch(value.receiver, losses)
    if value.path == "float" and value.args:
        return _is_mean_of_batch(value.args[0], losses)
    is_mean = value.path == ".mean" and not value.args and not value.keywords
    return is_mean and _compares(value.receiver)


def _compares(value: Value | None) -> bool:
    """Return whether a value is `(prediction == target)`, as numbers."""
    while isinstance(value, Call) and value.is_method:
        value = value.receiver
    return isinstance(value, Operation) and value.operator == "=="


def _check_event(event: Event, means: dict[int, SourceLoader]) -> Iterator[Problem]:
    for node, total, count in _divisions(event):
        loader = _loader_behind(total, means)
        if loader is not None and _counts_batches(count, loader):
            text = " ".join(ast.unparse(node).split())
            yield at_node(
                node,
                event.file,
                f"`{text}` gives all batches of `{describe(loader.call)}` the same weight, also a "
                "smaller last one.",
            )


def _divisions(event: Event) -> Iterator[tuple[ast.AST, Value, Value | None]]:
    """Yield each division: where it is, the sum, and by what; None is the length of a list."""
    if (
        event.kind == "augment"
        and isinstance(event.node, ast.AugAssign)
        and isinstance(event.node.op, ast.Div)
        and event.base is not None
    ):
        yield event.node, event.base, event.value
    waiting = [event.value, *(event.value.inputs if isinstance(event.value, Call) else ())]
    while waiting:
        value = waiting.pop()
        if isinstance(value, Call) and value.path in ("numpy.mean", "statistics.mean"):
            if value.args and value.node is not None:
                yield value.node, value.args[0], None
        elif isinstance(value, Operation):
            waiting.extend(value.operands)
            if value.operator == "/" and len(value.operands) == 2 and value.node is not None:
                yield value.node, *value.operands
        elif isinstance(value, Collection):
            waiting.extend(value.elements)


def _loader_behind(total: Value, means: dict[int, SourceLoader]) -> SourceLoader | None:
    """Return the loader of a sum of means of batches."""
    match options_of(total):
        case (Operation(operator="+", operands=(_, added)),):
            return means.get(id(added))
        case (Call(path="sum", args=(Collection() as gathered,)) | (Collection() as gathered),):
            loaders = [means.get(id(element)) for element in gathered.elements]
            return loaders[0] if loaders else None
    return None


def _counts_batches(count: Value | None, loader: SourceLoader) -> bool:
    match count:
        case None:
            return True
        case Call(path="len", args=(counted,)):
            return isinstance(counted, Collection) or loader.call in options_of(counted)
        case Operation(operator="+", operands=(_, Constant(value=1))):
            return True
    return False
