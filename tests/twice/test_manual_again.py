"""Manual steps again: perturbed weights, target networks, hooks, inner loops, and own loops."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

import surestep
from surestep.base.errors import NonFiniteError
from tests.twice.compare import assert_same, in_batches, plain_config, prepare, train, weights

G = torch.Generator().manual_seed(31)
X = torch.randn(23, 4, generator=G, dtype=torch.float64)  # batches of 7, the last of two
Z = torch.randn(23, 2, generator=G, dtype=torch.float64)
BAD = X.clone()
BAD[9] = torch.nan  # in the second batch
SGD: dict[str, Any] = {"name": "sgd", "weight_decay": 0.0, "momentum": 0.0}
SKIP: dict[str, Any] = {"batch_size": 7, "on_nonfinite": "skip"}


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2)).double()


class Online(nn.Module):
    """A network and its slow copy, which no optimizer trains."""

    def __init__(self) -> None:
        super().__init__()
        self.online, self.target = net(), net()
        self.target.requires_grad_(False)

    @torch.no_grad()
    def follow(self) -> None:
        for slow, fast in zip(self.target.parameters(), self.online.parameters(), strict=True):
            slow.lerp_(fast, 0.3)


def optim(fused: bool) -> surestep.Optim:
    if fused:
        return surestep.Optim(name="adamw", lr=0.01, weight_decay=0.0)
    return surestep.Optim(**SGD | {"lr": 0.1, "momentum": 0.9})


def whole(fused: bool) -> surestep.OptimizerSpec:
    return surestep.OptimizerSpec(optim(fused), modules=["0", "2"])


def plain_optim(fused: bool, module: nn.Module) -> torch.optim.Optimizer:
    if fused:
        return torch.optim.AdamW(module.parameters(), lr=0.01, weight_decay=0.0)
    return torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)


@pytest.mark.parametrize("by_data", [False, True])
@pytest.mark.parametrize("fused", [False, True])
def test_step_at_perturbed_weights_that_is_skipped_leaves_the_weights(
    fused: bool, by_data: bool
) -> None:
    def move(model: nn.Module, moves: list[Tensor], sign: int) -> None:
        for p, change in zip(model.parameters(), moves, strict=True):
            if by_data:  # which changes no version of the parameter
                p.data.add_(change, alpha=sign)
            else:
                with torch.no_grad():
                    p.add_(change, alpha=sign)

    plain_net, ours_net = net(), net()
    optimizer = plain_optim(fused, plain_net)
    for _ in range(2):
        for x, z in in_batches(7, BAD, Z):
            loss = F.mse_loss(plain_net(x), z)
            if not loss.isfinite():
                continue
            grads = torch.autograd.grad(loss, list(plain_net.parameters()))
            size = torch.stack([g.norm() for g in grads]).norm()
            moves = [0.05 * g / size for g in grads]
            move(plain_net, moves, 1)
            optimizer.zero_grad()
            F.mse_loss(plain_net(x), z).backward()
            move(plain_net, moves, -1)
            optimizer.step()

    def step(manual_step: surestep.ManualStep) -> None:
        model = manual_step.model
        for micro in manual_step.micro_batches("model"):
            x, z = micro.args
            loss = F.mse_loss(model(x), z)
            grads = manual_step.grad(loss, list(model.parameters()))
            size = torch.stack([g.norm() for g in grads]).norm()
            moves = [0.05 * g / size for g in grads]
            move(model, moves, 1)
            manual_step.backward(F.mse_loss(model(x), z), micro)
            move(model, moves, -1)
        manual_step.step("model")

    task = surestep.Task(ours_net, train=(BAD, Z), step=step, optimizers={"model": whole(fused)})
    session = train(task, plain_config(epochs=2, **SKIP))
    assert session.state.counts.nonfinite == 2
    assert_same(weights(plain_net), weights(ours_net))


@pytest.mark.parametrize("updates", [1, 2])
def test_failed_step_is_undone_on_the_device_with_writes_through_data(updates: int) -> None:
    plain_net, ours_net = net(), net()
    optimizer = plain_optim(True, plain_net)

    def after(model: nn.Module) -> None:
        for p in model.parameters():
            p.data.mul_(0.9)

    for _ in range(updates):
        optimizer.zero_grad()
        F.mse_loss(plain_net(X[:7]), Z[:7]).backward()
        optimizer.step()
        after(plain_net)

    def step(manual_step: surestep.ManualStep) -> None:
        for number in range(updates):
            for micro in manual_step.micro_batches("model"):
                x, bad, z = micro.args
                inputs = bad if number == updates - 1 else x
                manual_step.backward(F.mse_loss(manual_step.model(inputs), z), micro)
            manual_step.step("model")
            after(manual_step.model)

    task = surestep.Task(ours_net, train=(X, BAD, Z), step=step, optimizers={"model": whole(True)})
    session = prepare(task, plain_config(epochs=1, batch_size=7))
    with pytest.raises(NonFiniteError, match="Step 2 "):
        list(session.steps())
    plain_slots = [optimizer.state[p] for p in plain_net.parameters()]
    ours_slots = [session.state.optimizer.state[p] for p in ours_net.parameters()]
    assert_same([weights(plain_net), plain_slots], [weights(ours_net), ours_slots])


def test_only_update_of_a_finite_step_writes_the_state_once() -> None:
    def step(manual_step: surestep.ManualStep) -> None:
        for micro in manual_step.micro_batches("model"):
            x, z = micro.args
            manual_step.backward(F.mse_loss(manual_step.model(x), z), micro)
        manual_step.step("model")

    ours_net = net()
    task = surestep.Task(ours_net, train=(X, Z), step=step, optimizers={"model": whole(True)})
    session = prepare(task, plain_config(epochs=2, batch_size=7))
    list(session.steps())
    slots = session.state.optimizer.state[next(ours_net.parameters())]
    assert slots["exp_avg"]._version == 0  # the fused kernel changes none; another write would


@pytest.mark.parametrize("fused", [False, True])
def test_target_network_does_not_follow_in_a_skipped_step(
    fused: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    plain_net, ours_net = Online(), Online()
    optimizer = plain_optim(fused, plain_net.online)
    for _ in range(2):
        for x, z in in_batches(7, BAD, Z):
            loss = F.mse_loss(plain_net.online(x), z + 0.5 * plain_net.target(x))
            if not loss.isfinite():
                continue
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            plain_net.follow()

    def step(manual_step: surestep.ManualStep) -> None:
        model: Any = manual_step.model
        for micro in manual_step.micro_batches("online"):
            x, z = micro.args
            with torch.no_grad():
                wanted = z + 0.5 * model.target(x)
            manual_step.backward(F.mse_loss(model.online(x), wanted), micro)
        manual_step.step("online")
        model.follow()

    task = surestep.Task(ours_net, train=(BAD, Z), step=step, optimizers={"online": optim(fused)})
    shown: dict[str, Any] = {"logging": {"progress": "plain"}}
    train(task, plain_config(epochs=2, micro_batch_size=3, **SKIP, **shown))
    printed = capsys.readouterr()
    assert "Sample 9 (position 9) caused it" in printed.out + printed.err  # by a diagnosis
    assert_same(weights(plain_net), weights(ours_net))


def test_target_network_that_followed_before_the_bad_pass_is_as_it_was() -> None:
    class Two(Online):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(2, 2).double()

    plain_net, ours_net = Two(), Two()
    start = copy.deepcopy(plain_net.state_dict())
    ours_net.load_state_dict(start)
    of_online = torch.optim.SGD(plain_net.online.parameters(), lr=0.1)
    of_head = torch.optim.SGD(plain_net.head.parameters(), lr=0.1)
    for x, z in in_batches(7, X, BAD[:, :2]):
        if not z.isfinite().all():
            continue
        of_online.zero_grad()
        plain_net.online(x).square().mean().backward()
        of_online.step()
        plain_net.follow()
        of_head.zero_grad()
        F.mse_loss(plain_net.head(plain_net.target(x)), z).backward()
        of_head.step()

    def step(manual_step: surestep.ManualStep) -> None:
        model: Any = manual_step.model
        for micro in manual_step.micro_batches("online"):
            manual_step.backward(model.online(micro.args[0]).square().mean(), micro)
        manual_step.step("online")
        model.follow()
        for micro in manual_step.micro_batches("head"):
            x, z = micro.args
            manual_step.backward(F.mse_loss(model.head(model.target(x)), z), micro)
        manual_step.step("head")

    task = surestep.Task(
        ours_net,
        train=(X, BAD[:, :2].contiguous()),
        step=step,
        optimizers={
            "online": surestep.Optim(**SGD | {"lr": 0.1}),
            "head": surestep.Optim(**SGD | {"lr": 0.1}),
        },
    )
    train(task, plain_config(epochs=1, **SKIP))
    assert_same(weights(plain_net), weights(ours_net))


@pytest.mark.parametrize("saved", ["all", "trained"])
@pytest.mark.parametrize("by_data", [False, True])
def test_target_network_continues_after_a_resume(saved: str, by_data: bool) -> None:
    def follow(model: Any) -> None:
        if not by_data:
            return model.follow()
        for slow, fast in zip(model.target.parameters(), model.online.parameters(), strict=True):
            slow.data.mul_(0.7).add_(0.3 * fast.data)

    plain_net = Online()
    optimizer = torch.optim.SGD(plain_net.online.parameters(), lr=0.1, momentum=0.9)
    for _ in range(2):
        for x, z in in_batches(7, X, Z):
            optimizer.zero_grad()
            F.mse_loss(plain_net.online(x), z + 0.5 * plain_net.target(x)).backward()
            optimizer.step()
            follow(plain_net)

    def step(manual_step: surestep.ManualStep) -> None:
        model: Any = manual_step.model
        for micro in manual_step.micro_batches("online"):
            x, z = micro.args
            with torch.no_grad():
                wanted = z + 0.5 * model.target(x)
            manual_step.backward(F.mse_loss(model.online(x), wanted), micro)
        manual_step.step("online")
        follow(model)

    for stop in (3, 6, 100):
        ours_net = Online()
        task = surestep.Task(ours_net, train=(X, Z), step=step, optimizers={"online": optim(False)})
        config = plain_config(epochs=2, batch_size=7, checkpoint={"weights": saved})
        with surestep.prepare(task, config, run="run") as session:
            for result in session.steps():
                if result.step == stop:
                    session.save()
                    break
    assert_same(weights(plain_net), weights(ours_net))


class Words(nn.Module):
    """Embeddings of which some rows are kept, by a hook; with sparse gradients."""

    def __init__(self, sparse: bool) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.table = nn.Embedding(5, 3, sparse=sparse).double()
        self.head = nn.Linear(3, 2).double()
        self.seen: list[str] = []
        if not sparse:
            keep = torch.tensor([0.0, 1.0, 1.0, 0.0, 1.0], dtype=torch.float64)[:, None]
            self.table.weight.register_hook(lambda grad: grad * keep)
        self.head.weight.register_hook(lambda grad: grad.clamp(-0.05, 0.05))

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.table(tokens).mean(1))


TOKENS = torch.randint(0, 5, (23, 3), generator=G)


@pytest.mark.parametrize("sparse", [False, True])
def test_hooks_and_sparse_gradients_are_those_of_a_backward_pass(sparse: bool) -> None:
    plain_net, ours_net = Words(sparse), Words(sparse)
    of_table = torch.optim.SGD(plain_net.table.parameters(), lr=0.5)
    of_head = torch.optim.SGD(plain_net.head.parameters(), lr=0.2)
    for tokens, z in in_batches(7, TOKENS, Z):
        of_table.zero_grad()
        of_head.zero_grad()
        F.mse_loss(plain_net(tokens), z).backward()
        of_table.step()
        of_head.step()

    def step(manual_step: surestep.ManualStep) -> None:
        for micro in manual_step.micro_batches("table", "head"):
            tokens, z = micro.args
            manual_step.backward(F.mse_loss(manual_step.model(tokens), z), micro)
        manual_step.step("table")
        manual_step.step("head")

    task = surestep.Task(
        ours_net,
        train=(TOKENS, Z),
        step=step,
        optimizers={
            "table": surestep.Optim(**SGD | {"lr": 0.5}),
            "head": surestep.Optim(**SGD | {"lr": 0.2}),
        },
    )
    train(task, plain_config(epochs=1, batch_size=7))
    assert_same(weights(plain_net), weights(ours_net))


def test_gradients_through_inner_updates_are_those_of_a_loop_by_hand() -> None:
    def outer(model: nn.Module, x: Tensor, z: Tensor, grad: Callable[..., Any]) -> Tensor:
        names = dict(model.named_parameters())
        fast = dict(names)
        for _ in range(2):
            loss = F.mse_loss(functional_call(model, fast, (x[::2],)), z[::2])
            grads = grad(loss, list(fast.values()), create_graph=True)
            fast = {n: w - 0.2 * g for (n, w), g in zip(fast.items(), grads, strict=True)}
        return F.mse_loss(functional_call(model, fast, (x[1::2],)), z[1::2])

    plain_net, ours_net = net(), net()
    optimizer = torch.optim.Adam(plain_net.parameters(), lr=0.02)
    losses = []
    for _ in range(2):
        for x, z in in_batches(7, X, Z):
            optimizer.zero_grad()
            loss = outer(plain_net, x, z, torch.autograd.grad)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())

    def step(manual_step: surestep.ManualStep) -> None:
        for micro in manual_step.micro_batches():
            loss = outer(manual_step.model, *micro.args, manual_step.grad)
            manual_step.backward(loss, micro)
        manual_step.step("model")

    task = surestep.Task(ours_net, train=(X, Z), step=step)
    adam = {"name": "adam", "lr": 0.02, "momentum": surestep.NOT_SET}
    session = prepare(task, plain_config(epochs=2, batch_size=7, optim=adam))
    ours = [float(result.loss) for result in session.steps()]
    assert_same([losses, weights(plain_net)], [ours, weights(ours_net)])


class Normed(nn.Module):
    """A generator with batch statistics and a critic with spectral norms."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        norm = nn.utils.parametrizations.spectral_norm
        self.generator = nn.Sequential(nn.Linear(2, 5), nn.BatchNorm1d(5), nn.Linear(5, 4)).double()
        self.critic = nn.Sequential(
            norm(nn.Linear(4, 6).double()), nn.ReLU(), norm(nn.Linear(6, 1).double())
        )


