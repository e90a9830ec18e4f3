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

Wrong:

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

Right:

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
"""

from __future__ import annotations

from collections.abc import Iterator

from surestep.doctor.problem import Problem
from surestep.doctor.runtime.loss_curves import CurveWatcher
from surestep.doctor.watcher import Script

SEVERITY = "warning"
REVIEWED = True
FIX = (
    "Check that no input is computed from the target, and that no sample is in both the training "
    "and the validation data."
)


class TooGoodTooEarlyWatcher(CurveWatcher):
    """Compare the first evaluation of a script with the losses of its training."""

    def observe(self, run: Script) -> Iterator[Problem]:
        for watched, state in self.name_curves(run):
            if state.name == "leaking":
                since, evidence = state.since_step or 1, dict(state.evidence)
                yield Problem(
                    state.message, evidence, location=watched.evaluated_at, since_step=since
                )
