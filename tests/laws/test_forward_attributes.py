"""A step that changes a plain attribute on which outputs or the loss depend.

Its forward, its loss, its batch_transform or a manual step may. Only training may change it: a run
equals a plain PyTorch script (law 3) however often it evaluates (law 4), a resumed run equals it
too (law 2), and a skipped step changes nothing (law 5).
"""

from collections import deque
from collections.abc import Callable
from contextlib import nullcontext
from copy import deepcopy
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import surestep
from surestep.base.errors import CheckpointError, NonFiniteError
from surestep.trainer.evaluator import evaluate_run
from tests.laws.support import plain
from tests.laws.support.tasks import assert_same, rows, session_of

Folder = Callable[[], Path]
STEPS, BATCH = 6, 9
OPTIONS: dict[str, Any] = {"max_steps": STEPS, "batch_size": BATCH, "optim": {"lr": 0.05}}


class Schedule:
    """A configuration object with a counter."""

    def __init__(self) -> None:
        self.n = 0


class Net(nn.Module):
    """Scales its outputs by what its forward has kept in an attribute."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.kind = kind
        self.layer, self.part = nn.Linear(10, 3), nn.Identity()
        self.n, self.scale, self.hist = 0, torch.ones(3), [1.0]
        self.sums, self.recent, self.seen = {0: 1.0}, deque([1.0], maxlen=2), np.ones(3)
        self.config = SimpleNamespace(schedule=Schedule())

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * self.change(x.detach())

    def change(self, x: Tensor) -> Any:
        mean = float(x.mean())
        if self.kind == "training":
            self.n += self.training
        elif self.kind == "later":  # the first batches do not show it
            self.n += 1
            return 1.0 if self.n < 4 else 0.5
        elif self.kind == "new":
            self.count = getattr(self, "count", 0) + 1
            return 1 / self.count
        elif self.kind == "tensor":
            self.scale.mul_(0.9)
            return self.scale
        elif self.kind == "replaced":
            self.scale = 0.9 * self.scale
            return self.scale
        elif self.kind == "list":
            self.hist.append(mean)
            return sum(self.hist) / len(self.hist)
        elif self.kind == "dict":
            self.sums[0] += mean
            self.sums[len(self.sums)] = mean
            return sum(self.sums.values())
        elif self.kind == "deque":
            self.recent.append(mean)
            return sum(self.recent)
        elif self.kind == "array":
            self.seen += mean
            return torch.from_numpy(self.seen).float()
        elif self.kind == "object":
            self.config.schedule.n += 1
            return 1 / self.config.schedule.n
        elif self.kind == "number":
            self.n += 1
        return 1 / max(1, self.n)


class Loss(nn.Module):
    """Sharpens the outputs with each call."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        self.calls += 1
        return functional.cross_entropy(outputs * (1 + self.calls), targets, reduction="mean")


