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

Wrong:

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

Right:

    import torch

    import surestep

    x = torch.randn(64, 4)
    task = surestep.Task(torch.nn.Linear(4, 1), "mse", train=(x, x.sum(1, keepdim=True)))
    config = surestep.Config(max_steps=30, batch_size=8, max_grad_norm=100.0)
    surestep.Trainer(task, config, run="run").fit()
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median
from typing import TYPE_CHECKING

from surestep.doctor.limits import CLIPPED_SHARE, FAR_ABOVE_LIMIT, FEWEST_CLIPPED
from surestep.doctor.problem import Problem
from surestep.doctor.runtime.series import Series
from surestep.doctor.runtime.tally import Tally
from surestep.doctor.watcher import Script, Watcher

if TYPE_CHECKING:
    from torch import Tensor


SEVERITY = "warning"
REVIEWED = True
FIX = "Lower the learning rate, average the loss, or raise max_norm to about the usual norm."
_KEPT = 128  # of their norms: copying each norm of a long run would take longer


class GradientsAlwaysClippedWatcher(Watcher):
    """Compare the norms of gradients with their limit."""

    def __init__(self) -> None:
        self._norms: Series[float] = Series(_KEPT)
        self._clips = Tally()

    def on_clip(
        self, run: Script, parameters: Sequence[Tensor], limit: float, norm: Tensor | None
    ) -> None:
        # To read the norm of shards, the ranks would have to exchange them.
        if limit <= 0 or norm is None or hasattr(norm, "full_tensor"):
            return
        self._clips.add_here(run)
        self._norms.add(norm, limit)

    def observe(self, run: Script) -> Iterator[Problem]:
        ratios = [norm / limit for norm, limit in self._norms.read()]
        far = sum(ratio > FAR_ABOVE_LIMIT for ratio in ratios)
        if len(ratios) >= FEWEST_CLIPPED and far >= CLIPPED_SHARE * len(ratios):
            usual = median(ratios)
            clipped = sum(ratio > 1 for ratio in ratios)
            yield self._clips.report(
                f"{clipped} of {len(ratios)} steps were clipped, with a raw norm of {usual:.3g} "
                "times the limit in the median.",
                {"clipped": clipped, "steps": len(ratios), "times": usual},
            )
