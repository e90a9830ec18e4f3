"""Values that a task logs: means over the items that logged them, beside the terms of a loss."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import surestep
from tests.twice.compare import assert_same, in_batches, plain_config, prepare

X = torch.randn(17, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
Y = X[:, :3].argmax(1)


class Keep(surestep.Callback):
    """Keeps what each step logged, by name."""

    def __init__(self) -> None:
        self.values: dict[str, list[float | None]] = {}

    def on_log(self, state: Any, point: Any) -> None:
        for name, values in point.logged.items():
            self.values.setdefault(name, []).extend(values)


def logged(loss: Any, net: Any = None, **options: Any) -> dict[str, list[float | None]]:
    """Train one epoch in batches of 7, 7 and 3; return what was logged."""
    torch.manual_seed(0)
    keep, net = Keep(), net or nn.Linear(4, 3).double()
    task = surestep.Task(net, loss, train=(X, Y))
    config = plain_config(epochs=1, batch_size=7, optim={"lr": 1e-300}, **options)
    session = prepare(task, config, callbacks=[keep])
    for _ in session.steps():
        pass
    return keep.values


def outputs_by_hand() -> list[tuple[Tensor, Tensor]]:
    torch.manual_seed(0)
    net = nn.Linear(4, 3).double()
    with torch.no_grad():
        return [(net(x), y) for x, y in in_batches(7, X, Y)]


def test_logged_value_with_the_name_of_a_term_is_not_added_to_it() -> None:
    def loss(outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        surestep.log("ce", outputs.abs().mean())
        return {"ce": functional.cross_entropy(outputs, targets)}

    batches = outputs_by_hand()
    plain = {
        "ce": [float(functional.cross_entropy(out, y)) for out, y in batches],
        "logged_ce": [float(out.abs().mean()) for out, _ in batches],
    }
    assert_same(plain, logged(loss))
    assert_same(plain, logged(loss, micro_batch_size=2))


def test_logged_value_is_a_mean_over_the_micro_batches_that_logged_it() -> None:
    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        if (targets == 0).any():
            surestep.log("first", outputs[:, 0].mean())
        return functional.cross_entropy(outputs, targets)

    plain: list[float | None] = []
    for out, y in outputs_by_hand():
        parts = [(o, t) for o, t in in_batches(2, out, y) if bool((t == 0).any())]
        total = sum(float(o[:, 0].sum()) for o, _ in parts)
        plain.append(total / sum(len(t) for _, t in parts) if parts else None)
    assert_same({"first": plain}, logged(loss, micro_batch_size=2))


def test_logged_integer_counts_keep_their_digits() -> None:
    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        surestep.log("large", torch.tensor(2**40 + 1))
        return functional.cross_entropy(outputs, targets)

    assert_same({"large": [2.0**40 + 1] * 3}, logged(loss, micro_batch_size=3))


class Recomputed(nn.Module):
    """Logs in a part whose forward runs again in the backward pass."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(4, 3).double(), nn.Linear(3, 3).double()
        self.reentrant = reentrant

    def part(self, x: Tensor) -> Tensor:
        found = self.first(x)
        surestep.log("mean", found.mean())
        return found.tanh().exp()

    def forward(self, x: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        return self.last(checkpoint(self.part, x, use_reentrant=self.reentrant))


@pytest.mark.filterwarnings("ignore:.*torch.utils.checkpoint hides some")
@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("size", [7, 3, 2])
def test_value_that_a_recomputed_forward_logs_again_is_of_its_own_step(size, reentrant) -> None:
    plain = [float(out.mean()) for out, _ in outputs_by_hand()]
    ours = logged(nn.CrossEntropyLoss(), Recomputed(reentrant), micro_batch_size=size)
    assert_same({"mean": plain}, ours)


class LogsGradient(nn.Module):
    """Logs the size of a gradient by a hook, in the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(4, 3).double()

    def forward(self, x: Tensor) -> Tensor:
        outputs = self.first(x)
        if outputs.requires_grad:
            outputs.register_hook(lambda grad: surestep.log("size", grad.abs().sum()))
        return outputs


def test_value_that_a_hook_of_the_backward_logs_is_of_its_own_step() -> None:
    net, plain = LogsGradient().first, []
    for x, y in in_batches(7, X, Y):
        outputs = net(x)
        (grad,) = torch.autograd.grad(functional.cross_entropy(outputs, y), outputs)
        plain.append(float(grad.abs().sum()))
    assert_same({"size": plain}, logged(nn.CrossEntropyLoss(), LogsGradient()))
