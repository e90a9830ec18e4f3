"""Law 5: a skipped step changes nothing and is counted.

Parameters, moments and step counts of the optimizer, the schedule and BatchNorm's running
statistics stay. A run that fails leaves the state before the first bad step.
"""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import surestep
from surestep import Request
from surestep.base.errors import NonFiniteError
from surestep.record.io import read_json
from surestep.trainer.session import Session
from tests.laws.support import plain
from tests.laws.support.nonfinite_tasks import BATCH, HURT, bomb
from tests.laws.support.tasks import QUIET, assert_moved, assert_same, session_of, snapshot

Folder = Callable[[], Path]
EVERY = 4  # steps between log points
KINDS = pytest.mark.parametrize("kind", ["both", "gradient", "loss"])
OPTIONS: dict[str, Any] = {
    "epochs": 1,  # twelve steps
    "batch_size": BATCH,
    "schedule": {"name": "cosine", "warmup": "3 steps"},
    "optim": {"lr": 0.05},
    "logging": {"every": f"{EVERY} steps"},
}


def rmsprop(groups):
    return torch.optim.RMSprop(groups, lr=1e-3, momentum=0.9)


SGD = {"name": "sgd", "lr": 0.05, "momentum": 0.9}
OPTIMIZERS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "adamw": ({}, {}),
    "sgd": ({}, {"optim": SGD}),
    "rmsprop": ({"optimizer": rmsprop}, {"optim": {}}),
}


def files_of(checkpoint: Path) -> dict[str, Any]:
    """Read the tensors of a checkpoint; all must be finite.

    Rates of the groups are left out: each step sets them from the steps taken.
    """
    held: dict[str, Any] = {}
    for part in ("model", "optimizer"):
        for name, value in load_file(checkpoint / f"{part}.safetensors").items():
            assert torch.isfinite(value).all(), f"{name} of {part} is not finite"
            held[f"{part}/{name}"] = value.tolist()
    record = read_json(checkpoint / "state.json")
    for optimizer in record["optimizers"].values():
        for group in optimizer["groups"]:
            group["options"].pop("lr", None)
    return {**held, **record}


def before(folder: Folder, task: surestep.Task, steps: int, **options: Any) -> dict[str, Any]:
    """Train some good steps and save: a failed run must leave the same checkpoint."""
    with session_of(task, folder(), **options) as session:
        for result in session.steps() if steps else ():
            if result.step == steps:
                break
        return files_of(session.save())


def check_failure(folder: Folder, kind: str, bad: int, optimizer: str = "adamw") -> None:
    """Make step `bad` and the next one fail; check the error and the state that is left."""
    of_task, of_config = OPTIMIZERS[optimizer]
    options = OPTIONS | of_config
    expected = before(folder, bomb(kind, [bad, bad + 1], **of_task), bad - 1, **options)
    task = bomb(kind, [bad, bad + 1], **of_task)
    with session_of(task, folder(), **options) as session:
        with pytest.raises(NonFiniteError) as caught:
            for _ in session.steps():
                pass
        assert caught.value.step == bad
        assert math.isfinite(caught.value.loss) == (kind == "gradient")
        assert set(caught.value.parameters) == set(HURT[kind])
        for name in (f"Step {bad} ", *HURT[kind][:1]):
            assert name in str(caught.value)
        assert session.state.progress.step == session.state.progress.steps_taken == bad - 1
        assert files_of(session.save()) == expected


@KINDS
@pytest.mark.parametrize("bad", [EVERY - 1, EVERY, EVERY + 1, 2])
def test_error_names_the_first_bad_step_and_leaves_the_state_before_it(folder, kind, bad):
    check_failure(folder, kind, bad)


@KINDS
@pytest.mark.parametrize("optimizer", ["sgd", "rmsprop"])
def test_every_optimizer_leaves_the_state_before_the_bad_step(folder, kind, optimizer):
    check_failure(folder, kind, EVERY + 1, optimizer)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_first_step_of_the_run_can_be_the_bad_one(folder, optimizer):
    """No step was taken, so the optimizer has no moments, or zeros."""
    of_task, of_config = OPTIMIZERS[optimizer]
    task = bomb("gradient", [1], **of_task)
    with session_of(task, folder(), **OPTIONS | of_config) as session:
        weights = {name: tensor.clone() for name, tensor in session.model.state_dict().items()}
        with pytest.raises(NonFiniteError, match="Step 1 "):
            for _ in session.steps():
                pass
        assert_same(weights, session.model.state_dict())
        held = load_file(session.save() / "optimizer.safetensors")
        assert all(not value.any() for value in held.values())


