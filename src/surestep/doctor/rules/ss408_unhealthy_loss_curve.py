"""The loss does not fall as it should: it is flat, diverges, or overfits.

The curve has one of these states, and the finding names it:

- *overfitting since step N*: the validation loss rises from its best for many evaluations, while
  the training loss falls. The model learns its samples by heart;
- *flat from the start*: the training loss did not fall, measured against its own noise;
- *stuck at log(classes)*: the cross-entropy stays at that of equal probabilities. The model ignores
  its inputs;
- *diverging*: the training loss rises far above its start, or loses what it had gained.

`surestep diagnose RUN` lists the usual causes of each in the order to try, and docs/curves.md shows
the states.

Ignore it if a flat or rising loss is expected, as in some kinds of reinforcement learning.

Source: https://karpathy.github.io/2019/04/25/recipe/
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING

from surestep.doctor.remark import Remark

if TYPE_CHECKING:
    from surestep.doctor.case import Case

SEVERITY = "warning"
FIX = "Try the usual causes in the order that `surestep diagnose RUN` lists them."
_NAMES = ("overfitting", "flat", "stuck", "diverging")


def review(case: Case) -> Iterator[Remark]:
    """Name the curve of the run; that of a manual step is a sum of losses, and has no name."""
    from surestep.doctor.curves.causes import CAUSES
    from surestep.doctor.curves.name import name_curve

    curve = case.curve
    for state in () if curve is None else name_curve(curve):
        if state.name not in _NAMES:
            continue
        title = state.title[0].upper() + state.title[1:]
        run = shlex.quote(str(case.folder))
        yield Remark(
            f"{title}. {state.message}",
            {"state": state.name, "since_step": state.since_step, **state.evidence},
            f"The first cause to try: {CAUSES[state.name][0].text} The others, and what to type: "
            f"surestep diagnose {run}",
        )


def bad_random_targets() -> None:
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


def bad_tiny_rate() -> None:
    import torch

    import surestep

    x = torch.randn(128, 4)
    y = (x[:, 0] > 0).long()
    task = surestep.Task(torch.nn.Linear(4, 2), torch.nn.CrossEntropyLoss(), train=(x, y))
    optim = surestep.Optim(lr=1e-9)
    config = surestep.Config(max_steps=150, batch_size=64, optim=optim, max_grad_norm="off")
    surestep.Trainer(task, config, run="run").fit()


def bad_large_rate() -> None:
    import torch

    import surestep

    torch.manual_seed(0)
    x = torch.randn(256, 8)
    task = surestep.Task(torch.nn.Linear(8, 1), "mse", train=(x, x.sum(1, keepdim=True)))
    config = surestep.Config(
        max_steps=150,
        batch_size=256,
        optim=surestep.Optim(name="sgd", lr=0.75, momentum=0.0),
        schedule=surestep.Schedule(name="constant"),
        max_grad_norm="off",
    )
    surestep.Trainer(task, config, run="run").fit()


def good_small_rate() -> None:
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


def good_pattern_of_the_inputs() -> None:
    import torch
    from torch import nn

    import surestep

    x = torch.randn(512, 8)
    y = x[:, :3].argmax(1)
    task = surestep.Task(
        nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3)),
        nn.CrossEntropyLoss(),
        train=(x[:384], y[:384]),
        val=(x[384:], y[384:]),
    )
    config = surestep.Config(
        max_steps=200,
        batch_size=32,
        optim=surestep.Optim(lr=0.01),
        max_grad_norm="off",
        validation=surestep.Validation(every="20 steps"),
    )
    surestep.Trainer(task, config, run="run").fit()


def good_too_short_to_name() -> None:
    import torch

    import surestep

    x = torch.randn(128, 4)
    y = (x[:, 0] > 0).long()
    task = surestep.Task(torch.nn.Linear(4, 2), torch.nn.CrossEntropyLoss(), train=(x, y))
    config = surestep.Config(max_steps=50, optim=surestep.Optim(lr=1e-9), max_grad_norm="off")
    surestep.Trainer(task, config, run="run").fit()
