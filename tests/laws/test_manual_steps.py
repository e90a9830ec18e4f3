"""The laws for manual steps: a WGAN-GP and an actor-critic."""

from functools import cache

import pytest
import torch
from torch import nn

import surestep
from surestep.base.errors import ConfigError, NonFiniteError
from surestep.engine.step import multi_optimizer as many
from surestep.engine.step.manual_step import ManualStep
from surestep.laws.host_reads import host_reads
from tests.laws.support import plain_manual_steps
from tests.laws.support.manual_step_tasks import (
    BATCH,
    EVERY,
    TASKS,
    actor_critic_task,
    gan,
    players,
    real_samples,
    starts,
    wgan_step,
    wgan_task,
)
from tests.laws.support.plain import distance
from tests.laws.support.tasks import assert_moved, assert_same, session_of, snapshot, train

STEPS = 12
FP16 = {"precision": "fp16", "scaler": {"init_scale": 256.0}}
ALL = pytest.mark.parametrize("make", TASKS.values(), ids=TASKS)


def run(task, folder, **options):
    return train(task, folder, **{"max_steps": STEPS, "batch_size": BATCH, **options})


@cache
def end_of(make):
    """Return the model and the end of a run that nothing stops, splits or watches."""
    session = run(make(), None)
    return session.model, snapshot(session)


def losses_of(session):
    return [loss for event in session.run.events() for loss in event.get("loss", ())]


@ALL
@pytest.mark.parametrize("micro_batch_size", [5, 1])
def test_law_1_split_batch_gives_the_same_update(folder, make, micro_batch_size):
    cut = run(make(), folder(), micro_batch_size=micro_batch_size)
    assert distance(end_of(make)[0], cut.model) <= 1e-6


@ALL
@pytest.mark.parametrize("stop", [6, 9])
def test_law_2_resumed_run_equals_an_uninterrupted_run_bit_for_bit(folder, make, stop):
    stopped = folder()
    with session_of(make(), stopped, max_steps=STEPS, batch_size=BATCH) as session:
        for result in session.steps():
            if result.step == stop:
                session.save()
                break
    assert_same(end_of(make)[1], snapshot(run(make(), stopped)))


def test_law_3_wgan_gp_equals_the_plain_script_bit_for_bit(folder):
    plain = gan()
    losses = plain_manual_steps.wgan_gp(plain, real_samples(), steps=STEPS, size=BATCH, every=EVERY)
    session = run(wgan_task(), folder(), logging={"every": "7 steps"})
    events = [e["logged"]["critic/loss"] for e in session.run.events() if e["event"] == "steps"]
    assert [loss for row in events for loss in row] == losses
    assert all(map(torch.equal, session.model.parameters(), plain.parameters()))


def test_law_3_actor_critic_equals_the_plain_script_bit_for_bit(folder):
    plain = players()
    losses = plain_manual_steps.actor_critic(plain, starts(), steps=STEPS, size=BATCH)
    session = run(actor_critic_task(), folder())
    assert losses_of(session) == pytest.approx(losses, rel=1e-6)
    assert all(map(torch.equal, session.model.parameters(), plain.parameters()))


class Watching(surestep.Callback):
    """Draws from the generators and changes the modes in each hook."""

    def on_batch(self, state, batch):
        torch.randn(3)
        state.model.eval()

    def on_backward(self, state):
        torch.randn(3)
        assert any(parameter.grad is not None for parameter in state.model.parameters())


@ALL
def test_law_4_callback_changes_nothing(folder, make):
    watched = run(make(), folder(), callbacks=[Watching()])
    assert_same(end_of(make)[1], snapshot(watched))


def spoiled(manual_step):
    """Run the WGAN's step; in step 9 the generator's loss is NaN after the critic's update."""
    wgan_step(manual_step if manual_step.index < 8 else Spoiled(manual_step))


class Spoiled:
    """A ManualStep whose generator loss is not finite."""

    def __init__(self, manual_step):
        self.manual_step = manual_step
        self.passes = 0

    def __getattr__(self, name):
        return getattr(self.manual_step, name)

    def micro_batches(self, *names):
        self.passes += 1
        return self.manual_step.micro_batches(*names)

    def backward(self, loss, micro):
        self.manual_step.backward(loss * float("nan") if self.passes == 2 else loss, micro)


def guarded(optim):
    return {"optimizers": {"critic": optim, "generator": optim}}


GUARDS = {
    "on the device": ({}, {}),
    "sgd on the device": (guarded(surestep.Optim(name="sgd", momentum=0.9)), {}),
    "by a read": (guarded(lambda groups: torch.optim.RMSprop(groups, lr=1e-3)), {}),
    "fp16": ({}, FP16),
}


