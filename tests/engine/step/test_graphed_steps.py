"""`cuda_graph=True`: a replayed step is bitwise the step; on a CPU, with recorded operations."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import surestep
from surestep.base.errors import NonFiniteError, TaskError
from surestep.engine.step import loop
from surestep.engine.step.graphed_steps import GraphedSteps
from surestep.laws.host_reads import host_reads
from surestep.trainer import prepare
from surestep.trainer.session import Session
from tests.engine.step.operation_graphs import OperationGraphs
from tests.laws.support.nonfinite_tasks import BATCH, bomb
from tests.laws.support.tasks import (
    assert_same,
    mlp,
    rows,
    session_of,
    snapshot,
    with_batchnorm,
    with_dropout,
)

OPTIONS: dict[str, Any] = {
    "max_steps": 9,
    "batch_size": 16,
    "logging": {"every": "5 steps"},
    "schedule": {"name": "cosine", "warmup": "3 steps"},
}
OPTIONS_OF_BOMB = OPTIONS | {"batch_size": BATCH}
MODES: dict[str, dict[str, Any]] = {
    "default": {},
    "micro-batches": {"micro_batch_size": 4},
    "bf16": {"precision": "bf16", "micro_batch_size": 8},
    "sgd": {"optim": {"name": "sgd", "momentum": 0.9}},
    "adam": {"optim": {"name": "adam", "amsgrad": True}},
    "adagrad": {"optim": {"name": "adagrad"}},
    "groups": {"optim": {"groups": ["0.* lr=0.1x", "type:BatchNorm1d decay=0"]}},
    "unfreezing": {"optim": {"groups": ["0.* freeze='5 steps'"]}},
    "one cycle": {"schedule": {"name": "one_cycle"}},
    "ema": {"average": {"kind": "ema"}},
    "swa": {"average": {"kind": "swa", "start": "4 steps", "every": "2 steps"}},
    "clip by value": {"clip_value": 0.01},
    "no clip": {"max_grad_norm": "off"},
}
QUICK = ("micro-batches", "unfreezing")


def task_of(model: nn.Module, loss: Any = None, **options: Any) -> surestep.Task:
    return surestep.Task(model, loss or nn.CrossEntropyLoss(), rows(55), **options)


def replay_steps(session: Session) -> tuple[GraphedSteps, list[OperationGraphs]]:
    """Take the steps of a session by replays; return the list of recorders too."""
    recorders: list[OperationGraphs] = []

    def make_recorder(_: Any) -> OperationGraphs:
        recorders.append(OperationGraphs())
        return recorders[-1]

    steps = GraphedSteps(session.plan.batch_size, make_recorder)
    session.loop.take_step = steps.take
    return steps, recorders


def run(session: Session) -> dict[str, Tensor]:
    """Train to the end; return the state, and what each step reports."""
    found: dict[str, Tensor] = {}
    with session:
        for r in session.steps():
            assert r.norms is not None
            found[f"step {r.step}"] = torch.stack([r.loss, r.grad_norm, r.took_step.float()])
            found[f"norms {r.step}"] = r.norms.per_parameter
            found[f"rate {r.step}"] = torch.tensor([r.lr, r.items], dtype=torch.float64)
        return found | snapshot(session)


class WithOptions(nn.Module):
    """Dropout and BatchNorm, and what a forward does beside them."""

    def __init__(self, extra: Callable[["WithOptions", Tensor], Tensor] | None = None) -> None:
        super().__init__()
        self.net, self.extra = with_batchnorm(), extra
        self.n, self.calls = 0, itertools.count(1)
        self.register_buffer("scale", torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.net(x if self.extra is None else self.extra(self, x))
        return out


def replace_buffer(model: WithOptions, x: Tensor) -> Tensor:
    model.scale = model.scale * 0.9
    return x * model.scale


def count_in_attribute(model: WithOptions, x: Tensor) -> Tensor:
    model.n += 1
    return x * (1 + 0.1 * model.n)


CANNOT: dict[str, tuple[Callable[[WithOptions, Tensor], Tensor], str]] = {
    "item": (
        lambda model, x: x * (1 + 0.01 * x.mean().item()),
        "cannot be recorded.*not permitted",
    ),
    "list": (lambda model, x: x + 0 * x[0].tolist()[0], "cannot be recorded.*tolist"),
    "numpy": (lambda model, x: x + float(np.random.rand()), "from numpy or Python's random"),
    "buffer": (replace_buffer, "replaces the buffer scale.*copy_"),
    "attribute": (count_in_attribute, "The forward changes .*n, and cuda_graph=True"),
    "hidden counter": (
        lambda model, x: x * 0.9 ** next(COUNTER),
        "has other numbers than the step",
    ),
}
COUNTER = itertools.count(1)


@pytest.mark.parametrize(
    "mode",
    [
        pytest.param(mode, marks=() if mode in QUICK else pytest.mark.slow("tries every mode"))
        for mode in MODES
    ],
)
def test_replayed_steps_are_bitwise_those_of_the_loop(mode, tmp_path):
    options = OPTIONS | MODES[mode]
    plain = run(session_of(task_of(with_batchnorm()), tmp_path / "plain", **options))
    session = session_of(task_of(with_batchnorm()), tmp_path / "graphs", **options)
    _, recorders = replay_steps(session)
    assert_same(run(session), plain)
    # The first step, and the short batch of each epoch, are taken without.
    assert sum(recorder.replayed for recorder in recorders) >= 2 * 6
    assert len(recorders) == (2 if mode == "unfreezing" else 1)


def test_items_that_differ_from_batch_to_batch_are_replayed(tmp_path):
    x, y = rows(48)
    y[::3] = -100
    y[:5] = -100
    runs = {}
    for kind in ("plain", "graphs"):
        task = surestep.Task(with_batchnorm(), nn.CrossEntropyLoss(), (x, y))
        session = session_of(task, tmp_path / kind, **OPTIONS | {"micro_batch_size": 8})
        if kind == "graphs":
            _, recorders = replay_steps(session)
        runs[kind] = run(session)
    assert len({float(value[1]) for name, value in runs["plain"].items() if "rate" in name}) > 2
    assert_same(runs["graphs"], runs["plain"])
    assert len(recorders) == 1


def test_values_that_a_step_logs_are_its_own(tmp_path):
    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        value = nn.functional.cross_entropy(outputs, targets)
        surestep.log("doubled", 2 * value)
        return value

    found = []
    for kind in ("plain", "graphs"):
        task = surestep.Task(with_dropout(), loss, rows(48))
        with session_of(task, tmp_path / kind, **OPTIONS | {"micro_batch_size": 8}) as session:
            if kind == "graphs":
                replay_steps(session)
            steps = list(session.steps())
            found.append([[float(v.value) for v in step.logged] for step in steps])
    assert found[0] == found[1]


@pytest.mark.parametrize("why", CANNOT)
def test_a_forward_that_needs_the_host_is_rejected_by_name(why, tmp_path):
    extra, message = CANNOT[why]
    session = session_of(task_of(WithOptions(extra)), tmp_path, **OPTIONS)
    replay_steps(session)
    with session, pytest.raises(TaskError, match=message):
        list(session.steps())


def test_batches_of_different_shapes_are_rejected(tmp_path):
    lengths = iter([10] * 5 + [8])

    def transform(x: Tensor, y: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        return x[:, : next(lengths)], y

    task = surestep.Task(Padding(), nn.CrossEntropyLoss(), rows(64), batch_transform=transform)
    session = session_of(task, tmp_path, **OPTIONS)
    replay_steps(session)
    with session, pytest.raises(TaskError, match=r"\(16, 8\) float32.*\(16, 10\) float32"):
        list(session.steps())


class Padding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = mlp()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.net(nn.functional.pad(x, (0, 10 - x.shape[1])))
        return out


@pytest.mark.parametrize("every", [1, 4])
def test_a_rate_of_dropout_that_a_callback_changes_is_recorded_again(every, tmp_path):
    class Anneal(surestep.Callback):
        def on_step(self, state: Any, result: Any) -> None:
            if result.step % every == 0:
                state.model[2].p *= 0.9

    runs = {}
    for kind in ("plain", "graphs"):
        session = session_of(
            task_of(with_dropout()), tmp_path / kind, callbacks=[Anneal()], **OPTIONS
        )
        if kind == "graphs":
            _, recorders = replay_steps(session)
            if every == 1:
                with pytest.raises(TaskError, match="An attribute of a module changed before each"):
                    run(session)
                return
        runs[kind] = run(session)
    assert_same(runs["graphs"], runs["plain"])
    assert len(recorders) == 3


def test_hooks_see_and_change_the_gradients(tmp_path):
    class Halve(surestep.Callback):
        def on_backward(self, state: Any) -> None:
            for parameter in state.model.parameters():
                parameter.grad.mul_(0.5)

    runs = {}
    for kind in ("plain", "graphs"):
        session = session_of(task_of(mlp()), tmp_path / kind, callbacks=[Halve()], **OPTIONS)
        if kind == "graphs":
            replay_steps(session)
        runs[kind] = run(session)
    assert_same(runs["graphs"], runs["plain"])


def test_a_hook_that_replaces_a_gradient_is_rejected(tmp_path):
    class Replace(surestep.Callback):
        def on_backward(self, state: Any) -> None:
            state.model[1].bias.grad = torch.zeros(3)

    session = session_of(task_of(mlp()), tmp_path, callbacks=[Replace()], **OPTIONS)
    replay_steps(session)
    with session, pytest.raises(TaskError, match="on_backward replaced a gradient"):
        list(session.steps())


@pytest.mark.parametrize("kind", ["both", "gradient"])
def test_a_step_that_is_not_finite_changes_nothing(kind, tmp_path):
    states = []
    for name in ("plain", "graphs"):
        with session_of(bomb(kind, [6]), tmp_path / name, **OPTIONS_OF_BOMB) as session:
            if name == "graphs":
                replay_steps(session)
            with pytest.raises(NonFiniteError, match="Step 6"):
                list(session.steps())
            states.append(snapshot(session))
    assert_same(*states)


def test_a_run_with_graphs_resumes_without_and_the_other_way(tmp_path):
    plain = run(session_of(task_of(with_batchnorm()), tmp_path / "plain", **OPTIONS))
    for number, order in enumerate([(True, False), (False, True)]):
        for stop, with_graphs in zip((5, None), order, strict=True):
            folder = tmp_path / str(number)
            with session_of(task_of(with_batchnorm()), folder, **OPTIONS) as session:
                if with_graphs:
                    replay_steps(session)
                for result in session.steps():
                    if result.step == stop:
                        session.save()
                        break
                state = snapshot(session)
        assert_same(state, {name: plain[name] for name in state})


class Launches(TorchDispatchMode):
    """Lists the operations of a step that are not in a graph."""

    def __init__(self, recorder: OperationGraphs) -> None:
        super().__init__()
        self.recorder, self.names = recorder, list[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not self.recorder.is_replaying:
            self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def test_beside_the_graphs_a_step_launches_copies_and_the_optimizer(tmp_path):
    options = OPTIONS | {"micro_batch_size": 8, "logging": {"every": "100 steps"}}
    with session_of(task_of(with_batchnorm()), tmp_path, **options) as session:
        _, recorders = replay_steps(session)
        batches = list(session.loop.loader.batches(0, 0))
        for batch in batches[:3]:  # plain, recorded, compared
            session.loop.step(batch)
        grads = [p.grad.data_ptr() for p in session.model.parameters()]
        batch = batches[0]
        with host_reads() as reads, Launches(recorders[0]) as launches:
            session.loop.step(batch)
        assert not reads
        assert [p.grad.data_ptr() for p in session.model.parameters()] == grads
        inputs = ["copy_"] * 4  # x and y of two micro-batches
        results = ["clone"] * 4  # the norms, the flag and the loss
        optimizer = ["rsub", "_foreach_add_", *["_fused_adamw_"] * 2]  # of two groups
        assert sorted(launches.names) == sorted([*inputs, *optimizer, *results])


def test_the_option_takes_the_steps_of_a_run(tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "record_on_gpu", lambda context: OperationGraphs())
    plan_task = prepare.plan_task

    def plan_with_graphs(*arguments: Any, **options: Any) -> Any:
        planned = plan_task(*arguments, **options)
        return replace(planned, plan=planned.plan.replace(cuda_graph=True))

    plain = run(session_of(task_of(with_batchnorm()), tmp_path / "plain", **OPTIONS))
    monkeypatch.setattr(prepare, "plan_task", plan_with_graphs)
    session = session_of(task_of(with_batchnorm()), tmp_path / "graphs", **OPTIONS)
    assert_same(run(session), plain)
    steps = session.loop.take_step.__self__
    assert isinstance(steps, GraphedSteps)
    assert steps.step is not None
