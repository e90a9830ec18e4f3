"""Manual steps over all kinds of data, in all precisions, resumed: equal to loops by hand."""

import copy
import random
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset

import surestep
from tests.twice.compare import (
    assert_same,
    in_batches,
    plain_config,
    prepare,
    seed_all,
    train,
    weights,
)
from tests.twice.test_manual_steps import SGD, Pair, X, Y, Z, noise, seed_of

SMALL = X.float()


def adversarial(manual_step: surestep.ManualStep) -> None:
    """Update the critic, then the generator."""
    models = manual_step.models
    for micro in manual_step.micro_batches("critic"):
        (real,) = micro.args
        fake = models["generator"](real[:, :3]).detach()
        loss = (
            F.softplus(models["critic"](fake)).mean() + F.softplus(-models["critic"](real)).mean()
        )
        manual_step.backward(loss, micro)
    manual_step.step("critic")
    for micro in manual_step.micro_batches("generator"):
        fake = models["generator"](micro.args[0][:, :3])
        manual_step.backward(F.softplus(-models["critic"](fake)).mean(), micro)
    manual_step.step("generator")


OPTIMIZERS = {
    "critic": surestep.Optim(**SGD | {"lr": 0.05, "momentum": 0.5}),
    "generator": surestep.Optim(**SGD | {"lr": 0.05}),
}


def adversarial_by_hand(
    model: Pair, dtype: torch.dtype, scaler: torch.amp.GradScaler, epochs: int = 2
) -> None:
    """Train as `adversarial` does, under autocast."""
    critic, generator = model.critic, model.generator
    of_critic = torch.optim.SGD(critic.parameters(), lr=0.05, momentum=0.5)
    of_generator = torch.optim.SGD(generator.parameters(), lr=0.05)
    for _ in range(epochs):
        for (real,) in in_batches(7, SMALL):
            for number, optimizer in enumerate((of_critic, of_generator)):
                optimizer.zero_grad()
                with torch.autocast("cpu", dtype=dtype, cache_enabled=False):
                    fake = generator(real[:, :3])
                    if number:
                        loss = F.softplus(-critic(fake)).mean()
                    else:
                        loss = F.softplus(critic(fake.detach())).mean()
                        loss = loss + F.softplus(-critic(real)).mean()
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()


def test_adversarial_step_in_16_bits_uses_the_weights_of_its_updates() -> None:
    for name, dtype in (("bf16", torch.bfloat16), ("fp16", torch.float16)):
        plain_net, ours_net = Pair(torch.float32), Pair(torch.float32)
        scaler = torch.amp.GradScaler("cpu", init_scale=256.0, enabled=name == "fp16")
        adversarial_by_hand(plain_net, dtype, scaler)

        task = surestep.Task(ours_net, train=(SMALL,), step=adversarial, optimizers=OPTIMIZERS)
        more: dict[str, Any] = {"scaler": {"init_scale": 256.0}} if name == "fp16" else {}
        train(task, plain_config(epochs=2, batch_size=7, precision=name, **more))

        assert_same(weights(plain_net), weights(ours_net))


class Boxes(Dataset[Any]):
    """Ready batches of different sizes."""

    sizes = (5, 1, 7, 3, 4)

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, index: int) -> Any:
        first = sum(self.sizes[:index])
        rows = slice(first, first + self.sizes[index])
        return {"x": X[rows], "z": Z[rows]}


