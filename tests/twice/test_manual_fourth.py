"""Manual steps of a fourth kind: gradients that user code changes, kept graphs, attacks, modes."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

import surestep
from surestep.base.errors import NonFiniteError
from tests.twice import compare
from tests.twice.compare import assert_same, in_batches, plain_config, weights

G = torch.Generator().manual_seed(41)
X = torch.randn(23, 4, generator=G, dtype=torch.float64)  # batches of 7, the last of two
Z = torch.randn(23, 2, generator=G, dtype=torch.float64)
SGD = surestep.Optim(name="sgd", lr=0.1, momentum=0.0, weight_decay=0.0)
Grad = Callable[..., Any]


class Two(nn.Module):
    """A network with batch statistics after an encoder."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoder = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 4)).double()
        self.head = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 2)).double()

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(x))


def by_hand(step: Callable[..., None]) -> Any:
    """Train with one optimizer for each part; `step` gets them and a batch."""
    net = Two()
    optimizers = [torch.optim.SGD(part.parameters(), lr=0.1) for part in (net.encoder, net.head)]
    for _ in range(2):
        for x, z in in_batches(7, X[:21], Z[:21]):
            step(net, *optimizers, x, z)
    return weights(net)


def ours(step: Any, size: int, **more: Any) -> Any:
    net = Two()
    optimizers = {"encoder": SGD, "head": SGD}
    task = surestep.Task(net, train=(X[:21], Z[:21]), step=step, optimizers=optimizers)
    compare.train(task, plain_config(epochs=2, batch_size=7, micro_batch_size=size), **more)
    return weights(net)


def test_callback_changes_the_gradients_of_a_pass_for_two_optimizers_once() -> None:
    def shrink(net: nn.Module) -> None:
        total = torch.stack([p.grad.norm() for p in net.parameters() if p.grad is not None]).norm()
        for parameter in net.parameters():
            if parameter.grad is not None:
                parameter.grad.div_(1 + total).add_(0.01)

    class Shrink(surestep.Callback):
        def on_backward(self, state: Any) -> None:
            shrink(state.model)

    def plain_step(net: Any, of_encoder: Any, of_head: Any, x: Tensor, z: Tensor) -> None:
        net.zero_grad()
        F.mse_loss(net(x), z).backward()
        shrink(net)
        of_encoder.step()
        of_head.step()

    def step(manual_step: surestep.ManualStep) -> None:
        for micro in manual_step.micro_batches("encoder", "head"):
            x, z = micro.args
            manual_step.backward(F.mse_loss(manual_step.model(x), z), micro)
        manual_step.step("encoder")
        manual_step.step("head")

    assert_same(by_hand(plain_step), ours(step, 7, callbacks=[Shrink()]))


def test_gradients_of_two_losses_that_are_projected_replace_those_of_the_sum() -> None:
    def projected(first: list[Tensor], second: list[Tensor]) -> list[Tensor]:
        both = sum((a * b).sum() for a, b in zip(first, second, strict=True))
        if both < 0:
            size = sum(b.square().sum() for b in second)
            first = [a - both / size * b for a, b in zip(first, second, strict=True)]
        return [a + b for a, b in zip(first, second, strict=True)]

    def set_gradients(net: nn.Module, losses: Tensor, grad: Grad) -> None:
        parts = [grad(loss, list(net.parameters()), retain_graph=True) for loss in losses]
        for parameter, value in zip(net.parameters(), projected(*parts), strict=True):
            parameter.grad = value

    def plain_step(net: Any, of_encoder: Any, of_head: Any, x: Tensor, z: Tensor) -> None:
        set_gradients(net, (net(x) - z).square().mean(0), torch.autograd.grad)
        of_encoder.step()
        of_head.step()

    def step(manual_step: surestep.ManualStep) -> None:
        net = manual_step.model
        for micro in manual_step.micro_batches():
            x, z = micro.args
            losses = (net(x) - z).square().mean(0)
            manual_step.backward(losses.sum(), micro, retain_graph=True)
            set_gradients(net, losses, manual_step.grad)
        manual_step.step("encoder")
        manual_step.step("head")

    assert_same(by_hand(plain_step), ours(step, 7))


@pytest.mark.parametrize("size", [7, 3])
def test_graph_of_an_encoder_is_kept_from_one_pass_to_the_next(size: int) -> None:
    def loss(net: Any, code: Tensor, z: Tensor) -> Tensor:
        return F.mse_loss(net.head(code), z)

    def plain_step(net: Any, of_encoder: Any, of_head: Any, x: Tensor, z: Tensor) -> None:
        net.head.eval()
        code = net.encoder(x)
        of_head.zero_grad()
        loss(net, code.detach(), z).backward()
        of_head.step()
        of_encoder.zero_grad()
        loss(net, code, z).backward()
        of_encoder.step()

    def step(manual_step: surestep.ManualStep) -> None:
        net: Any = manual_step.model
        net.head.eval()
        codes = {}
        for micro_batch in manual_step.micro_batches("head"):
            x, z = micro_batch.args
            code = codes[micro_batch.position] = net.encoder(x)
            manual_step.backward(loss(net, code.detach(), z), micro_batch)
        manual_step.step("head")
        for micro_batch in manual_step.micro_batches("encoder"):
            code = codes[micro_batch.position]
            manual_step.backward(loss(net, code, micro_batch.args[1]), micro_batch)
        manual_step.step("encoder")

    assert_same(by_hand(plain_step), ours(step, size))