@KINDS
def test_every_checkpoint_of_a_failed_fit_is_finite(folder, kind):
    """Saving at every step and evaluating find the bad step before they write or evaluate."""
    bad, run = EVERY + 1, folder()
    expected = before(folder, bomb(kind, [bad]), bad - 1, **OPTIONS)
    config = surestep.Config(
        **OPTIONS | {"checkpoint": {"every": "1 step", "keep_last": 99}, "logging": QUIET}
    )
    with pytest.raises(NonFiniteError, match=f"Step {bad} "):
        surestep.Trainer(bomb(kind, [bad]), config, run=run).fit()
    checkpoints = [files_of(path) for path in sorted((run / "checkpoints").iterdir())]
    assert len(checkpoints) == bad - 1
    assert checkpoints[-1] == expected


def test_events_of_a_failed_run_end_before_the_bad_step(folder):
    run = folder()
    with session_of(bomb("both", [6]), run, **OPTIONS) as session, pytest.raises(NonFiniteError):
        for _ in session.steps():
            pass
    losses = [event["loss"] for event in session.run.events() if event["event"] == "steps"]
    assert [len(window) for window in losses] == [4, 1]
    assert all(isinstance(loss, float) for window in losses for loss in window)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_session_continues_after_the_error_with_good_batches(folder, optimizer):
    """A program that catches the error and continues must train, not silently do nothing."""
    of_task, of_config = OPTIMIZERS[optimizer]
    task = bomb("both", [3], **of_task)
    good = tuple(tensor[:BATCH] for tensor in (task.train[0], torch.zeros(BATCH), task.train[2]))
    with session_of(task, folder(), **OPTIONS | of_config) as session:
        with pytest.raises(NonFiniteError):
            for _ in session.steps():
                pass
        held = snapshot(session)
        result = session.train_step([good])
        assert bool(result.took_step)
        assert_moved(held, snapshot(session))


def test_error_within_a_step_leaves_the_state_before_the_bad_step(folder):
    """A save request makes a log point after a later forward has updated BatchNorm."""

    class Asking(surestep.Callback):
        def on_backward(self, state):
            return Request.SAVE if state.progress.step == 5 else None

    options = OPTIONS | {"logging": {"every": "50 steps"}}
    expected = before(folder, bomb("both", [5]), 4, **options)
    with session_of(bomb("both", [5]), folder(), callbacks=[Asking()], **options) as session:
        with pytest.raises(NonFiniteError, match="Step 5 "):
            list(session.steps())
        assert files_of(session.save()) == expected


def test_custom_loop_gets_the_error_at_the_next_log_point(folder):
    task = bomb("both", [3])
    x, flags, y = (tensor[plain.order_of(96, 0, 0)].split(BATCH) for tensor in task.train)
    with session_of(task, folder(), **OPTIONS) as session:
        for batch in zip(x[:3], flags[:3], y[:3], strict=True):
            session.train_step([batch])
        with pytest.raises(NonFiniteError, match="Step 3 "):
            session.train_step([(x[3], flags[3], y[3])])