def test_ready_batches_of_a_step_weigh_as_their_items() -> None:
    torch.manual_seed(0)
    plain_net = nn.Linear(4, 2).double()
    ours_net = copy.deepcopy(plain_net)
    optimizer, taken = torch.optim.SGD(plain_net.parameters(), lr=0.1), 0
    data = Boxes()
    for _ in range(2):
        for group in ((0, 1), (2, 3), (4,)):
            optimizer.zero_grad()
            rows = sum(len(data[index]["x"]) for index in group)
            for index in group:
                batch = data[index]
                generator = torch.Generator().manual_seed(seed_of("noise", 0, taken, 0, 0, index))
                shift = torch.randn((len(batch["x"]), 2), generator=generator).double()
                loss = F.mse_loss(plain_net(batch["x"]) + 0.1 * shift, batch["z"])
                (loss * len(batch["x"]) / rows).backward()
            optimizer.step()
            taken += 1

    def step(manual_step: surestep.ManualStep) -> None:
        for micro in manual_step.micro_batches():
            x, z = micro.kwargs["x"], micro.kwargs["z"]
            shift = manual_step.randn(micro, 2).double()
            manual_step.backward(F.mse_loss(manual_step.model(x) + 0.1 * shift, z), micro)
        manual_step.step("model")

    task = surestep.Task(ours_net, train=Boxes(), step=step, batched=True)
    train(task, plain_config(epochs=2, batch_size=2))

    assert_same(weights(plain_net), weights(ours_net))


