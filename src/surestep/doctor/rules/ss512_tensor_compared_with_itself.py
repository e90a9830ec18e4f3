"""Both sides of a loss are the same tensor, so it is constant and teaches nothing.

A distillation compares a student with a teacher, a contrastive loss two views, a reconstruction the
output with the input. If one name is written twice, the distance is 0, or as large as it can be,
whatever the model does, and so is its gradient. Other terms of the loss still fall, which hides it.

Ignore it if the value itself is not trained on.

Source: https://docs.pytorch.org/docs/stable/nn.functional.html#loss-functions

Wrong:

    import torch
    from torch import nn

    model = nn.Linear(4, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        first, second = model(torch.randn(8, 4)), model(torch.randn(8, 4))
        loss = first.pow(2).mean() + nn.functional.mse_loss(first, first.detach())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

Right:

    import torch
    from torch import nn

    model = nn.Linear(4, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        first, second = model(torch.randn(8, 4)), model(torch.randn(8, 4))
        loss = first.pow(2).mean() + nn.functional.mse_loss(first, second.detach())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

from surestep.doctor.problem import Problem, at_event
from surestep.doctor.runtime.tally import LineTally
from surestep.doctor.source.trace import Event, Program
from surestep.doctor.source.training import describe, is_same, options_of, tensor_of
from surestep.doctor.source.values import Attribute, Call, Constant, Operation, Value
from surestep.doctor.watcher import Script, TorchCall, Watcher

SEVERITY = "error"
FIX = "Compare two different tensors: the output with its target, the student with the teacher."
_MODULES = {
    **{"MSELoss": "mse_loss", "L1Loss": "l1_loss", "SmoothL1Loss": "smooth_l1_loss"},
    **{"HuberLoss": "huber_loss", "KLDivLoss": "kl_div", "CosineSimilarity": "cosine_similarity"},
    **{"TripletMarginLoss": "triplet_margin_loss", "MarginRankingLoss": "margin_ranking_loss"},
    "CosineEmbeddingLoss": "cosine_embedding_loss",
}
_SIDES = dict.fromkeys(_MODULES.values(), ("input", "target")) | {
    "cosine_similarity": ("x1", "x2"),
    "triplet_margin_loss": ("anchor", "positive", "negative"),
    "margin_ranking_loss": ("input1", "input2"),
    "cosine_embedding_loss": ("input1", "input2"),
}
_COPIES = frozenset("detach clone contiguous float double half bfloat16 to".split())
_TRANSFORMS = {"softmax": "softmax", "log_softmax": "softmax", "normalize": "normalize"}
_WATCHED = ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "kl_div")


def check(program: Program) -> Iterator[Problem]:
    """Find losses of which two sides are computed from one tensor in the same way."""
    for trace in program.traces:
        for event, _ in trace.calls:
            for first, second in combinations(_find_sides(event), 2):
                if _is_same_tensor(first, second):
                    yield at_event(
                        event, f"`{event.text}` compares `{describe(first)}` with itself."
                    )
                    break


def _find_sides(event: Event) -> list[Value]:
    """Return the tensors that a call compares; none if it is not a loss."""
    call = event.call
    if call is None or call.has_unknown_arguments:
        return []
    name = call.name
    if call.path == "()":
        made = options_of(call.receiver)
        only = made[0] if len(made) == 1 else None
        is_torch = isinstance(only, Call) and only.path.startswith("torch.nn.")
        name = _MODULES.get(only.name, "") if isinstance(only, Call) and is_torch else ""
    elif not call.path.startswith("torch."):
        return []
    found = (call.argument(at, side) for at, side in enumerate(_SIDES.get(name, ())))
    return [side for side in found if side is not None]


def _is_same_tensor(first: Value, second: Value) -> bool:
    """Return whether two values are equal in each run: no call is made twice."""
    first, changes = _strip(first)
    second, others = _strip(second)
    if changes != others:
        return False
    if isinstance(first, Constant):
        return isinstance(second, Constant) and first.value == second.value
    if is_same(first, second):
        return True
    match first, second:
        case Operation(operator=a, operands=left), Operation(operator=b, operands=right):
            is_alike = a == b and len(left) == len(right) and a != "*args"
            return is_alike and all(map(_is_same_tensor, left, right))
    return False


def _strip(value: Value) -> tuple[Value, list[str]]:
    """Return the tensor of which a value is a copy or a softmax, and the names of the changes."""
    changes = []
    while True:
        match value:
            case Call(name=name) if name in _COPIES and value.is_method:
                inner = value.receiver
            case Call(name=name) if name in _TRANSFORMS:
                changes.append(_TRANSFORMS[name])
                inner = tensor_of(value)
            case Attribute(name="data", base=base):
                inner = base
            case _:
                inner = None
        if inner is None:
            return value, changes
        value = inner


class TensorComparedWithItselfWatcher(Watcher):
    """Find losses whose two sides are in the same memory."""

    FUNCTIONS = _WATCHED
    SAMPLED = ("on_call",)

    def __init__(self) -> None:
        self._tally = LineTally()

    def on_call(self, run: Script, call: TorchCall) -> None:
        first, second = call["input"], call["target"]
        is_trained = not run.in_backward and first.numel() and call.result.requires_grad
        is_one = first.shape == second.shape and first.data_ptr() == second.data_ptr()
        self._tally.add(run, "one tensor" if is_trained and is_one else "")

    def observe(self, run: Script) -> Iterator[Problem]:
        for seen in self._tally:
            if seen.is_usual or seen.mistakes > 1:
                yield seen.report(
                    f"Both sides of a loss were one tensor in {seen.mistakes} calls.",
                    {"calls": self._tally.calls, "mistakes": seen.mistakes},
                )
