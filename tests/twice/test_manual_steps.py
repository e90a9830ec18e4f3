"""Manual steps: several optimizers, passes and losses equal loops by hand."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import surestep
from tests.twice.compare import (
    assert_same,
    in_batches,
    plain_config,
    prepare,
    seed_of,
    train,
    weights,
)

GENERATOR = torch.Generator().manual_seed(1)
X = torch.randn(23, 4, generator=GENERATOR, dtype=torch.float64)
Z = torch.randn(23, 2, generator=GENERATOR, dtype=torch.float64)
Y = torch.randint(0, 2, (23,), generator=GENERATOR)
SGD: dict[str, Any] = {"name": "sgd", "weight_decay": 0.0, "momentum": 0.0}


def noise(step: int, number: int, call: int, *size: int, draw: Any = torch.randn) -> Tensor:
    """Return the noise of a global batch as the documentation describes it."""
    generator = torch.Generator().manual_seed(seed_of("noise", 0, step, number, call))
    return draw(size, generator=generator).double()


class Pair(nn.Module):
    """A generator and a critic."""

    def __init__(self, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.generator = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 4)).to(dtype)
        self.critic = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).to(dtype)


def test_wasserstein_gan_with_penalty_equals_a_loop_by_hand() -> None:
    plain_net, ours_net = Pair(), Pair()
    critic, generator = plain_net.critic, plain_net.generator
    of_critic = torch.optim.Adam(critic.parameters(), lr=0.01, betas=(0.0, 0.9))
    of_generator = torch.optim.SGD(generator.parameters(), lr=0.05)
    norms, taken = [], 0
    for _ in range(2):
        for (real,) in in_batches(7, X):
            for number in range(3):
                with torch.no_grad():
                    fake = generator(noise(taken, number, 0, len(real), 3))
                share = noise(taken, number, 1, len(real), 1, draw=torch.rand)
                between = (share * real + (1 - share) * fake).requires_grad_()
                (slope,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
                penalty = ((slope.norm(dim=1) - 1) ** 2).mean()
                of_critic.zero_grad()
                (critic(fake).mean() - critic(real).mean() + 10 * penalty).backward()
                norms.append(nn.utils.clip_grad_norm_(critic.parameters(), 2.0).item())
                of_critic.step()
            of_generator.zero_grad()
            (-critic(generator(noise(taken, 3, 0, len(real), 3))).mean()).backward()
            nn.utils.clip_grad_norm_(generator.parameters(), 0.05)
            of_generator.step()
            taken += 1

    seen = []

    def step(manual_step: surestep.ManualStep) -> None:
        generator, critic = manual_step.models["generator"], manual_step.models["critic"]
        for _ in range(3):
            for micro in manual_step.micro_batches("critic"):
                (real,) = micro.args
                fake = generator(manual_step.randn(micro, 3).double()).detach()
                share = manual_step.rand(micro, 1).double()
                between = (share * real + (1 - share) * fake).requires_grad_()
                slope = manual_step.grad(critic(between), between, create_graph=True)
                penalty = ((slope.norm(dim=1) - 1) ** 2).mean()
                loss = critic(fake).mean() - critic(real).mean() + 10 * penalty
                manual_step.backward(loss, micro)
            seen.append(float(manual_step.clip("critic", 2.0)))
            manual_step.step("critic")
        for micro in manual_step.micro_batches("generator"):
            fake = generator(manual_step.randn(micro, 3).double())
            manual_step.backward(-critic(fake).mean(), micro)
        manual_step.step("generator")

    task = surestep.Task(
        ours_net,
        train=(X,),
        step=step,
        optimizers={
            "critic": surestep.Optim(name="adam", lr=0.01, betas=(0.0, 0.9), weight_decay=0.0),
            "generator": surestep.Optim(**SGD | {"lr": 0.05}),
        },
    )
    config = plain_config(epochs=2, batch_size=7, micro_batch_size=3, max_grad_norm=0.05)
    train(task, config)

    assert_same(norms, seen)
    assert_same(weights(plain_net), weights(ours_net))


def test_one_pass_for_two_optimizers_with_two_backwards_equals_one_by_hand() -> None:
    plain_net, ours_net = Pair(), Pair()
    first = torch.optim.SGD(plain_net.generator.parameters(), lr=0.05, momentum=0.9)
    second = torch.optim.SGD(plain_net.critic.parameters(), lr=0.02)
    losses = []
    for (x,) in in_batches(7, X):
        first.zero_grad()
        second.zero_grad()
        out = plain_net.generator(x[:, :3])
        one, two = F.mse_loss(out, x), plain_net.critic(out).square().mean()
        (one + 0.3 * two).backward()
        first.step()
        second.step()
        losses.append((one + 0.3 * two).item())

    def step(manual_step: surestep.ManualStep) -> None:
        models = manual_step.models
        for micro in manual_step.micro_batches("generator", "critic"):
            (x,) = micro.args
            out = models["generator"](x[:, :3])
            manual_step.backward(F.mse_loss(out, x), micro, retain_graph=True)
            manual_step.backward(0.3 * models["critic"](out).square().mean(), micro)
        manual_step.step("critic")
        manual_step.step("generator")

    task = surestep.Task(
        ours_net,
        train=(X,),
        step=step,
        optimizers={
            "generator": surestep.Optim(**SGD | {"lr": 0.05, "momentum": 0.9}),
            "critic": surestep.Optim(**SGD | {"lr": 0.02}),
        },
    )
    session = prepare(task, plain_config(epochs=1, batch_size=7, micro_batch_size=4))
    ours = [float(result.loss) for result in session.steps()]

    assert_same(weights(plain_net), weights(ours_net))
    assert_same(losses, ours)


def test_the_loss_of_a_step_is_the_sum_of_the_losses_of_its_passes() -> None:
    plain_net, ours_net = Pair(), Pair()
    losses = []
    first = torch.optim.SGD(plain_net.generator.parameters(), lr=0.05)
    second = torch.optim.SGD(plain_net.critic.parameters(), lr=0.02)
    for (x,) in in_batches(7, X):
        one = F.mse_loss(plain_net.generator(x[:, :3]), x)
        first.zero_grad()
        one.backward()
        first.step()
        two = plain_net.critic(x).square().mean()
        second.zero_grad()
        two.backward()
        second.step()
        losses.append((one + two).item())

    def step(manual_step: surestep.ManualStep) -> None:
        models = manual_step.models
        for micro in manual_step.micro_batches("generator"):
            (x,) = micro.args
            manual_step.backward(F.mse_loss(models["generator"](x[:, :3]), x), micro)
        manual_step.step("generator")
        for micro in manual_step.micro_batches("critic"):
            manual_step.backward(models["critic"](micro.args[0]).square().mean(), micro)
        manual_step.step("critic")

    task = surestep.Task(
        ours_net,
        train=(X,),
        step=step,
        optimizers={
            "generator": surestep.Optim(**SGD | {"lr": 0.05}),
            "critic": surestep.Optim(**SGD | {"lr": 0.02}),
        },
    )
    session = prepare(task, plain_config(epochs=1, batch_size=7, micro_batch_size=3))
    ours = [float(result.loss) for result in session.steps()]

    assert_same(losses, ours)
    assert_same(weights(plain_net), weights(ours_net))


def test_schedules_of_two_optimizers_and_the_average_follow_the_steps() -> None:
    plain_net, ours_net = Pair(), Pair()
    first = torch.optim.SGD(plain_net.generator.parameters(), lr=0.05, momentum=0.9)
    second = torch.optim.AdamW(plain_net.critic.parameters(), lr=0.02, weight_decay=0.0)
    average = torch.optim.swa_utils.AveragedModel(
        plain_net, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.7)
    )
    one = torch.optim.lr_scheduler.LinearLR(first, 1.0, 1e-9, total_iters=8)
    taken, rates = 0, []
    for _ in range(2):
        for (x,) in in_batches(7, X):
            first.zero_grad()
            F.mse_loss(plain_net.generator(x[:, :3]), x).backward()
            rates.append([first.param_groups[0]["lr"], 0.02])
            first.step()
            if taken % 3 == 2:
                second.zero_grad()
                plain_net.critic(plain_net.generator(x[:, :3]).detach()).square().mean().backward()
                second.step()
            one.step()
            average.update_parameters(plain_net)
            taken += 1

    def step(manual_step: surestep.ManualStep) -> None:
        models = manual_step.models
        for micro in manual_step.micro_batches("generator"):
            (x,) = micro.args
            manual_step.backward(F.mse_loss(models["generator"](x[:, :3]), x), micro)
        manual_step.step("generator")
        if manual_step.index % 3 == 2:
            for micro in manual_step.micro_batches("critic"):
                out = models["generator"](micro.args[0][:, :3])
                manual_step.backward(models["critic"](out).square().mean(), micro)
            manual_step.step("critic")

    task = surestep.Task(
        ours_net,
        train=(X,),
        step=step,
        optimizers={
            "generator": surestep.OptimizerSpec(
                surestep.Optim(**SGD | {"lr": 0.05, "momentum": 0.9}),
                schedule=surestep.Schedule(name="linear", warmup="0 steps"),
            ),
            "critic": surestep.Optim(name="adamw", lr=0.02, weight_decay=0.0),
        },
    )
    config = plain_config(
        epochs=2,
        batch_size=7,
        average={"kind": "ema", "decay": 0.7, "warmup": False, "start": 0},
    )
    session = prepare(task, config)
    ours = [
        [optimizer.param_groups[0]["lr"] for optimizer in session.state.optimizers.values()]
        for _ in session.steps()
    ]

    assert len(rates) == len(ours)
    assert max(abs(a[0] - b[0]) for a, b in zip(rates, ours, strict=True)) < 1e-9
    assert_same(rates[0], ours[0])
    with session.state.average.swapped_in():
        mean = weights(ours_net)
    off = max(
        float((mean[name] - value).abs().max()) for name, value in weights(average.module).items()
    )
    assert off < 1e-8


def test_logged_values_are_means_over_the_samples_of_uneven_micro_batches() -> None:
    net = Pair()
    plain = [
        [x.square().mean().item(), x.abs().mean().item(), (x[:, 0] - 1).mean().item()]
        for (x,) in in_batches(7, X)
    ]

    def step(manual_step: surestep.ManualStep) -> None:
        for micro in manual_step.micro_batches():
            (x,) = micro.args
            manual_step.log("square", x.square().mean())
            surestep.log("abs", x.abs().mean())
            out = manual_step.model.critic(manual_step.model.generator(x[:, :3]))
            manual_step.backward(out.mean() + 0 * x.sum(), micro)
        manual_step.log("after", x_mean[manual_step.index])
        manual_step.step("model")

    x_mean = [(x[:, 0] - 1).mean() for (x,) in in_batches(7, X)]
    task = surestep.Task(net, train=(X,), step=step)
    config = plain_config(epochs=1, batch_size=7, micro_batch_size=3)
    run = surestep.Trainer(task, config, run="run").fit()
    events = [event for event in run.events() if event["event"] == "steps"]
    ours = [
        list(values)
        for event in events
        for values in zip(
            *(event["logged"][name] for name in ("square", "abs", "after")), strict=True
        )
    ]
    assert_same(plain, ours)


def test_an_optimizer_has_the_options_of_the_config_if_it_has_its_name() -> None:
    options: dict[str, Any] = {"weight_decay": 0.3, "betas": (0.5, 0.6), "eps": 1e-3}
    plain_net = Pair()
    start = weights(plain_net)
    first = torch.optim.AdamW(plain_net.generator.parameters(), lr=0.05, **options)
    second = torch.optim.SGD(plain_net.critic.parameters(), lr=0.02)
    group = first.param_groups[0]
    biases = [weight for weight in group["params"] if weight.dim() < 2]
    group["params"] = [weight for weight in group["params"] if weight.dim() > 1]
    first.add_param_group(group | {"params": biases, "weight_decay": 0.0})
    for (x,) in in_batches(7, X):
        first.zero_grad()
        F.mse_loss(plain_net.generator(x[:, :3]), x).backward()
        first.step()
        second.zero_grad()
        plain_net.critic(x).square().mean().backward()
        second.step()

    def step(manual_step: surestep.ManualStep) -> None:
        models = manual_step.models
        for micro in manual_step.micro_batches("generator"):
            (x,) = micro.args
            manual_step.backward(F.mse_loss(models["generator"](x[:, :3]), x), micro)
        manual_step.step("generator")
        for micro in manual_step.micro_batches("critic"):
            manual_step.backward(models["critic"](micro.args[0]).square().mean(), micro)
        manual_step.step("critic")

    for name in ("adamw", surestep.NOT_SET):
        for named in ("adamw", surestep.NOT_SET):
            ours_net = Pair()
            ours_net.load_state_dict(start)
            task = surestep.Task(
                ours_net,
                train=(X,),
                step=step,
                optimizers={
                    "generator": surestep.Optim(name=name, lr=0.05),
                    "critic": surestep.Optim(name="sgd", lr=0.02),
                },
            )
            optim = options | {"name": named, "momentum": surestep.NOT_SET}
            train(task, plain_config(epochs=1, batch_size=7, optim=optim))
            assert_same(weights(plain_net), weights(ours_net))


def test_mixed_batch_of_a_manual_step_has_blended_targets() -> None:
    """The Task's loss is for evaluations; the step computes its own with the targets it gets."""
    x = torch.randn(14, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    y, seen = x[:, :3].argmax(1), []

    def step(manual_step: surestep.ManualStep) -> None:
        for micro in manual_step.micro_batches():
            seen.append(micro.targets)
            loss = nn.functional.cross_entropy(manual_step.model(*micro.args), micro.targets)
            manual_step.backward(loss, micro)
        manual_step.step("model")

    task = surestep.Task(
        nn.Linear(4, 3).double(),
        nn.CrossEntropyLoss(),
        step=step,
        train=(x, y),
        val=(x, y),
        batch_transform=surestep.batch_transforms.mixup(0.4, classes=3),
    )
    with surestep.prepare(task, plain_config(max_steps=2, batch_size=7)) as session:
        for _ in session.steps():
            pass
    assert_same(torch.ones(7).double(), seen[-1].double().sum(1))