class Policy(nn.Module):
    """A policy with a running baseline."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Linear(2, 3).double()
        self.register_buffer("baseline", torch.zeros((), dtype=torch.float64))


def play(model: Policy) -> tuple[Tensor, Tensor]:
    """Play 11 games, with numbers of torch, numpy and Python; return loss and rewards."""
    state = torch.tensor(np.random.randn(11, 2)) * random.uniform(0.5, 1.5)
    chosen = torch.distributions.Categorical(logits=model.net(state))
    action = chosen.sample()
    reward = (action == (state[:, 0] > 0).long()).double() + 0.1 * torch.randn(11).double()
    loss = -(chosen.log_prob(action) * (reward - model.baseline)).mean()
    model.baseline.lerp_(reward.mean(), 0.2)
    return loss, reward


def test_step_without_data_draws_the_same_after_a_resume() -> None:
    plain_net = Policy()
    optimizer = torch.optim.SGD(plain_net.parameters(), lr=0.1)
    rewards = []
    for step in range(9):
        seed_all("model", 0, step, step, 0)  # the data of a step is one element
        optimizer.zero_grad()
        loss, reward = play(plain_net)
        loss.backward()
        optimizer.step()
        rewards.append(reward.mean().item())

    ours = []

    def step_of(manual_step: surestep.ManualStep) -> None:
        for micro in manual_step.micro_batches():
            loss, reward = play(manual_step.model)
            ours.append(reward.mean().item())
            manual_step.backward(loss, micro)
        manual_step.step("model")

    for stop in (4, 5, 100):
        ours_net = Policy()
        task = surestep.Task(ours_net, step=step_of)
        with surestep.prepare(task, plain_config(max_steps=9), run="run") as session:
            for result in session.steps():
                if result.step == stop:
                    session.save()
                    break

    assert_same(rewards, ours)
    assert_same(weights(plain_net), weights(ours_net))


def test_step_with_a_loss_for_evaluations_weighs_by_its_items() -> None:
    labels = torch.stack([Y, (X[:, 1] > 0).long(), (X[:, 2] > 0).long()], dim=1)
    labels[3, :] = -100
    labels[10:12, 1:] = -100
    labels[21:, 0] = -100

    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.net = nn.Linear(4, 6).double()

        def forward(self, x: Tensor) -> Tensor:
            return self.net(x).reshape(len(x), 2, 3)

    plain_net, ours_net = Tagger(), Tagger()
    optimizer = torch.optim.SGD(plain_net.parameters(), lr=0.1)
    for x, targets in in_batches(7, X, labels):
        optimizer.zero_grad()
        F.cross_entropy(plain_net(x), targets).backward()
        optimizer.step()
    with torch.no_grad():
        plain = float(F.cross_entropy(plain_net(X), labels))

    def step(manual_step: surestep.ManualStep) -> None:
        for micro in manual_step.micro_batches():
            loss = F.cross_entropy(manual_step.model(*micro.args), micro.targets)
            manual_step.backward(loss, micro)
        manual_step.step("model")

    task = surestep.Task(
        ours_net, nn.CrossEntropyLoss(), train=(X, labels), val=(X, labels), step=step
    )
    session = train(task, plain_config(epochs=1, batch_size=7, micro_batch_size=3))

    assert_same(weights(plain_net), weights(ours_net))
    assert_same(plain, session.evaluate()["val/loss"])


def test_own_batches_of_different_sizes_in_manual_steps() -> None:
    plain_net, ours_net = Pair(), Pair()
    optimizer = torch.optim.SGD(plain_net.generator.parameters(), lr=0.05, momentum=0.9)
    cuts = [(0, 5, 6), (6, 13, 23), (2, 3, 4)]
    for number, (a, _, c) in enumerate(cuts):
        optimizer.zero_grad()
        x = X[a:c]
        shift = noise(number, 0, 0, len(x), 4)
        F.mse_loss(plain_net.generator(x[:, :3]), x + shift).backward()
        optimizer.step()

    def step(manual_step: surestep.ManualStep) -> None:
        for micro in manual_step.micro_batches("generator"):
            (x,) = micro.args
            shift = manual_step.randn(micro, 4).double()
            loss = F.mse_loss(manual_step.models["generator"](x[:, :3]), x + shift)
            manual_step.backward(loss, micro)
        manual_step.step("generator")

    task = surestep.Task(
        ours_net,
        train=(X,),
        items=lambda batch: len(batch[0]),
        step=step,
        optimizers={
            "generator": surestep.Optim(**SGD | {"lr": 0.05, "momentum": 0.9}),
            "critic": surestep.Optim(**SGD),
        },
    )
    session = prepare(task, plain_config(max_steps=3, batch_size=7))
    for a, b, c in cuts:
        session.train_step([(X[a:b],), (X[b:c],)])

    assert_same(weights(plain_net), weights(ours_net))


def test_weights_that_are_clamped_after_an_update_stay_clamped() -> None:
    plain_net, ours_net = Pair(), Pair()
    optimizer = torch.optim.RMSprop(plain_net.critic.parameters(), lr=0.01)
    for _ in range(2):
        for x, z in in_batches(7, X, Z):
            optimizer.zero_grad()
            (plain_net.critic(x).squeeze(1) * z[:, 0]).mean().backward()
            optimizer.step()
            with torch.no_grad():
                for weight in plain_net.critic.parameters():
                    weight.clamp_(-0.2, 0.2)

    def step(manual_step: surestep.ManualStep) -> None:
        critic = manual_step.models["critic"]
        for micro in manual_step.micro_batches("critic"):
            x, z = micro.args
            manual_step.backward((critic(x).squeeze(1) * z[:, 0]).mean(), micro)
        manual_step.step("critic")
        with torch.no_grad():
            for weight in critic.parameters():
                weight.clamp_(-0.2, 0.2)

    task = surestep.Task(
        ours_net,
        train=(X, Z),
        step=step,
        optimizers={
            "generator": surestep.Optim(**SGD),
            "critic": lambda groups: torch.optim.RMSprop(groups, lr=0.01),
        },
    )
    train(task, plain_config(epochs=2, batch_size=7, micro_batch_size=5))

    assert_same(weights(plain_net), weights(ours_net))


class Shared(nn.Module):
    """Two heads on a trunk with a norm; the embedding is tied to a head."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(5, 6)
        self.trunk = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Tanh())
        self.policy, self.value = nn.Linear(6, 5, bias=False), nn.Linear(6, 1)
        self.policy.weight = self.table.weight
        self.frozen = nn.Linear(6, 6)
        self.frozen.requires_grad_(False)
        self.double()

    def features(self, tokens: Tensor) -> Tensor:
        return self.trunk(self.frozen(self.table(tokens)))


TOKENS = torch.randint(0, 5, (23,), generator=torch.Generator().manual_seed(5))