@pytest.mark.parametrize(("parts", "options"), GUARDS.values(), ids=GUARDS)
def test_law_5_manual_step_that_fails_halfway_changes_nothing(folder, parts, options):
    """The state after the error is that after step 8, which is saved and resumed."""
    expected, settings = folder(), {"max_steps": STEPS, "batch_size": BATCH, **options}
    with session_of(wgan_task(**parts), expected, **settings) as session:
        for result in session.steps():
            if result.step == 8:
                before, scale = snapshot(session), session.state.scaler.state_dict()
                session.save()
                break
    with session_of(wgan_task(spoiled, **parts), folder(), **settings) as session:
        with pytest.raises(NonFiniteError, match="Step 9 "):
            list(session.steps())
        assert_same(before, snapshot(session))
        assert session.state.scaler.state_dict() == scale
        assert session.state.progress.step == 8
    never = run(wgan_task(**parts), folder(), **options)
    assert_same(snapshot(never), snapshot(run(wgan_task(**parts), expected, **options)))


@pytest.mark.parametrize("bad", [0, 2])
@pytest.mark.parametrize("skip", [False, True])
def test_law_5_nonfinite_first_steps_change_nothing(folder, bad, skip):
    """The optimizers have no state before their first step."""

    def step(manual_step):
        wgan_step(manual_step)
        if manual_step.index == bad:
            for micro in manual_step.micro_batches("generator"):
                manual_step.backward(
                    manual_step.models["generator"](manual_step.randn(micro, 3)).sum() / 0, micro
                )
            manual_step.step("generator")

    options = {"on_nonfinite": "skip", "max_nonfinite_steps": 1} if skip else {}
    settings = {"max_steps": STEPS, "batch_size": BATCH, **options}
    with session_of(wgan_task(step), folder(), **settings) as session:
        start = snapshot(session)
        with pytest.raises(NonFiniteError, match=f"Step {bad + 1 + skip} "):
            list(session.steps())
        if not bad:
            assert_same(start, snapshot(session))
        assert session.state.progress.steps_taken == bad
        assert session.state.counts.nonfinite == skip
        assert all(torch.isfinite(value).all() for value in snapshot(session).values())


def test_law_5_overflow_in_one_update_undoes_the_step_and_halves_the_scale(folder):
    def step(manual_step):
        if manual_step.index == 2 and manual_step.model.overflows:
            manual_step.model.overflows = False
            with_overflow(manual_step)
        else:
            wgan_step(manual_step)

    def with_overflow(manual_step):
        for micro in manual_step.micro_batches("critic"):
            manual_step.backward(manual_step.models["critic"](micro.args[0]).mean(), micro)
        manual_step.step("critic")
        for micro in manual_step.micro_batches("generator"):
            made = manual_step.models["generator"](manual_step.randn(micro, 3))
            manual_step.backward((made * 1e-30).float().mean() * 1e38, micro)
            for parameter in manual_step.models["generator"].parameters():
                parameter.grad += torch.inf
        manual_step.step("generator")

    task = wgan_task(step)
    task.model.overflows = True
    with session_of(task, folder(), max_steps=6, batch_size=BATCH, **FP16) as session:
        held = snapshot(session)
        for result in session.steps():
            if result.step == 3:
                assert_same(held, snapshot(session))
                assert session.state.scaler.get_scale() == 128
            else:
                held = snapshot(session)
    assert session.state.counts.overflow == 1
    assert session.state.progress.steps_taken == 5


@pytest.mark.parametrize(
    ("make", "data"), [(wgan_task, real_samples), (actor_critic_task, starts)], ids=TASKS
)
def test_law_6_no_value_is_read_between_log_points(folder, make, data):
    options = {"max_steps": 20, "batch_size": BATCH, "logging": {"every": "20 steps"}}
    with session_of(make(train=(data(400),)), folder(), **options) as session:
        steps = session.steps()
        for _ in range(4):  # each optimizer creates its state
            next(steps)
        with host_reads() as found:
            for _ in range(10):
                next(steps)
        steps.close()
    assert found == []


@pytest.mark.parametrize("options", [{"precision": "bf16"}, FP16], ids=["bf16", "fp16"])
def test_half_precision_is_close_to_fp32(folder, options):
    half = run(wgan_task(), folder(), **options)
    assert 1e-5 < distance(end_of(wgan_task)[0], half.model) < 0.05
    assert half.state.progress.steps_taken == STEPS


