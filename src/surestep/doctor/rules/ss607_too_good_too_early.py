"""The validation is near perfect at the first evaluation, or far better than the training.

A hard problem is not solved in a twentieth of the run. Usually the inputs contain the target, or
the validation contains samples of the training data: the metric then does not show how the model
does on new data. The loss curve is healthy, and the model fails only when it is used.

It is reported if the first evaluation is in the first tenth of the run, every score such as the
accuracy is at least 0.999, and the loss at most 1% of the first one; or if the validation loss is
less than a tenth of the training loss, without dropout, label smoothing or mixup. `surestep watch`
reports the first, of scripts with one optimizer. It sees evaluations on a DataLoader of another
dataset, with at least 100 predictions, whose loss is a cross-entropy of PyTorch.

Ignore it if the task is that easy: a linear model, or one rule, is as good.

Source: https://arxiv.org/abs/2207.07048
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from surestep.doctor.remark import Remark
from surestep.doctor.runtime.losses import CurveWatcher
from surestep.doctor.watcher import Observation, Run

if TYPE_CHECKING:
    from surestep.doctor.case import Case

SEVERITY = "warning"
FIX = (
    "Check that no input is computed from the target, and that no sample is in both the training "
    "and the validation data."
)
ALSO = ("SS605",)  # an example has this mistake too


class Watch(CurveWatcher):
    """Compare the first evaluation of a script with the losses of its training."""

    def observe(self, run: Run) -> Iterator[Observation]:
        for watched, state in self.name_curves(run):
            if state.name == "leaking":
                since, evidence = state.since_step or 1, dict(state.evidence)
                yield Observation(watched.evaluated_at, state.message, since, evidence)


def review(case: Case) -> Iterator[Remark]:
    """Find validation losses and scores that are too good."""
    from surestep.doctor.curves.name import name_curve

    curve = case.curve
    for state in () if curve is None else name_curve(curve):
        if state.name == "leaking":
            yield Remark(state.message, {"since_step": state.since_step, **state.evidence})


def bad_target_among_the_inputs() -> None:
    import torch
    from torch import nn

    import surestep

    def accuracy(outputs, targets):
        return (outputs.argmax(1) == targets).float().mean()

    y = torch.randint(3, (600,))
    x = torch.cat([torch.randn(600, 4), 10 * nn.functional.one_hot(y, 3)], 1)
    task = surestep.Task(
        nn.Sequential(nn.Linear(7, 32), nn.ReLU(), nn.Linear(32, 3)),
        nn.CrossEntropyLoss(),
        train=(x[:400], y[:400]),
        val=(x[400:], y[400:]),
        metrics={"accuracy": accuracy},
    )
    config = surestep.Config(
        max_steps=300,
        batch_size=32,
        optim=surestep.Optim(lr=0.03),
        schedule=surestep.Schedule(warmup="0 steps"),
        max_grad_norm="off",
        validation=surestep.Validation(every="25 steps"),
    )
    surestep.Trainer(task, config, run="run").fit()


def bad_column_of_the_target() -> None:
    import torch
    from torch import nn

    import surestep

    def accuracy(outputs, targets):
        return ((outputs > 0) == (targets > 0.5)).float().mean()

    x = torch.randn(600, 6)
    churned = (x[:, :1] + torch.randn(600, 1) > 0).float()
    refund = 50 * churned - 25  # known only after the customer has left
    x = torch.cat([x, refund], 1)
    task = surestep.Task(
        nn.Linear(7, 1),
        nn.BCEWithLogitsLoss(),
        train=(x[:400], churned[:400]),
        val=(x[400:], churned[400:]),
        metrics={"accuracy": accuracy},
    )
    config = surestep.Config(
        max_steps=300,
        batch_size=32,
        optim=surestep.Optim(lr=0.1),
        schedule=surestep.Schedule(warmup="0 steps"),
        max_grad_norm="off",
        validation=surestep.Validation(every="25 steps"),
    )
    surestep.Trainer(task, config, run="run").fit()


def bad_validation_set_of_one_class() -> None:
    import torch
    from torch import nn

    import surestep

    x = torch.randn(600, 4)
    y = (x[:, 0] + torch.randn(600) > 0).long()
    x, y = torch.cat([x, torch.full((100, 4), 3.0)]), torch.cat([y, torch.ones(100).long()])
    task = surestep.Task(
        nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2)),
        nn.CrossEntropyLoss(),
        train=(x, y),
        val=(x[600:], y[600:]),
    )
    config = surestep.Config(
        max_steps=300,
        batch_size=64,
        optim=surestep.Optim(lr=0.03),
        max_grad_norm="off",
        validation=surestep.Validation(every="50 steps"),
    )
    surestep.Trainer(task, config, run="run").fit()


def good_noisy_targets() -> None:
    import torch
    from torch import nn

    import surestep

    def accuracy(outputs, targets):
        return (outputs.argmax(1) == targets).float().mean()

    x = torch.randn(600, 6)
    y = (x[:, 0] + torch.randn(600) > 0).long()
    task = surestep.Task(
        nn.Linear(6, 2),
        nn.CrossEntropyLoss(),
        train=(x[:400], y[:400]),
        val=(x[400:], y[400:]),
        metrics={"accuracy": accuracy},
    )
    config = surestep.Config(
        max_steps=200,
        batch_size=32,
        max_grad_norm="off",
        validation=surestep.Validation(every="20 steps"),
    )
    surestep.Trainer(task, config, run="run").fit()


def good_perfect_at_the_end() -> None:
    import torch
    from torch import nn

    import surestep

    def accuracy(outputs, targets):
        return (outputs.argmax(1) == targets).float().mean()

    x = torch.randn(800, 4)
    y = (x[:, 0] > 0).long()
    x[:, 0] += 3 * y
    task = surestep.Task(
        nn.Linear(4, 2),
        nn.CrossEntropyLoss(),
        train=(x[:600], y[:600]),
        val=(x[600:], y[600:]),
        metrics={"accuracy": accuracy},
    )
    config = surestep.Config(
        max_steps=200,
        batch_size=32,
        max_grad_norm="off",
        validation=surestep.Validation(every="20 steps"),
    )
    surestep.Trainer(task, config, run="run").fit()


def good_dropout() -> None:
    import torch
    from torch import nn

    import surestep

    x = torch.randn(600, 16)
    y = x[:, :4].argmax(1)
    task = surestep.Task(
        nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, 4)),
        nn.CrossEntropyLoss(),
        train=(x[:400], y[:400]),
        val=(x[400:], y[400:]),
    )
    config = surestep.Config(
        max_steps=200,
        batch_size=32,
        max_grad_norm="off",
        validation=surestep.Validation(every="20 steps"),
    )
    surestep.Trainer(task, config, run="run").fit()


def bad_label_among_the_inputs() -> None:
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    torch.manual_seed(0)
    y = torch.randint(3, (1200,))
    x = torch.cat([torch.randn(1200, 4), 20 * nn.functional.one_hot(y, 3)], 1)
    train_loader = DataLoader(TensorDataset(x[:800], y[:800]), batch_size=32, shuffle=True)
    val_loader = DataLoader(TensorDataset(x[800:], y[800:]), batch_size=100)
    model = nn.Sequential(nn.Linear(7, 32), nn.ReLU(), nn.Linear(32, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    criterion = nn.CrossEntropyLoss()
    for epoch in range(12):
        model.train()
        for inputs, targets in train_loader:
            optimizer.zero_grad()
            criterion(model(inputs), targets).backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            for inputs, targets in val_loader:
                print(criterion(model(inputs), targets).item())


def bad_column_written_after_the_event() -> None:
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    class Trainer:
        def __init__(self) -> None:
            self.model = nn.Linear(7, 1)
            self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.1)
            self.loss_fn = nn.BCEWithLogitsLoss()

        def train(self, loader) -> None:
            self.model.train()
            for inputs, targets in loader:
                loss = self.loss_fn(self.model(inputs), targets)
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()

        @torch.inference_mode()
        def validate(self, loader) -> float:
            self.model.eval()
            losses = [self.loss_fn(self.model(inputs), targets) for inputs, targets in loader]
            return sum(losses).item() / len(losses)

    x = torch.randn(1000, 6)
    churned = (x[:, :1] + torch.randn(1000, 1) > 0).float()
    data = TensorDataset(torch.cat([x, 50 * churned - 25], 1), churned)
    train_set, val_set = torch.utils.data.random_split(data, [800, 200])
    trainer = Trainer()
    for epoch in range(15):
        trainer.train(DataLoader(train_set, batch_size=32, shuffle=True))
        print(epoch, trainer.validate(DataLoader(val_set, batch_size=50)))


def good_noisy_labels_in_a_loop() -> None:
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    x = torch.randn(1000, 6)
    y = (x[:, 0] + 0.3 * torch.randn(1000) > 0).long()
    train_loader = DataLoader(TensorDataset(x[:800], y[:800]), batch_size=32, shuffle=True)
    val_loader = DataLoader(TensorDataset(x[800:], y[800:]), batch_size=100)
    model = nn.Linear(6, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for epoch in range(12):
        for inputs, targets in train_loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), targets).backward()
            optimizer.step()
        with torch.no_grad():
            for inputs, targets in val_loader:
                print(nn.functional.cross_entropy(model(inputs), targets).item())


def good_evaluates_the_training_data() -> None:
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    y = torch.randint(3, (800,))
    x = nn.functional.one_hot(y, 3) + 0.01 * torch.randn(800, 3)
    loader = DataLoader(TensorDataset(20 * x, y), batch_size=32, shuffle=True)
    model = nn.Linear(3, 3)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for epoch in range(15):
        for inputs, targets in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), targets).backward()
            optimizer.step()
        with torch.no_grad():
            for inputs, targets in loader:
                print(nn.functional.cross_entropy(model(inputs), targets).item())