def test_optimizers_of_named_submodules_with_tied_and_frozen_weights() -> None:
    plain_net, ours_net = Shared(), Shared()
    main = [*plain_net.table.parameters(), *plain_net.trunk.parameters()]
    first = torch.optim.SGD(main, lr=0.1, momentum=0.9, nesterov=True)
    second = torch.optim.SGD(plain_net.value.parameters(), lr=0.3)
    for tokens, z in in_batches(7, TOKENS, Z):
        features = plain_net.features(tokens)
        loss = F.cross_entropy(plain_net.policy(features), tokens.flip(0))
        first.zero_grad()
        loss.backward()
        nn.utils.clip_grad_value_(main, 0.05)
        first.step()
        second.zero_grad()
        F.mse_loss(plain_net.value(plain_net.features(tokens).detach()), z[:, :1]).backward()
        nn.utils.clip_grad_value_(plain_net.value.parameters(), 0.05)
        second.step()

    def step(manual_step: surestep.ManualStep) -> None:
        model = manual_step.model
        for micro in manual_step.micro_batches("main"):
            tokens, _ = micro.args
            loss = F.cross_entropy(model.policy(model.features(tokens)), tokens.flip(0))
            manual_step.backward(loss, micro)
        manual_step.step("main")
        for micro in manual_step.micro_batches("value"):
            tokens, z = micro.args
            loss = F.mse_loss(model.value(model.features(tokens).detach()), z[:, :1])
            manual_step.backward(loss, micro)
        manual_step.step("value")

    task = surestep.Task(
        ours_net,
        train=(TOKENS, Z),
        step=step,
        optimizers={
            "main": surestep.OptimizerSpec(
                surestep.Optim(**SGD | {"lr": 0.1, "momentum": 0.9}, nesterov=True),
                modules=["table", "trunk", "policy"],
            ),
            "value": surestep.Optim(**SGD | {"lr": 0.3}),
        },
    )
    train(task, plain_config(epochs=1, batch_size=7, clip_value=0.05))

    assert_same(weights(plain_net), weights(ours_net))


def test_evaluations_between_manual_steps_change_nothing() -> None:
    def step(manual_step: surestep.ManualStep) -> None:
        for micro in manual_step.micro_batches():
            x = F.dropout(micro.args[0], 0.3)
            manual_step.backward(F.mse_loss(manual_step.model(x), micro.targets), micro)
        manual_step.step("model")

    plain, ours = [], []
    for evaluates, found in ((False, plain), (True, ours)):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(), nn.Linear(6, 2))
        task = surestep.Task(
            model.double(), nn.MSELoss(), train=(X, Z), val=(X[:11], Z[:11]), step=step
        )
        session = prepare(task, plain_config(epochs=2, batch_size=7, micro_batch_size=4))
        for result in session.steps():
            found.append(float(result.loss))
            if evaluates:
                session.evaluate()
                session.evaluate("train")
                session.predict("val", mc_dropout=3)
        found.append(weights(model))

    assert_same(plain, ours, exact=True)


def regress(manual_step: surestep.ManualStep) -> None:
    """Take a usual step."""
    for micro in manual_step.micro_batches():
        manual_step.backward(F.mse_loss(manual_step.model(*micro.args), micro.targets), micro)
    manual_step.step("model")


def test_plateau_of_the_validation_loss_lowers_the_rate_of_manual_steps() -> None:
    torch.manual_seed(0)
    plain_net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2)).double()
    ours_net = copy.deepcopy(plain_net)
    optimizer = torch.optim.SGD(plain_net.parameters(), lr=0.5)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(
        optimizer, factor=0.3, patience=0, threshold=0.0
    )
    for _ in range(8):
        for x, z in in_batches(5, X[:13], Z[:13]):
            optimizer.zero_grad()
            F.mse_loss(plain_net(x), z).backward()
            optimizer.step()
        with torch.no_grad():
            scheduler.step(F.mse_loss(plain_net(X[13:]), Z[13:]).item())
    assert optimizer.param_groups[0]["lr"] < 0.5

    task = surestep.Task(
        ours_net, nn.MSELoss(), train=(X[:13], Z[:13]), val=(X[13:], Z[13:]), step=regress
    )
    schedule = {"name": "reduce_on_plateau", "factor": 0.3, "patience": 0, "warmup": "0 steps"}
    config = plain_config(epochs=8, batch_size=5, optim={"lr": 0.5}, schedule=schedule)
    surestep.Trainer(task, config).fit()

    assert_same(weights(plain_net), weights(ours_net))