def test_batch_statistics_and_spectral_norms_move_once_for_each_forward() -> None:
    plain_net = Normed()
    ours_net = copy.deepcopy(plain_net)
    of_critic = torch.optim.RMSprop(plain_net.critic.parameters(), lr=0.01)
    of_generator = torch.optim.SGD(plain_net.generator.parameters(), lr=0.1)
    norms = []
    for _ in range(2):
        for x, z in in_batches(7, X, Z):
            of_critic.zero_grad()
            fake = plain_net.generator(z).detach()
            score = plain_net.critic(torch.cat([x, fake])).squeeze(1)
            (F.relu(1 - score[: len(x)]).mean() + F.relu(1 + score[len(x) :]).mean()).backward()
            nn.utils.clip_grad_value_(plain_net.critic.parameters(), 0.03)
            of_critic.step()
            of_generator.zero_grad()
            (-plain_net.critic(plain_net.generator(z)).mean()).backward()
            norms.append(nn.utils.clip_grad_norm_(plain_net.generator.parameters(), 0.1).item())
            of_generator.step()

    seen = []

    def step(manual_step: surestep.ManualStep) -> None:
        critic, generator = manual_step.models["critic"], manual_step.models["generator"]
        for micro in manual_step.micro_batches("critic"):
            x, z = micro.args
            score = critic(torch.cat([x, generator(z).detach()])).squeeze(1)
            loss = F.relu(1 - score[: len(x)]).mean() + F.relu(1 + score[len(x) :]).mean()
            manual_step.backward(loss, micro)
        manual_step.step("critic")
        for micro in manual_step.micro_batches("generator"):
            manual_step.backward(-critic(generator(micro.args[1])).mean(), micro)
        seen.append(float(manual_step.clip("generator", 0.1)))
        manual_step.step("generator")

    task = surestep.Task(
        ours_net,
        train=(X, Z),
        step=step,
        optimizers={
            "critic": lambda groups: torch.optim.RMSprop(groups, lr=0.01),
            "generator": surestep.Optim(**SGD | {"lr": 0.1}),
        },
    )
    train(task, plain_config(epochs=2, batch_size=7, clip_value=0.03))
    assert_same(norms, seen)
    assert_same(weights(plain_net), weights(ours_net))


