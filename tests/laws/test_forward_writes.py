"""A forward that changes parameters, as an Embedding with max_norm does.

Only the forwards of training may change them: a run equals a plain PyTorch script (law 3) however
often it evaluates (law 4), and a skipped step changes nothing (law 5).
"""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import surestep
from surestep.base.errors import NonFiniteError, TaskError
from surestep.engine.model import forward_writes
from surestep.engine.model.forward_writes import ForwardWrites
from surestep.engine.plan.not_checked import NotChecked
from surestep.trainer.evaluator import evaluate_run
from surestep.trainer.forward_writes import check_same_writes
from tests.laws.support import plain
from tests.laws.support.tasks import assert_same, session_of, snapshot, train

Folder = Callable[[], Path]
STEPS, BATCH = 8, 9
OPTIONS = {"max_steps": STEPS, "batch_size": BATCH, "optim": {"lr": 0.05}}


class Net(nn.Module):
    """Looks up rows of a table, and multiplies them by a scale that its forward changes."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.kind = kind
        self.table = nn.Embedding(20, 6, max_norm=2.0 if kind == "max_norm" else None)
        self.scale = nn.Parameter(torch.linspace(-0.5, 1.5, 6))
        self.last = nn.Linear(6, 200)  # so that the others are under 10% of the weights
        self.out = nn.Linear(200, 3)
        self.is_initialized = False
        self.u = nn.Parameter(torch.ones(6), requires_grad=kind != "spectral")

    def forward(self, x: Tensor) -> Tensor:
        self.change()
        rows = self.table(x[:, :3].long())
        values = (rows * self.scale / self.u).mean(1) + x[:, 3:] * 0
        return self.out(self.last(values))

    def change(self) -> None:
        data = self.scale.data
        if self.kind == "data":
            data.mul_(0.99)
        elif self.kind == "replaced":
            self.scale.data = data * 0.99
        elif self.kind == "no_grad":
            with torch.no_grad():
                self.scale.clamp_(0, 1)
        elif self.kind == "later":  # it changes nothing in the first steps
            data.clamp_(-0.52, 1.52)
        elif self.kind == "spectral":  # a power iteration
            weight = self.last.weight.data
            self.u.data = functional.normalize(weight.t() @ (weight @ self.u.data), dim=0)
        elif self.kind == ("training" if self.training else "evaluation"):
            data.mul_(0.99)
        elif self.kind == "initialized" and not self.is_initialized:
            data.fill_(0.7)
            self.is_initialized = True


KINDS = [
    *("max_norm", "data", "replaced", "no_grad", "later"),
    *("training", "evaluation", "initialized", "spectral"),
]


def tokens(samples: int = 44) -> tuple[Tensor, Tensor]:
    """Return three rows of the table for each sample, and a number that may be NaN."""
    generator = torch.Generator().manual_seed(2)
    x = torch.randint(20, (samples, 3), generator=generator)
    y = torch.randint(3, (samples,), generator=generator)
    return torch.cat([x, torch.zeros(samples, 1)], 1), y


def task_of(kind: str, *, bad: int | None = None, **options: Any) -> surestep.Task:
    """Return a task in which the sample `bad` makes the loss NaN."""
    x, y = tokens()
    if bad is not None:
        x[bad, 3] = torch.nan
    return surestep.Task(Net(kind), nn.CrossEntropyLoss(), (x, y), val=tokens(20), **options)


@pytest.mark.parametrize("kind", KINDS)
def test_run_that_evaluates_equals_the_plain_script(folder, kind):
    check_run(folder, kind)


def check_run(folder: Folder, kind: str) -> None:
    """Compare a run that evaluates after each step with a plain script that does not."""
    expected = Net(kind)
    plain.exact_loop(
        expected,
        partial(functional.cross_entropy, reduction="sum"),
        *tokens(),
        steps=STEPS,
        batch_size=BATCH,
        micro_batch_size=5,
        make_optimizer=plain.adamw(lr=0.05, fused=True),
    )
    with session_of(task_of(kind), folder(), **OPTIONS, micro_batch_size=5) as session:
        for _ in session.steps():
            session.evaluate()
            session.predict("val")
    assert_same(expected.state_dict(), session.model.state_dict())


@pytest.mark.parametrize("on_nonfinite", ["raise", "skip"])  # decided on the device, on the host
@pytest.mark.parametrize("kind", KINDS)
def test_skipped_step_keeps_nothing_that_its_forward_changed(folder, kind, on_nonfinite):
    check_skipped(folder, kind, on_nonfinite)


def check_skipped(folder: Folder, kind: str, on_nonfinite: str) -> None:
    """Compare the parameters before and after a skipped step."""
    good = on_nonfinite == "raise"  # steps before the bad one: the data are checked first
    bad = int(plain.order_of(44, 0, 0)[good * BATCH])
    options = {**OPTIONS, "on_nonfinite": on_nonfinite}
    with session_of(task_of(kind, bad=bad), folder(), **options) as session:
        steps = session.steps()
        for _ in range(good):
            next(steps)
        before = {name: value.clone() for name, value in session.model.state_dict().items()}
        with pytest.raises(NonFiniteError) if good else nullcontext():
            list(steps) if good else next(steps)
        assert_same(before, session.model.state_dict())
        if kind == "initialized" and not good:  # the next step initializes it
            assert not session.model.is_initialized
            next(steps)
            assert session.model.is_initialized
            assert float((session.model.scale.detach() - 0.7).abs().max()) < 0.1


@pytest.mark.parametrize("kind", KINDS)
def test_checks_of_the_first_batch_leave_the_parameters_as_they_are(folder, kind):
    with session_of(task_of(kind), folder(), **OPTIONS) as session:
        assert_same(Net(kind).state_dict(), session.model.state_dict())
        assert not session.model.is_initialized


def test_only_what_a_forward_changes_is_copied(folder):
    names = {"max_norm": ["table.weight"], "data": ["scale"], "later": ["scale"], "": []}
    for kind, expected in names.items():
        with session_of(task_of(kind), folder(), **OPTIONS) as session:
            next(session.steps())
            context = session.loop.context
            assert [name for name, *_ in context.writes] == expected
            assert len(context.buffers.slots) == len(expected)


@pytest.mark.parametrize("kind", KINDS)
def test_run_is_resumed_bitwise_with_an_average(folder, kind):
    options = {**OPTIONS, "micro_batch_size": 5, "average": {"kind": "ema", "decay": 0.5}}
    whole, run = train(task_of(kind), folder(), **options), folder()
    for end in (3, None):
        task = task_of(kind)
        task.model.is_initialized = end is None  # an attribute, which a checkpoint does not hold
        with session_of(task, run, **options) as session:
            for result in session.steps():
                session.evaluate()
                if result.step == end:
                    session.save()
                    break
    assert_same(snapshot(whole), snapshot(session))


@pytest.mark.parametrize("kind", KINDS)
def test_skipped_step_of_lbfgs_keeps_nothing_that_its_forward_changed(folder, kind):
    bad = int(plain.order_of(44, 0, 0)[0])
    options = {**OPTIONS, "optim": {"name": "lbfgs"}, "on_nonfinite": "skip"}
    with session_of(task_of(kind, bad=bad), folder(), **options) as session:
        before = {name: value.clone() for name, value in session.model.state_dict().items()}
        next(session.steps())
        assert_same(before, session.model.state_dict())


class Pair(nn.Module):
    """Two models; a step of one of them calls both."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.net = Net(kind)
        self.head = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


