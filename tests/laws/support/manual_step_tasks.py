"""Tasks with several optimizers: a WGAN-GP and an actor-critic toy."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import surestep
from tests.laws.support.plain_manual_steps import BETAS, rollout

BATCH, EVERY = 16, 3


def net(inputs: int, outputs: int) -> nn.Module:
    hidden = nn.Sequential(nn.Linear(inputs, 16), nn.LayerNorm(16), nn.ReLU())
    return nn.Sequential(hidden, nn.Linear(16, outputs))


def gan() -> nn.ModuleDict:
    torch.manual_seed(1)
    return nn.ModuleDict({"generator": net(3, 4), "critic": net(4, 1)})


def real_samples(samples: int = 55) -> Tensor:
    return 1 + torch.randn(samples, 4, generator=torch.Generator().manual_seed(2)) / 2


def wgan_step(manual_step: surestep.ManualStep) -> None:
    critic, generator = manual_step.models["critic"], manual_step.models["generator"]
    for micro in manual_step.micro_batches("critic"):
        (real,) = micro.args
        fake = generator(manual_step.randn(micro, 3)).detach()
        share = manual_step.rand(micro, 1)
        between = (share * real + (1 - share) * fake).requires_grad_()
        slope = manual_step.grad(critic(between), between, create_graph=True)
        penalty = ((slope.norm(dim=1) - 1) ** 2).mean()
        manual_step.log("penalty", penalty)
        manual_step.backward(critic(fake).mean() - critic(real).mean() + 10 * penalty, micro)
    manual_step.step("critic")
    if manual_step.index % EVERY == EVERY - 1:
        for micro in manual_step.micro_batches("generator"):
            manual_step.backward(-critic(generator(manual_step.randn(micro, 3))).mean(), micro)
        manual_step.step("generator")


def wgan_task(
    step: Callable[[surestep.ManualStep], Any] = wgan_step, **parts: Any
) -> surestep.Task:
    defaults: dict[str, Any] = {
        "model": gan(),
        "train": (real_samples(),),
        "optimizers": {
            "critic": surestep.Optim(lr=2e-3, betas=BETAS),
            "generator": surestep.Optim(lr=1e-3, betas=BETAS),
        },
    }
    return surestep.Task(step=step, **{**defaults, **parts})


def players() -> nn.ModuleDict:
    torch.manual_seed(1)
    return nn.ModuleDict({"trunk": net(1, 8), "policy": nn.Linear(8, 1), "value": nn.Linear(8, 1)})


def starts(samples: int = 55) -> Tensor:
    return 3 * torch.randn(samples, 1, generator=torch.Generator().manual_seed(3))


def actor_critic_step(manual_step: surestep.ManualStep) -> None:
    for micro in manual_step.micro_batches("actor", "critic"):
        (start,) = micro.args
        chances = [manual_step.rand(micro, 1) for _ in range(4)]
        actor, critic = rollout(manual_step.model, start, chances)
        manual_step.backward(actor + critic, micro)
    manual_step.step("actor")
    manual_step.clip("critic", 5.0)
    manual_step.step("critic")


def actor_critic_task(**parts: Any) -> surestep.Task:
    defaults: dict[str, Any] = {
        "model": players(),
        "train": (starts(),),
        "optimizers": {
            "actor": surestep.OptimizerSpec(surestep.Optim(lr=1e-2), modules=["policy"]),
            "critic": surestep.OptimizerSpec(surestep.Optim(lr=3e-3), modules=["trunk", "value"]),
        },
    }
    return surestep.Task(step=actor_critic_step, **{**defaults, **parts})


TASKS = {"WGAN-GP": wgan_task, "actor-critic": actor_critic_task}