def test_inner_update_through_batch_statistics_on_attacked_inputs_and_own_labels() -> None:
    def attacked(net: nn.Module, x: Tensor, z: Tensor, grad: Grad) -> Tensor:
        moved = torch.zeros_like(x, requires_grad=True)
        for _ in range(2):
            (slope,) = grad(F.mse_loss(net(x + moved), z), [moved])
            moved = (moved + 0.1 * slope.sign()).clamp(-0.15, 0.15).detach().requires_grad_()
        return (x + moved).detach()

    def loss(net: nn.Module, x: Tensor, z: Tensor, grad: Grad) -> Tensor:
        net.eval()
        with torch.no_grad():
            z = 0.5 * z + 0.5 * net(x)
        net.train()
        x, parts, buffers = (
            attacked(net, x, z, grad),
            dict(net.named_parameters()),
            dict(net.named_buffers()),
        )
        inner = F.mse_loss(functional_call(net, (parts, buffers), (x[:3],)), z[:3])
        slopes = grad(inner, list(parts.values()), create_graph=True)
        fast = {n: w - 0.1 * s for (n, w), s in zip(parts.items(), slopes, strict=True)}
        return F.mse_loss(functional_call(net, (fast, buffers), (x[3:],)), z[3:])

    def plain_step(net: Any, of_encoder: Any, of_head: Any, x: Tensor, z: Tensor) -> None:
        net.zero_grad()
        loss(net, x, z, torch.autograd.grad).backward()
        of_encoder.step()
        of_head.step()

    def step(manual_step: surestep.ManualStep) -> None:
        for micro in manual_step.micro_batches():
            value = loss(manual_step.model, *micro.args, manual_step.grad)
            manual_step.backward(value, micro)
        manual_step.step("encoder")
        manual_step.step("head")

    assert_same(by_hand(plain_step), ours(step, 7))


@pytest.mark.parametrize("name", ["sgd", "lbfgs"])
def test_repeating_a_step_to_find_its_bad_sample_leaves_weights_and_state(name: str) -> None:
    bad = X.clone()
    bad[16] = torch.nan  # in the third batch
    plain_net, net = Two().encoder, Two().encoder
    optimizer: Any = torch.optim.SGD(plain_net.parameters(), lr=0.1, momentum=0.9)
    if name == "lbfgs":
        optimizer = torch.optim.LBFGS(plain_net.parameters(), lr=0.1, max_iter=4)
    for x in (X[:7], X[7:14]):

        def closure(x: Tensor = x) -> Tensor:
            optimizer.zero_grad()
            loss = F.mse_loss(plain_net(x), x)
            loss.backward()
            return loss

        optimizer.step(closure)

    def step(manual_step: surestep.ManualStep) -> None:
        for micro in manual_step.micro_batches():
            x, _ = micro.args
            manual_step.backward(F.mse_loss(manual_step.model(x), x), micro)
        manual_step.step("model")

    given: dict[str, Any] = {"momentum": 0.9} if name == "sgd" else {"name": "lbfgs", "max_iter": 4}
    how: dict[str, Any] = {"step": step} if name == "sgd" else {"loss": nn.MSELoss()}
    task = surestep.Task(net, train=(bad, X), **how)
    config = surestep.Config(
        epochs=1,
        batch_size=7,
        max_grad_norm=None,
        schedule="constant",
        data={"shuffle": False},
        logging={"progress": "quiet"},
        optim={"name": "sgd", "lr": 0.1} | ({"weight_decay": 0.0} if name == "sgd" else {}) | given,
    )
    with pytest.raises(NonFiniteError, match=r"Sample 16 .* caused it"):
        compare.train(task, config)
    state = compare.OPENED[-1].state.optimizer.state
    assert_same(weights(plain_net), weights(net))
    if name == "sgd":
        moved = [optimizer.state[weight]["momentum_buffer"] for weight in plain_net.parameters()]
        assert_same(moved, [state[weight]["momentum_buffer"] for weight in net.parameters()])


def test_average_that_a_hook_of_the_optimizer_keeps_follows_the_steps_that_are_taken() -> None:
    bad = X.clone()
    bad[16] = torch.nan

    def average_with(net: nn.Module, optimizer: torch.optim.Optimizer) -> list[Tensor]:
        average = [parameter.detach().clone() for parameter in net.parameters()]

        def follow(*_: Any) -> None:
            for slow, fast in zip(average, net.parameters(), strict=True):
                slow.lerp_(fast.detach(), 0.2)

        optimizer.register_step_post_hook(follow)
        return average

    plain_net, net = Two().encoder, Two().encoder
    optimizer = torch.optim.SGD(plain_net.parameters(), lr=0.1)
    plain_average = average_with(plain_net, optimizer)
    for (x,) in in_batches(7, bad):
        if x.isfinite().all():
            optimizer.zero_grad()
            F.mse_loss(plain_net(x), x).backward()
            optimizer.step()

    def step(manual_step: surestep.ManualStep) -> None:
        for micro in manual_step.micro_batches():
            (x,) = micro.args
            manual_step.backward(F.mse_loss(manual_step.model(x), x), micro)
        manual_step.step("model")

    task = surestep.Task(net, train=(bad,), step=step)
    session = compare.prepare(task, plain_config(epochs=1, batch_size=7, on_nonfinite="skip"))
    average = average_with(net, session.state.optimizer)
    for _ in session.steps():
        pass
    assert_same([weights(plain_net), plain_average], [weights(net), average])