def test_rate_of_stochastic_averaging_in_manual_steps_is_torchs() -> None:
    torch.manual_seed(0)
    plain_net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2)).double()
    ours_net = copy.deepcopy(plain_net)
    optimizer = torch.optim.SGD(plain_net.parameters(), lr=0.2)
    average = torch.optim.swa_utils.AveragedModel(plain_net)
    rates = torch.optim.swa_utils.SWALR(optimizer, swa_lr=0.05, anneal_epochs=3)
    taken = 0
    for _ in range(3):
        for x, z in in_batches(5, X[:13], Z[:13]):
            optimizer.zero_grad()
            F.mse_loss(plain_net(x), z).backward()
            optimizer.step()
            taken += 1
            if taken > 4:
                average.update_parameters(plain_net)
                rates.step()
    with torch.no_grad():
        plain = F.mse_loss(average(X[13:]), Z[13:]).item()

    task = surestep.Task(
        ours_net, nn.MSELoss(), train=(X[:13], Z[:13]), val=(X[13:], Z[13:]), step=regress
    )
    swa = {"kind": "swa", "start": "4 steps", "every": "1 step", "buffers": "copy"}
    config = plain_config(
        epochs=3,
        batch_size=5,
        optim={"lr": 0.2},
        average=swa | {"lr": 0.05, "anneal": "3 steps"},
    )
    session = train(task, config)

    assert_same(weights(plain_net), weights(ours_net))
    assert_same(plain, session.evaluate()["val/loss"])


def freezing(manual_step: surestep.ManualStep) -> None:
    """Update both networks, each with the other one frozen, and leave the critic frozen."""
    models = manual_step.models
    for name, other in (("critic", "generator"), ("generator", "critic")):
        models[name].requires_grad_(True)
        models[other].requires_grad_(False)
        for micro in manual_step.micro_batches(name):
            (real,) = micro.args
            loss = F.softplus(models["critic"](models["generator"](real[:, :3]))).mean()
            if name == "critic":
                loss = loss + F.softplus(-models["critic"](real)).mean()
            manual_step.backward(loss if name == "critic" else -loss, micro)
        manual_step.step(name)


def test_networks_that_are_frozen_alternately_are_saved_and_trained() -> None:
    plain_net = Pair()
    critic, generator = plain_net.critic, plain_net.generator
    of_critic = torch.optim.Adam(critic.parameters(), lr=0.01)
    of_generator = torch.optim.SGD(generator.parameters(), lr=0.05, momentum=0.9)
    for (real,) in (*in_batches(7, X), *in_batches(7, X)):
        of_critic.zero_grad()
        loss = F.softplus(critic(generator(real[:, :3]).detach())).mean()
        (loss + F.softplus(-critic(real)).mean()).backward()
        of_critic.step()
        of_generator.zero_grad()
        (-F.softplus(critic(generator(real[:, :3]))).mean()).backward()
        of_generator.step()

    optimizers = {
        "critic": surestep.Optim(name="adam", lr=0.01, weight_decay=0.0),
        "generator": surestep.Optim(**SGD | {"lr": 0.05, "momentum": 0.9}),
    }
    config = plain_config(epochs=2, batch_size=7, micro_batch_size=4)
    for stop in (3, 100):
        ours_net = Pair()
        task = surestep.Task(ours_net, train=(X,), step=freezing, optimizers=optimizers)
        with surestep.prepare(task, config, run="run") as session:
            for result in session.steps():
                if result.step == stop:
                    session.save()
                    break

    assert_same(weights(plain_net), weights(ours_net))