def test_weighted_items_of_a_manual_step_are_one_full_batch() -> None:
    weight = torch.rand(23, generator=G, dtype=torch.float64) * (torch.arange(23) % 4 > 0)

    def mean(model: nn.Module, x: Tensor, z: Tensor, w: Tensor) -> Tensor:
        return ((model(x) - z).square().sum(1) * w).sum() / w.sum()

    plain_net = net()
    optimizer, losses = torch.optim.SGD(plain_net.parameters(), lr=0.1), []
    for x, z, w in in_batches(7, X, Z, weight):
        optimizer.zero_grad()
        loss = mean(plain_net, x, z, w)
        loss.backward()
        optimizer.step()
        losses.append([loss.item(), float(w.sum()), float((w * x[:, 0]).sum() / w.sum())])

    def step(manual_step: surestep.ManualStep) -> None:
        for micro in manual_step.micro_batches():
            x, _, w = micro.args
            manual_step.log("input", (w * x[:, 0]).sum() / w.sum())
            manual_step.backward(mean(manual_step.model, *micro.args), micro)
        manual_step.step("model")

    for size in (7, 3, 1):
        ours_net = net()
        task = surestep.Task(
            ours_net,
            train=(X, Z, weight),
            step=step,
            items=lambda batch: float(batch[2].sum()),
        )
        session = prepare(task, plain_config(epochs=1, batch_size=7, micro_batch_size=size))
        ours = [[float(r.loss), r.items] for r in session.steps()]
        session.close()
        logged = [
            value
            for event in session.run.events()
            if event["event"] == "steps"
            for value in event["logged"]["input"]
        ]
        ours = [[*row, value] for row, value in zip(ours, logged, strict=True)]
        assert_same([losses, weights(plain_net)], [ours, weights(ours_net)])