class Fading:
    """A batch_transform that weakens its inputs with each call."""

    def __init__(self) -> None:
        self.n, self.means = 0, [1.0]

    def __call__(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        self.n += 1
        self.means.append(abs(float(x[0, 0])))
        return x / self.n * sum(self.means), y


class CountingStep:
    """A manual step that weakens its loss with each call, after its update."""

    def __init__(self) -> None:
        self.n = 1

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(outputs, targets, reduction="sum") / self.n

    def __call__(self, manual_step: surestep.ManualStep) -> None:
        for micro_batch in manual_step.micro_batches("layer"):
            outputs, targets = manual_step.model(*micro_batch.args), micro_batch.targets
            loss = self.loss(outputs, targets) / len(targets)
            manual_step.backward(loss, micro_batch)
        manual_step.step("layer")
        self.n += 1


KINDS = [
    *("number", "training", "later", "new", "tensor", "replaced", "list", "dict", "deque"),
    *("array", "object", "loss", "transform", "manual"),
]


def task_of(kind: str, bad: int | None = None) -> surestep.Task:
    x, y = rows(44)
    if bad is not None:  # a step
        x[int(plain.order_of(44, 0, 0)[BATCH * (bad - 1)])] = torch.nan
    if kind == "manual":
        optimizers = {"layer": surestep.Optim(lr=0.05)}
        data = {"train": (x, y), "val": rows(20), "loss": nn.CrossEntropyLoss()}
        return surestep.Task(Net("number"), **data, step=CountingStep(), optimizers=optimizers)
    loss = Loss() if kind == "loss" else nn.CrossEntropyLoss()
    transform = Fading() if kind == "transform" else None
    return surestep.Task(Net(kind), loss, (x, y), val=rows(20), batch_transform=transform)


def plain_run(kind: str) -> nn.Module:
    """Train a model by a plain script that never evaluates."""
    task, step, own = task_of(kind), CountingStep(), kind in ("loss", "manual")

    def sum_loss(outputs: Tensor, targets: Tensor) -> Tensor:
        if kind == "manual":
            loss = step.loss(outputs, targets)
            step.n += 1
            return loss
        return task.loss(outputs, targets) * len(targets)

    plain.exact_loop(
        task.model,
        sum_loss if own else partial(functional.cross_entropy, reduction="sum"),
        *rows(44),
        steps=STEPS,
        batch_size=BATCH,
        micro_batch_size=BATCH,
        make_optimizer=plain.adamw(lr=0.05, fused=True),
        transform=task.batch_transform,
    )
    return task.model


@pytest.mark.parametrize("kind", KINDS)
def test_run_that_evaluates_equals_the_plain_script(folder, kind):
    check_run(folder, kind)


def check_run(folder: Folder, kind: str) -> None:
    """Compare a run that evaluates after each step with a plain script that does not."""
    expected = plain_run(kind)
    with session_of(task_of(kind), folder(), **OPTIONS) as session:
        session.evaluate()
        for _ in session.steps():
            session.evaluate()
            session.predict("val")
    assert_same(expected.state_dict(), session.model.state_dict())


@pytest.mark.parametrize("kind", KINDS)
def test_resumed_run_equals_the_plain_script(folder, kind):
    check_resumed(folder, kind)


def check_resumed(folder: Folder, kind: str) -> None:
    """Compare a run that is left without an end and resumed with a plain script."""
    expected, path = plain_run(kind), folder()
    with session_of(task_of(kind), path, **OPTIONS) as session:
        for result in session.steps():
            if result.step == 3:
                session.save()
            elif result.step == 4:
                break
    with session_of(task_of(kind), path, **OPTIONS) as session:
        assert session.state.progress.step == 3
        session.evaluate()
        list(session.steps())
    assert_same(expected.state_dict(), session.model.state_dict())


@pytest.mark.parametrize(  # decided on the device, on the host
    ("on_nonfinite", "skipped"), [("raise", 2), ("skip", 1), ("skip", 2)]
)
@pytest.mark.parametrize(
    "kind", ["number", "later", "list", "tensor", "object", "transform", "manual"]
)
def test_skipped_step_keeps_nothing_that_it_changed(folder, kind, on_nonfinite, skipped):
    check_skipped(folder, kind, on_nonfinite, skipped)


def check_skipped(folder: Folder, kind: str, on_nonfinite: str, skipped: int) -> None:
    """Compare the attributes before and after a step that is skipped."""
    options = {**OPTIONS, "on_nonfinite": on_nonfinite}
    task = task_of(kind, bad=skipped)
    with session_of(task, folder(), **options) as session:
        steps = session.steps()
        for _ in range(skipped - 1):
            next(steps)
        before = attributes(task)
        with pytest.raises(NonFiniteError) if on_nonfinite == "raise" else nullcontext():
            list(steps) if on_nonfinite == "raise" else next(steps)
        assert attributes(task) == before


def attributes(task: surestep.Task) -> list[Any]:
    model, others = task.model, (task.batch_transform, task.step)
    kept = [deepcopy(vars(other)) for other in others if isinstance(other, (Fading, CountingStep))]
    return [model.n, model.scale.tolist(), [*model.hist], model.config.schedule.n, *kept]


class Collecting(nn.Module):
    """Keeps what no later forward uses."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.layer = nn.Linear(10, 3)
        self.inputs: list[Tensor] = []
        self.outputs: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        self.inputs.append(x)
        self.outputs = self.layer(x)
        return self.outputs


def test_what_no_output_depends_on_is_collected_in_evaluations_and_not_saved(folder):
    model = Collecting()
    task = surestep.Task(model, nn.CrossEntropyLoss(), rows(44), val=rows(20))
    with session_of(task, folder(), **OPTIONS) as session:
        assert not model.inputs
        next(session.steps())
        model.inputs.clear()
        session.evaluate()
        assert sum(map(len, model.inputs)) == 20
        assert len(model.outputs) == len(model.inputs[-1])
        assert not session.state.callback_states["the attributes that forwards change"].state_dict()
        noted = session.plan.reason("not_checked")
    assert "model.inputs" in noted


def test_evaluation_of_a_checkpoint_uses_its_attributes(folder):
    path = folder()
    with session_of(task_of("number"), path, **OPTIONS) as session:
        for result in session.steps():
            if result.step == 3:
                session.save()
                expected = session.evaluate()["val/loss"]
        now = session.model.n
        assert session.evaluate_checkpoint("val", 3)["val/loss"] == expected
        assert session.model.n == now == STEPS
    _, metrics = evaluate_run(
        surestep.Run(path), task_of("number"), surestep.Config(**OPTIONS), split="val", which=3
    )
    assert metrics["val/loss"] == expected


def test_checkpoint_with_an_attribute_that_the_model_lacks_is_rejected(folder):
    path = folder()
    with session_of(task_of("number"), path, **OPTIONS) as session:
        next(session.steps())
        session.save()
    task = task_of("number")
    del task.model.n
    task.model.kind = "new"
    with pytest.raises(CheckpointError, match=r"model\.n, an attribute that the steps changed"):
        session_of(task, path, **OPTIONS).close()


@pytest.mark.slow("traces a model with torch.compile")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # of dynamo
@pytest.mark.parametrize("kind", ["number", "tensor", "transform"])
def test_compiled_run_that_is_resumed_equals_the_plain_script(folder, monkeypatch, kind):
    # A backend without code of its own, so that each bit is that of the plain script.
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    monkeypatch.setitem(OPTIONS, "compile", "default")
    torch.compiler.reset()  # another test may have compiled the same code
    graphs = torch._dynamo.utils.counters["stats"]
    before = graphs["unique_graphs"]
    check_resumed(folder, kind)
    assert graphs["unique_graphs"] > before


def test_attribute_that_only_a_manual_step_uses_is_named(folder):
    class Remembering(CountingStep):
        def __init__(self) -> None:
            super().__init__()
            self.losses = [1.0]

        def __call__(self, manual_step: surestep.ManualStep) -> None:
            super().__call__(manual_step)
            self.losses.append(self.losses[-1] / 2)

    optimizers = {"layer": surestep.Optim(lr=0.05)}
    task = surestep.Task(
        Net("number"), nn.CrossEntropyLoss(), rows(44), step=Remembering(), optimizers=optimizers
    )
    with session_of(task, folder(), **OPTIONS) as session:
        list(session.steps())
    notices = [event["text"] for event in session.run.events() if event["event"] == "notice"]
    assert sum("outputs depend on step.n, step.losses" in text for text in notices) == 1


class Counter:
    """Counts by itself, in C or in slots, where no attribute shows it."""

    __slots__ = ("n",)

    def __init__(self, n: int = 0) -> None:
        self.n = n


class Replacing(Net):
    """Replaces an object by a new one in each forward."""

    def __init__(self) -> None:
        super().__init__("number")
        self.counter = Counter()

    def change(self, x: Tensor) -> float:
        self.counter = Counter(self.counter.n + 1)
        return 1 / self.counter.n


def test_object_that_a_checkpoint_cannot_hold_is_named_with_the_remedy(folder):
    task = surestep.Task(Replacing(), nn.CrossEntropyLoss(), rows(44), val=rows(20))
    with pytest.warns(UserWarning, match=r"changes model\.counter, a Counter.*register_buffer"):
        session = session_of(task, folder(), **OPTIONS)
    with session:
        for _ in session.steps():
            count = session.model.counter.n
            session.evaluate()
            assert session.model.counter.n == count
