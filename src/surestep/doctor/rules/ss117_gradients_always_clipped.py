"""Most gradients are clipped to a small part of their norm.

Clipping is meant for the rare step with an exploding gradient. If nearly every gradient is many
times longer than `max_norm`, each step has the same length, whatever the loss says: the learning
rate and `max_norm` together decide it, and lowering one of them changes nothing that the other
cannot undo. Usually the learning rate is too high, the loss is summed instead of averaged, or the
gradients are still scaled.

`surestep train` reports it with severity info: its default limit may have done that. Models with
random weights often have norms a little above 1, and clipping them rarely makes a loss worse.

Ignore it if you normalize gradients on purpose, as some language models do.

Source: https://arxiv.org/abs/1211.5063
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median
from typing import TYPE_CHECKING

from surestep.doctor.remark import Remark
from surestep.doctor.runtime.series import Series
from surestep.doctor.watcher import NOWHERE, Observation, Run, Watcher

if TYPE_CHECKING:
    from torch import Tensor

    from surestep.doctor.case import Case

SEVERITY = "warning"
FIX = "Lower the learning rate, average the loss, or raise max_norm to about the usual norm."
_TIMES = 5.0  # a norm so many times the limit is far above it
_SHARE = 0.8  # of the steps
_FEWEST = 20  # steps
_KEPT = 128  # of their norms: copying each norm of a long run would take longer


class Watch(Watcher):
    """Compare the norms of gradients with their limit."""

    def __init__(self) -> None:
        self._norms: Series[float] = Series(_KEPT)
        self._location = NOWHERE

    def on_clip(
        self, run: Run, parameters: Sequence[Tensor], limit: float, norm: Tensor | None
    ) -> None:
        # To read the norm of shards, the ranks would have to exchange them.
        if limit <= 0 or norm is None or hasattr(norm, "full_tensor"):
            return
        if self._location is NOWHERE:
            self._location = run.locate()
        self._norms.add(norm, limit)

    def observe(self, run: Run) -> Iterator[Observation]:
        ratios = [norm / limit for norm, limit in self._norms.read()]
        far = sum(ratio > _TIMES for ratio in ratios)
        if len(ratios) >= _FEWEST and far >= _SHARE * len(ratios):
            usual = median(ratios)
            clipped = sum(ratio > 1 for ratio in ratios)
            yield Observation(
                self._location,
                f"{clipped} of {len(ratios)} steps were clipped, with a raw norm of {usual:.3g} "
                "times the limit in the median.",
                1,
                {"clipped": clipped, "steps": len(ratios), "times": usual},
            )


def review(case: Case) -> Iterator[Remark]:
    """Find a run that clipped most of the steps that were taken, and by a large factor."""
    state, limit, ratios = case.loop.state, case.loop.plan.max_grad_norm, case.observed.ratios
    taken, clipped = state.progress.steps_taken, state.counts.clipped
    if limit is None or taken < _FEWEST or clipped < _SHARE * taken or not ratios:
        return
    ratio = median(ratios)
    if ratio <= _TIMES:
        return
    enough = float(f"{2 * ratio * limit:.1g}")
    yield Remark(
        f"{clipped} of {taken} steps ({clipped / taken:.0%}) were clipped: "
        f"their gradient norm was {ratio:.3g} times max_grad_norm={limit:g} (median).",
        {"clipped": clipped, "steps": taken, "ratio": ratio, "limit": limit},
        "The gradient norm then has little effect: optim.lr alone sets the size of an update. "
        f"To clip fewer steps, set max_grad_norm={enough:g}; to clip none and only measure the "
        "norm, 'off'.",
        "info",
    )


def bad_summed_loss() -> None:
    import torch
    from torch.nn.functional import mse_loss

    model = torch.nn.Linear(16, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    for _ in range(30):
        x = torch.randn(256, 16)
        optimizer.zero_grad()
        mse_loss(model(x), x.sum(1, keepdim=True), reduction="sum").backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


def bad_tiny_limit() -> None:
    import torch
    from torch.nn.functional import cross_entropy
    from torch.nn.utils import clip_grad_norm_

    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(25):
        x, y = torch.randn(32, 8), torch.randint(4, (32,))
        loss = cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        clip_grad_norm_(model.parameters(), max_norm=1e-3)
        optimizer.step()


def bad_unscaled_targets() -> None:
    import torch

    class Learner:
        def __init__(self) -> None:
            self.model = torch.nn.Linear(4, 1)
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)

        def step(self) -> None:
            x = torch.randn(16, 4)
            loss = (self.model(x) - 1000 * x.mean(1, keepdim=True)).pow(2).mean()
            self.optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()

    learner = Learner()
    for _ in range(25):
        learner.step()


def bad_limit_of_trainer() -> None:
    import torch

    import surestep

    x = torch.randn(64, 4)
    task = surestep.Task(torch.nn.Linear(4, 1), "mse", train=(x, x.sum(1, keepdim=True)))
    config = surestep.Config(max_steps=30, batch_size=8, max_grad_norm=1e-3)
    surestep.Trainer(task, config, run="run").fit()


def good_limit_of_trainer() -> None:
    import torch

    import surestep

    x = torch.randn(64, 4)
    task = surestep.Task(torch.nn.Linear(4, 1), "mse", train=(x, x.sum(1, keepdim=True)))
    config = surestep.Config(max_steps=30, batch_size=8, max_grad_norm=100.0)
    surestep.Trainer(task, config, run="run").fit()


def good_rare() -> None:
    import torch

    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for index in range(30):
        x = torch.randn(16, 4) * (100 if index == 7 else 1)
        loss = (model(x) - x.mean(1, keepdim=True)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


def good_at_the_start_only() -> None:
    import torch

    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for index in range(60):
        x = torch.randn(64, 4)
        scale = 30 if index < 10 else 1
        loss = scale * (model(x) - x.mean(1, keepdim=True)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


def good_measured_without_a_limit() -> None:
    import torch

    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    for _ in range(30):
        x = torch.randn(64, 4)
        loss = 100 * (model(x) - x.mean(1, keepdim=True)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), float("inf"))
        optimizer.step()
