"""A tensor is reshaped to the sizes of its own dimensions in another order.

`x.view(b, h, n, d)` of a tensor with the sizes `b, n, h, d` reads the same numbers row by row into
another shape. It exchanges no dimensions, as `transpose()` does: values of different positions,
heads or samples are mixed. The shapes fit, and the training runs with scrambled data.

Ignore it if one of the exchanged dimensions always has size 1.

Source: https://docs.pytorch.org/docs/stable/generated/torch.transpose.html

Wrong:

    import torch

    model = torch.nn.Linear(8, 5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        output = model(torch.randn(4, 6, 8))
        batch, length, classes = output.shape
        y = torch.randint(5, (4, 6))
        loss = torch.nn.functional.cross_entropy(output.view(batch, classes, length), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

Right:

    import torch

    model = torch.nn.Linear(8, 5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        output = model(torch.randn(4, 6, 8))
        batch, length, classes = output.shape
        y = torch.randint(5, (4, 6))
        loss = torch.nn.functional.cross_entropy(output.transpose(1, 2), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""

from collections.abc import Iterator

from surestep.doctor.problem import Problem, at_event
from surestep.doctor.source.dimensions import KEEPS_SHAPE
from surestep.doctor.source.trace import Program
from surestep.doctor.source.training import describe, is_same, option_of, tensor_of
from surestep.doctor.source.values import Attribute, Call, Collection, Constant, Item, Value

SEVERITY = "warning"
FIX = "Exchange dimensions with transpose() or permute()."


def check(program: Program) -> Iterator[Problem]:
    """Find views whose sizes are those of the tensor itself, in another order."""
    reported = set()
    for trace in program.traces:
        for event, call in trace.calls:
            if call.name not in ("view", "reshape") or event.node in reported:
                continue
            order = _find_order(call)
            if len(order) > 1 and order != sorted(order) and sorted(order) == [*range(len(order))]:
                reported.add(event.node)
                yield at_event(
                    event,
                    f"`{describe(call)}` has the sizes of the dimensions {order}: it mixes the "
                    "values, and exchanges no dimensions.",
                )


def _find_order(call: Call) -> list[int]:
    """Return of which dimension of the tensor each size is; empty if one of them is not known."""
    tensor = tensor_of(call)
    sizes = list(call.args if call.is_method else call.args[1:])
    if len(sizes) == 1 and isinstance(sizes[0], Collection):
        sizes = sizes[0].elements
    last = sizes[-1] if sizes else None
    if isinstance(last, Constant) and last.value == -1:  # the rest of the dimensions
        sizes.pop()
    found = [None if tensor is None else _find_dimension(size, tensor) for size in sizes]
    return [] if None in found else [dimension for dimension in found if dimension is not None]


def _find_dimension(size: Value, tensor: Value) -> int | None:
    """Return the dimension of a tensor of which a value is the size."""
    of: Value | None
    index: Value | None
    match size:
        case Item(base=Attribute(name="shape", base=base), index=index):
            of = base
        case Item(base=Call(path=".size", receiver=receiver, args=()), index=index):
            of = receiver
        case Call(path=".size", receiver=receiver):
            of, index = receiver, option_of(size, "dim")
        case _:
            return None
    if not is_same(_strip(of), _strip(tensor)) or not isinstance(index, Constant):
        return None
    return index.value if type(index.value) is int else None


def _strip(value: Value | None) -> Value | None:
    """Return the tensor of which a value has the shape."""
    while isinstance(value, Call) and value.name in KEEPS_SHAPE and value.path != "()":
        value = tensor_of(value)
    return value
