"""The loss does not fall as it should: it is flat, diverges, overfits, or becomes NaN.

The curve has one of these states, and the finding names it:

- *overfitting since step N*: the validation loss rises from its best for many evaluations, while
  the training loss falls. The model learns its samples by heart;
- *flat from the start*: the training loss did not fall, measured against its own noise;
- *stuck at log(classes)*: the cross-entropy stays at that of equal probabilities. The model ignores
  its inputs;
- *diverging*: the training loss rises far above its start, or loses what it had gained;
- *NaN or infinite since step N*: no loss is finite any more.

`surestep diagnose RUN` lists the usual causes of each in the order to try, and docs/curves.md shows
the states. `surestep train` stops at the first loss that is NaN or infinite, and `surestep watch`
reports losses that end so in any script. It names the curve of scripts that take at least 100 steps
with one optimizer, on batches of one dataset from a DataLoader, and whose loss is computed by the
same functions of PyTorch in each step: a cross-entropy, or a mean of squared or absolute errors. It
sees evaluations on a DataLoader of another dataset that compute such a loss as a mean.

Ignore it if a flat or rising loss is expected, as in reinforcement learning, if the task becomes
harder during the training, or if the temperature of a contrastive loss grows.

Source: https://karpathy.github.io/2019/04/25/recipe/

Wrong:

    import torch
    from torch import nn

    import surestep

    x, y = torch.randn(256, 8), torch.randint(3, (256,))
    task = surestep.Task(
        nn.Sequential(nn.Linear(8, 128), nn.ReLU(), nn.Linear(128, 3)),
        nn.CrossEntropyLoss(),
        train=(x[:64], y[:64]),
        val=(x[64:], y[64:]),
    )
    config = surestep.Config(
        max_steps=300,
        batch_size=16,
        optim=surestep.Optim(lr=0.01),
        max_grad_norm="off",
        validation=surestep.Validation(every="20 steps"),
    )
    surestep.Trainer(task, config, run="run").fit()

Right:

    import torch

    import surestep

    x = torch.randn(256, 8)
    task = surestep.Task(torch.nn.Linear(8, 1), "mse", train=(x, x.sum(1, keepdim=True)))
    config = surestep.Config(
        max_steps=150,
        batch_size=256,
        optim=surestep.Optim(name="sgd", lr=0.05, momentum=0.0),
        max_grad_norm="off",
    )
    surestep.Trainer(task, config, run="run").fit()
"""

from __future__ import annotations

from collections.abc import Iterator

from surestep.doctor.limits import UNHEALTHY
from surestep.doctor.problem import Problem
from surestep.doctor.runtime.loss_curves import CurveWatcher
from surestep.doctor.watcher import Script

SEVERITY = "warning"
REVIEWED = True
FIX = (
    "Try the usual causes in the order of `surestep docs curves`; `surestep diagnose RUN` lists "
    "them for a run of surestep."
)
_NOT_FINITE = (
    "an operation such as log(0) or 1/0, or a sample that is not finite. With "
    "torch.autograd.set_detect_anomaly(True), PyTorch names the operation."
)


class UnhealthyLossCurveWatcher(CurveWatcher):
    """Name the curve of a script."""

    def observe(self, run: Script) -> Iterator[Problem]:
        from surestep.doctor.curves.causes import CAUSES
        from surestep.doctor.curves.training import find_nonfinite

        found = [named for named in self.name_curves(run) if named[1].name in UNHEALTHY]
        # Losses that are not finite are a failure whatever the script trains.
        watched = None if run.losses is None else run.losses.read_losses(run)
        if watched is not None and (failure := find_nonfinite(watched.curve)) is not None:
            found = [(watched, failure)]
        for watched, state in found[:1]:  # others are of one training
            title = state.title[0].upper() + state.title[1:]
            first = _NOT_FINITE if state.name == "nonfinite" else CAUSES[state.name][0].text
            yield Problem(
                f"{title}. {state.message} The first cause to try: {first}",
                {"state": state.name, **state.evidence},
                location=watched.location,
                since_step=state.since_step or 1,
            )