def manual_step(step: surestep.ManualStep) -> None:
    """Train the head, and then the model below it."""
    for name in ("head", "net"):
        for micro_batch in step.micro_batches(name):
            x, y = micro_batch.args
            outputs = step.model(x)
            outputs = step.model.head(outputs) if name == "head" else outputs
            step.backward(functional.cross_entropy(outputs, y), micro_batch)
        step.step(name)


@pytest.mark.parametrize("on_nonfinite", ["raise", "skip"])
@pytest.mark.parametrize("kind", KINDS)
def test_skipped_manual_step_keeps_nothing_that_a_forward_changed(folder, kind, on_nonfinite):
    good = on_nonfinite == "raise"
    x, y = tokens()
    x[int(plain.order_of(44, 0, 0)[good * BATCH]), 3] = torch.nan
    optimizers = {name: surestep.Optim(lr=0.05) for name in ("net", "head")}
    task = surestep.Task(Pair(kind), train=(x, y), step=manual_step, optimizers=optimizers)
    options = {"max_steps": STEPS, "batch_size": BATCH, "on_nonfinite": on_nonfinite}
    with session_of(task, folder(), **options) as session:
        steps = session.steps()
        for _ in range(good):
            next(steps)
        before = {name: value.clone() for name, value in session.model.state_dict().items()}
        with pytest.raises(NonFiniteError) if good else nullcontext():
            list(steps) if good else next(steps)
        assert_same(before, session.model.state_dict())


