"""Precision of a fourth kind: torch's default dtype, and parts of a model that leave autocast."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import surestep
from tests.twice.compare import assert_same, in_batches, plain_config, train, weights

G = torch.Generator().manual_seed(47)
X = torch.randn(23, 4, generator=G)  # batches of 7, the last of two
Z = torch.randn(23, 2, generator=G)


@pytest.fixture(params=[torch.float64, torch.bfloat16])
def default_dtype(request: Any) -> Iterator[torch.dtype]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(request.param)
    yield request.param
    torch.set_default_dtype(before)


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_default_dtype_of_torch_is_that_of_the_model_alone(default_dtype, name: str) -> None:
    def make() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))

    x_all, z_all, plain_net, ours_net = X.to(default_dtype), Z.to(default_dtype), make(), make()
    optimizer: Any = torch.optim.SGD(plain_net.parameters(), lr=0.05)
    if name == "adamw":
        adamw = torch.optim.AdamW
        optimizer = adamw(plain_net.parameters(), lr=0.05, weight_decay=0.0, fused=True)
    for _ in range(2):
        for x, z in in_batches(7, x_all, z_all):
            optimizer.zero_grad()
            F.mse_loss(plain_net(x), z).backward()
            nn.utils.clip_grad_norm_(plain_net.parameters(), 0.3)
            optimizer.step()
    config = surestep.Config(
        epochs=2,
        batch_size=7,
        max_grad_norm=0.3,
        schedule="constant",
        data={"shuffle": False},
        logging={"progress": "quiet"},
        optim={"name": name, "lr": 0.05, "weight_decay": 0.0},
    )
    train(surestep.Task(ours_net, nn.MSELoss(), train=(x_all, z_all)), config)
    for plain, ours in zip(plain_net.parameters(), ours_net.parameters(), strict=True):
        torch.testing.assert_close(ours, plain)


class Square(torch.autograd.Function):
    """Asks autocast for fp32 inputs."""

    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu", cast_inputs=torch.float32)
    def forward(context: Any, x: Tensor) -> Tensor:
        context.save_for_backward(x)
        return x * x

    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")
    def backward(context: Any, gradient: Tensor) -> Any:
        (x,) = context.saved_tensors
        return 2 * x * gradient


class Mixed(nn.Module):
    """A body under autocast, and a head in double precision without it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Linear(4, 6), nn.Softplus(), nn.Linear(6, 3))
        self.head = nn.Linear(3, 2).double()

    def forward(self, x: Tensor) -> Tensor:
        hidden = Square.apply(self.body(x))
        with torch.autocast("cpu", enabled=False):
            return self.head(hidden.double())


@pytest.mark.parametrize("size", [7, 3])
def test_parts_that_leave_autocast_and_a_penalty_of_slopes_equal_a_loop_by_hand(size: int) -> None:
    def penalty(net: Any, x: Tensor, grad: Any) -> Tensor:
        x = x.clone().requires_grad_()
        (slope,) = grad(net.body(x).sum(), [x], create_graph=True)
        return ((slope.norm(dim=1) - 1) ** 2).mean()

    def slopes(outputs: Tensor, inputs: list[Tensor], **more: bool) -> Any:
        with torch.autocast("cpu", enabled=False):
            return torch.autograd.grad(outputs, inputs, **more)

    plain_net, ours_net = Mixed(), Mixed()
    optimizer = torch.optim.SGD(plain_net.parameters(), lr=0.05)
    for _ in range(2):
        for batch in in_batches(7, X, Z):
            optimizer.zero_grad()
            for x, z in in_batches(size, *batch):
                with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False):
                    loss = F.mse_loss(plain_net(x), z.double()) + penalty(plain_net, x, slopes)
                (loss * (len(x) / len(batch[0]))).backward()
            optimizer.step()

    def step(manual_step: surestep.ManualStep) -> None:
        for micro in manual_step.micro_batches():
            x, z = micro.args
            net = manual_step.model
            loss = F.mse_loss(net(x), z.double()) + penalty(net, x, manual_step.grad)
            manual_step.backward(loss, micro)
        manual_step.step("model")

    config = plain_config(
        epochs=2, batch_size=7, micro_batch_size=size, precision="bf16", optim={"lr": 0.05}
    )
    train(surestep.Task(ours_net, train=(X, Z), step=step), config)
    assert_same(weights(plain_net), weights(ours_net))