def test_schedule_advances_with_the_steps_of_its_optimizer(folder):
    down = surestep.Schedule(name="cosine")
    task = wgan_task(
        optimizers={
            "critic": surestep.OptimizerSpec(surestep.Optim(lr=0.1), schedule=down),
            "generator": surestep.Optim(lr=0.2),
        }
    )
    session = run(task, folder(), schedule={"name": "constant"})
    (event,) = (e for e in session.run.events() if e["event"] == "steps" and e["first"] == 1)
    critic, generator = (event["logged"][f"{name}/lr"] for name in ("critic", "generator"))
    plain = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(plain, STEPS)
    for rate in critic:
        assert rate == pytest.approx(plain.param_groups[0]["lr"], abs=1e-9)
        plain.step()
        scheduler.step()
    assert {rate for rate in generator if rate is not None} == {0.2}
    assert event["lr"] == pytest.approx(critic)


def test_optimizer_can_step_twice_in_a_manual_step(folder):
    """Two passes over one batch, each with its own noise."""

    def step(manual_step):
        for _ in range(2):
            for micro in manual_step.micro_batches("model"):
                (x,) = micro.args
                drawn.append(manual_step.randn(micro, 1))
                manual_step.backward(((manual_step.model(x) - drawn[-1]) ** 2).mean(), micro)
            manual_step.step("model")

    drawn = []
    torch.manual_seed(1)
    task = surestep.Task(net_of_one(), train=(real_samples(),), step=step)
    for options in ({}, FP16):
        session = run(task, folder(), max_steps=3, **options)
        steps = {int(slots["step"]) for slots in session.optimizer.state.values()}
        assert steps == {6}
    assert not torch.equal(drawn[0], drawn[1])
    assert_moved({"model/weight": torch.zeros(1)}, {"model/weight": drawn[0]})


def net_of_one():
    return nn.Linear(4, 1)


def normed_gan():
    task = wgan_task()
    task.model["generator"].append(nn.BatchNorm1d(4))
    return task


def test_running_statistics_under_swa_are_averaged(folder):
    """The full model is never called, so they cannot be recomputed."""
    swa = {"kind": "swa", "start": "5 steps", "every": "1 step"}
    session = run(normed_gan(), folder(), average=swa)
    name = next(name for name in session.model.state_dict() if name.endswith("running_mean"))
    found = session.state.average.tensors[name]
    assert found.abs().sum() > 0
    assert not torch.equal(found, session.model.state_dict()[name])


def test_law_9_statistics_that_cannot_be_recomputed_are_rejected(folder):
    with pytest.raises(ConfigError, match="calls the model with each batch"):
        run(normed_gan(), folder(), average={"kind": "swa", "buffers": "recompute"})


def test_law_9_line_search_in_a_manual_step_is_rejected(folder):
    task = surestep.Task(net_of_one(), train=(real_samples(),), step=print)
    with pytest.raises(ConfigError, match=r"lbfgs.* evaluates the batch by itself"):
        session_of(task, folder(), max_steps=2, optim={"name": "lbfgs"})


def nothing(*_, **__):
    pass


def equal_weights(self, loss, seed, *names, own=many.OptimizerSet.add_gradient, **graph):
    own(self, loss, torch.full_like(seed, 0.25), *names, **graph)


MUTATIONS = {
    "nothing is put back on the device": (
        many.OptimizerSnapshot,
        "restore_where",
        nothing,
        lambda folder: test_law_5_manual_step_that_fails_halfway_changes_nothing(folder, {}, {}),
    ),
    "nothing is put back by the host": (
        many.OptimizerSnapshot,
        "restore",
        nothing,
        lambda folder: test_law_5_manual_step_that_fails_halfway_changes_nothing(
            folder, *GUARDS["by a read"]
        ),
    ),
    "noise by micro-batch": (
        ManualStep,
        "_draw",
        lambda self, draw, micro, size: draw(micro.samples, *size),
        lambda folder: test_law_1_split_batch_gives_the_same_update(folder, wgan_task, 5),
    ),
    "every micro-batch counts equally": (
        many.OptimizerSet,
        "add_gradient",
        equal_weights,
        lambda folder: test_law_1_split_batch_gives_the_same_update(folder, actor_critic_task, 5),
    ),
}


@pytest.mark.parametrize(("home", "name", "wrong", "check"), MUTATIONS.values(), ids=MUTATIONS)
def test_every_law_detects_its_mutation(folder, monkeypatch, home, name, wrong, check):
    monkeypatch.setattr(home, name, wrong)
    end_of.cache_clear()
    with pytest.raises(AssertionError):
        check(folder)
    end_of.cache_clear()
