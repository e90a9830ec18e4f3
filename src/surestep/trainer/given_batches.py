"""Batches that a user passes to `Session.train_step`: what they require, and their positions."""

from collections.abc import Sequence
from typing import Any

from surestep.base.errors import ConfigError
from surestep.engine.batch import Batch
from surestep.engine.distributed.communicator import Communicator
from surestep.engine.plan.plan import Plan


def offset_positions(world: Communicator, batch: Batch) -> Batch:
    """Shift the positions of a rank's share, as if one process had the shares concatenated."""
    counts = [0.0] * world.size
    counts[world.rank] = batch.samples
    before = int(sum(world.all_reduce_sum(counts)[: world.rank]))
    shifted = [m._replace(position=m.position + before) for m in batch.micro_batches]
    return batch._replace(micro_batches=tuple(shifted))


def check_train_step(plan: Plan, micro_batches: Sequence[Any], *, fits: bool) -> None:
    """Check that a step can be taken on custom batches: that the run needs no others.

    Args:
        plan: of the run.
        micro_batches: the batches.
        fits: the run chooses the micro-batch size.

    Raises:
        ConfigError: it cannot.
    """
    if not micro_batches:
        raise ConfigError("train_step() got no micro-batches. Pass a list of at least one.")
    if fits:
        raise ConfigError(
            "micro_batch_size='fit' splits the batches of the training data, and train_step() gets "
            "your own micro-batches. Leave it out, or train with steps()."
        )
    if plan.batch_transform is not None and plan.parallel_ranks > 1:
        raise ConfigError(
            f"batch_transform={plan.batch_transform} mixes the batch of all {plan.parallel_ranks} "
            "ranks, and train_step() gets that of one. Train with steps(), or in one process."
        )
    if plan.on_spike == "rollback":
        raise ConfigError(
            "on_spike='rollback' skips batches of the training data, and train_step() gets your "
            "own. Set on_spike='warn', or train with steps()."
        )