def test_no_validation_set_of_a_checkpoint_changes_the_next_one(folder):
    x, y = tokens(20)
    val = {"first": (x, y), "second": (x, y)}
    task, config = replace(task_of("data"), val=val), surestep.Config(max_steps=1, batch_size=9)
    with session_of(task, path := folder(), max_steps=1, batch_size=9) as session:
        list(session.steps())
        session.save()
    _, metrics = evaluate_run(
        surestep.Run(path), replace(task_of("data"), val=val), config, split="val", which="last"
    )
    assert metrics["first/loss"] == metrics["second/loss"]


def test_gradients_of_inputs_leave_a_limited_table_as_it_is():
    net = Net("max_norm")
    before = {name: value.clone() for name, value in net.state_dict().items()}
    surestep.input_gradients(net, tokens(20)[0])
    assert_same(before, net.state_dict())


def test_parameters_that_are_too_large_to_compare_are_named(monkeypatch):
    monkeypatch.setattr(forward_writes, "_MOST_COMPARED", 6 * 4)
    writes = ForwardWrites(Net("spectral"))
    assert [name for name, *_ in writes.compared] == ["u"]
    collected = NotChecked()
    writes.list_not_checked(is_manual=False)
    collected.close()
    assert collected.notes == {
        "whether a forward changes 6 of the parameters": "they are too large to copy (8.3 KiB)"
    }


def test_plan_of_large_tables_says_that_a_skipped_step_changes_them(folder):
    task = task_of("max_norm")
    task.model.last, task.model.out = nn.Linear(6, 4), nn.Linear(4, 3)
    with session_of(task, folder(), **OPTIONS, micro_batch_size=4) as session:
        assert "what a skipped step leaves of table.weight" in session.plan.reason("not_checked")
        list(session.steps())
    notices = [event["text"] for event in session.run.events() if event["event"] == "notice"]
    assert notices[0].startswith("Each forward changes table.weight, so the update may depend on")
    assert notices[1].startswith("A skipped step keeps what its forward changed of table.weight:")
    assert "69% of the weights" in notices[1]


def test_evaluation_keeps_what_a_module_collects_if_nothing_depends_on_it(folder):
    class Collecting(Net):
        calls: tuple[int, ...] = ()

        def change(self) -> None:
            self.calls += () if self.training else (1,)

    x, y = tokens()
    task = surestep.Task(Collecting(""), nn.CrossEntropyLoss(), (x, y), val=tokens(20))
    with session_of(task, folder(), **OPTIONS, validation={"batch_size": 20}) as session:
        session.evaluate()
        assert len(session.model.calls) == 1
        next(session.steps())
        session.evaluate()
        assert len(session.model.calls) == 2


def test_ranks_that_change_parameters_by_their_samples_are_an_error():
    def world(*others: str) -> Any:
        return SimpleNamespace(size=2, all_gather_text=lambda own: [own, *(others or [own])])

    net = Net("data")
    writes = ForwardWrites(net)
    with writes.compare():
        net.change()
    check_same_writes(world(), writes)
    with pytest.raises(TaskError, match="The forward changes scale, by the samples of each rank"):
        check_same_writes(world('{"scale": "other"}'), writes)
    with pytest.raises(TaskError, match=r"The forward changes table\.weight, by"):
        check_same_writes(world(), ForwardWrites(Net("max_norm")))
    check_same_writes(world(), ForwardWrites(Net("")))
