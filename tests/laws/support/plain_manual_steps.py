"""Plain PyTorch loops with several optimizers. Nothing here imports surestep."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import clip_grad_norm_

from tests.laws.support.plain import order_of, seed_of, two_groups

BETAS = (0.0, 0.9)


def noise(place: str, device: str = "cpu") -> torch.Generator:
    return torch.Generator(device).manual_seed(seed_of(f"noise {place}"))


def batches(x: Tensor, size: int) -> Iterator[Tensor]:
    """Yield the batches of one epoch after another, without end."""
    epoch = 0
    while True:
        order = order_of(len(x), 0, epoch)
        for start in range(0, len(x), size):
            yield x[order[start : start + size]]
        epoch += 1


def adamw(module: nn.Module, **options) -> torch.optim.Optimizer:
    return torch.optim.AdamW(two_groups(module, 0.01), fused=True, **options)


def wgan_gp(model: nn.ModuleDict, x: Tensor, *, steps: int, size: int, every: int) -> list[float]:
    """Train a critic in each step and a generator in every n-th; return the critic's losses.

    Source: https://arxiv.org/abs/1704.00028
    """
    generator, critic = model["generator"], model["critic"]
    of_critic = adamw(critic, lr=2e-3, betas=BETAS)
    of_generator = adamw(generator, lr=1e-3, betas=BETAS)
    losses = []
    for (step, real), _ in zip(enumerate(batches(x, size)), range(steps), strict=False):
        n = len(real)
        fake = generator(torch.randn(n, 3, generator=noise(f"0 {step} 0 0"))).detach()
        share = torch.rand(n, 1, generator=noise(f"0 {step} 0 1"))
        between = (share * real + (1 - share) * fake).requires_grad_()
        slope = torch.autograd.grad(critic(between).sum(), between, create_graph=True)[0]
        penalty = ((slope.norm(dim=1) - 1) ** 2).mean()
        loss = critic(fake).mean() - critic(real).mean() + 10 * penalty
        of_critic.zero_grad()
        loss.backward()
        clip_grad_norm_(critic.parameters(), 1.0)
        of_critic.step()
        losses.append(float(loss.detach()))
        if step % every == every - 1:
            z = torch.randn(n, 3, generator=noise(f"0 {step} 1 0"))
            of_generator.zero_grad()
            (-critic(generator(z)).mean()).backward()
            clip_grad_norm_(generator.parameters(), 1.0)
            of_generator.step()
    return losses


def rollout(model: nn.ModuleDict, start: Tensor, chances: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Roll out the policy on a line towards 0; return the losses of actor and critic.

    The actions are left and right; the reward of a move is the decrease of the distance to 0.
    """
    place, logs, values, rewards = start, [], [], []
    for chance in chances:
        seen = model["trunk"](place)
        right = torch.sigmoid(model["policy"](seen.detach()))
        action = (chance < right.detach()).float()
        logs.append(torch.log(torch.where(action > 0, right, 1 - right)))
        values.append(model["value"](seen))
        moved = place + (action * 2 - 1) * 0.5
        rewards.append(place.abs() - moved.abs())
        place = moved
    gain, actor, critic = torch.zeros_like(start), torch.zeros(()), torch.zeros(())
    for log, value, reward in zip(logs[::-1], values[::-1], rewards[::-1], strict=True):
        gain = reward + 0.9 * gain
        actor = actor - (log * (gain - value.detach())).mean()
        critic = critic + functional.mse_loss(value, gain)
    return actor, critic


def actor_critic(model: nn.ModuleDict, x: Tensor, *, steps: int, size: int) -> list[float]:
    """Train actor and critic by one backward over both losses; return the sums of the two."""
    actor = adamw(model["policy"], lr=1e-2)
    critic = adamw(nn.ModuleList([model["trunk"], model["value"]]), lr=3e-3)
    losses = []
    for (step, start), _ in zip(enumerate(batches(x, size)), range(steps), strict=False):
        n = len(start)
        chances = [torch.rand(n, 1, generator=noise(f"0 {step} 0 {call}")) for call in range(4)]
        first, second = rollout(model, start, chances)
        for optimizer in (actor, critic):
            optimizer.zero_grad()
        (first + second).backward()
        clip_grad_norm_(model["policy"].parameters(), 1.0)
        clip_grad_norm_([*model["trunk"].parameters(), *model["value"].parameters()], 5.0)
        actor.step()
        critic.step()
        losses.append(float((first + second).detach()))
    return losses
