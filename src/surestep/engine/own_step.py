"""Runs a step of the user's own in place of the usual update: all of it counts, or nothing."""

from collections.abc import Callable

import torch
from torch import Tensor

from surestep.engine import metrics
from surestep.engine.data.batch import Batch
from surestep.engine.parallel.base import GradNorm
from surestep.engine.parallel.many import Abandoned, Movers
from surestep.engine.parallel.summed import of_first
from surestep.engine.step import Parts, Update
from surestep.engine.turn import Turn


class OwnStep:
    """A Task's own step, as the update of a train_step."""

    def __init__(self, step: Callable[[Turn], object], movers: Movers) -> None:
        self.step = step
        self.movers = movers

    def __call__(self, parts: Parts, batch: Batch, divisor: float, rate: float) -> Update:
        """Let the user's function take its turn; undo it where something was not finite."""
        turn = Turn(parts, self.movers, batch)
        self.movers.begin()
        stopped = None
        try:
            with parts.generators.preserved(), parts.autocast:
                self.step(turn)
            turn.close()
        except Abandoned as abandoned:
            stopped = abandoned.outcome
            metrics.take_logged()
        outcome, world = self.movers.end(stopped), parts.parallel.world
        if world.size > 1:
            of_first(parts.state.model, weights=False)
        losses = {name: _mean(values) for name, values in turn.losses.items()}
        logged = [(f"{name}/loss", value) for name, value in losses.items() if world.is_first]
        logged += [(name, _mean(list(values.values()))) for name, values in turn.logged.items()]
        total = torch.stack([each.float() for each in losses.values()]).sum() * divisor
        return Update(outcome, _together(turn.norms), total, logged, batch.items)


def _mean(values: list[Tensor]) -> Tensor:
    return values[0] if len(values) == 1 else torch.stack(values).mean()


def _together(norms: list[GradNorm]) -> GradNorm:
    """Return the norm of all gradients of a turn, and of each parameter's at each update."""
    if len(norms) == 1:
        return norms[0]
    total = torch.linalg.vector_norm(torch.stack([each.total for each in norms]))
    each = torch.cat([norm.each for norm in norms])
    return GradNorm(total, each, [name for norm in norms for name in norm.names])