def test_teacher_that_follows_in_an_own_loop_is_the_one_of_the_next_step() -> None:
    def loss(outputs: Tensor, targets: Any) -> Tensor:
        return F.mse_loss(outputs, targets[0]) + 0.5 * F.l1_loss(outputs, targets[1])

    def follow(teacher: nn.Module, student: nn.Module) -> None:
        with torch.no_grad():
            for slow, fast in zip(teacher.parameters(), student.parameters(), strict=True):
                slow.lerp_(fast, 0.2)

    plain_net, plain_teacher = net(), net()
    optimizer, losses = torch.optim.SGD(plain_net.parameters(), lr=0.1), []
    for _ in range(2):
        for x, z in in_batches(7, X, Z):
            optimizer.zero_grad()
            with torch.no_grad():
                taught = plain_teacher(x)
            value = loss(plain_net(x), (z, taught))
            value.backward()
            optimizer.step()
            losses.append(value.item())
            follow(plain_teacher, plain_net)
    ours_net, teacher = net(), net()
    task = surestep.Task(ours_net, loss, teacher=teacher, train=(X, Z))
    session = prepare(task, plain_config(epochs=2, batch_size=7, micro_batch_size=3))
    ours = []
    for result in session.steps():
        ours.append(float(result.loss))
        follow(teacher, ours_net)
    assert_same([losses, weights(plain_net)], [ours, weights(ours_net)])