class Growing(torch.nn.Module):
    """A model with a table in a buffer that grows with the longest input."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = torch.nn.Embedding(20, 8), torch.nn.Linear(8, 5)
        self.register_buffer("table", torch.zeros(2, 1), persistent=False)

    def forward(self, x):
        if x.shape[1] > len(self.table):
            self.table = torch.linspace(0, 1, x.shape[1])[:, None]
        hidden = self.embedding(x) + self.table[: x.shape[1]]
        return self.head(hidden).transpose(1, 2)


def test_buffer_that_grows_in_a_forward_does_not_stop_the_run(folder):
    samples = [(torch.arange(n) % 20, torch.arange(n) % 5) for n in (3, 5, 4, 9)]
    task = surestep.Task(Growing(), torch.nn.CrossEntropyLoss(), samples)
    options = {"epochs": 1, "batch_size": 1, "data": {"shuffle": False}}
    with session_of(task, folder(), **options) as session:
        assert [bool(result.took_step) for result in session.steps()] == [True] * 4
    assert len(session.model.table) == 9


def check_skips(folder: Folder, kind: str, optimizer: str = "adamw", **options: Any) -> Session:
    """Skip two steps; each must leave all state unchanged."""
    bad, rate = (3, 6), 0.0
    of_task, of_config = OPTIMIZERS[optimizer]
    task = bomb(kind, bad, **of_task)
    with session_of(task, folder(), **OPTIONS | of_config | options) as session:
        held = snapshot(session)
        for result in session.steps():
            now = snapshot(session)
            assert bool(result.took_step) == (result.step not in bad)
            if result.step in bad:
                assert_same(held, now)
                rate = result.lr
            else:
                assert_moved(held, now)
                if result.step - 1 in bad:
                    assert result.lr == rate, "the schedule moved with a step not taken"
            held = now
    assert session.state.counts.skipped == 2
    assert (session.state.progress.step, session.state.progress.steps_taken) == (12, 10)
    return session


@KINDS
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_skipped_step_changes_nothing_and_is_counted(folder, kind, optimizer):
    check_skips(folder, kind, optimizer, on_nonfinite="skip", max_nonfinite_steps=2)


@pytest.mark.parametrize("optim", [{"lr": 0.05}, SGD], ids=["betas", "momentum"])
def test_cycled_momentum_is_that_of_the_steps_taken(folder, optim):
    """Torch's scheduler is not stepped either if a step is skipped."""
    plain_sgd = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.05, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(plain_sgd, 0.05, total_steps=12)
    schedule = {"schedule": {"name": "one_cycle"}, "optim": optim, "on_nonfinite": "skip"}
    with session_of(bomb("both", (3, 6)), folder(), **OPTIONS | schedule) as session:
        (group,) = session.optimizer.param_groups[:1]
        for result in session.steps():
            own = group["betas"][0] if "betas" in group else group["momentum"]
            assert own == pytest.approx(plain_sgd.param_groups[0]["momentum"], rel=1e-12)
            if result.took_step:
                plain_sgd.step()
                scheduler.step()
    assert session.state.counts.skipped == 2


def test_one_skip_too_many_ends_the_run_with_the_state_before_it(folder):
    task = bomb("both", [3, 6, 8])
    options = OPTIONS | {"on_nonfinite": "skip", "max_nonfinite_steps": 2}
    expected = before(folder, bomb("both", [3, 6, 8]), 7, **options)
    with session_of(task, folder(), **options) as session:
        with pytest.raises(NonFiniteError, match="Step 8 ") as caught:
            for _ in session.steps():
                pass
        assert caught.value.step == 8
        assert session.state.counts.nonfinite == 2
        assert files_of(session.save()) == expected


def test_skipping_run_equals_a_plain_loop_that_skips(folder):
    """The plain loop restores BatchNorm's statistics and continues with the next batch."""
    usual, ours = bomb("both", [3, 6]), bomb("both", [3, 6])
    x, flags, y = usual.train
    model = usual.model
    optimizer = torch.optim.AdamW(plain.two_groups(model, 0.01), lr=0.05)
    scheduler = plain.cosine(3, 12)(optimizer)
    for rows in plain.order_of(len(x), 0, 0).split(BATCH):
        buffers = [buffer.clone() for buffer in model.buffers()]
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x[rows], flags[rows]), y[rows])
        if not torch.isfinite(loss):
            for buffer, kept in zip(model.buffers(), buffers, strict=True):
                buffer.copy_(kept)
            continue
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
    options = OPTIONS | {"on_nonfinite": "skip"}
    with session_of(ours, folder(), **options) as session:
        list(session.steps())
    assert plain.distance(model, ours.model) <= 1e-6
    for ours_, plains in zip(ours.model.buffers(), model.buffers(), strict=True):
        torch.testing.assert_close(ours_, plains)