def test_own_loop_that_scales_gradients_and_weights_in_callbacks() -> None:
    class Scaled(surestep.Callback):
        """Halve the gradient of a layer before clipping, and shrink a weight after each step."""

        def on_backward(self, state: Any) -> None:
            for weight in state.model[0].parameters():
                weight.grad.mul_(0.5)

        def on_step(self, state: Any, result: Any) -> None:
            with torch.no_grad():
                state.model[2].weight.mul_(0.99)

    plain_net, ours_net = net(), net()
    optimizer, norms = torch.optim.SGD(plain_net.parameters(), lr=0.1, momentum=0.9), []
    for _ in range(2):
        for x, z in in_batches(7, X, Z):
            optimizer.zero_grad()
            F.mse_loss(plain_net(x), z).backward()
            for weight in plain_net[0].parameters():  # type: ignore[index]
                weight.grad.mul_(0.5)
            norms.append(nn.utils.clip_grad_norm_(plain_net.parameters(), 0.3).item())
            optimizer.step()
            with torch.no_grad():
                plain_net[2].weight.mul_(0.99)  # type: ignore[index]
    task = surestep.Task(ours_net, nn.MSELoss(), train=(X, Z))
    config = plain_config(
        epochs=2, batch_size=7, micro_batch_size=3, max_grad_norm=0.3, optim={"momentum": 0.9}
    )
    session = prepare(task, config, callbacks=[Scaled()])
    ours = [float(result.grad_norm) for result in session.steps()]
    assert_same([norms, weights(plain_net)], [ours, weights(ours_net)])
