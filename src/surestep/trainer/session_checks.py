"""What a session refuses to do, and what to type instead."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from surestep.base.errors import ConfigError, RunError
from surestep.engine.plan.plan import Plan


def check_open(folder: Path, *, closed: bool) -> None:
    """Check that the run folder is still held.

    Raises:
        RunError: the session is closed.
    """
    if closed:
        raise RunError(
            f"The session of {folder} is closed: it takes no step, measures nothing and saves "
            "nothing. Go on with another: prepare(task, config, run=...), or trainer.fit(). Its "
            "checkpoints are measured by trainer.evaluate('val')."
        )


def check_train_step(plan: Plan, micro_batches: Sequence[Any]) -> None:
    """Check that a step can be taken on batches of the user's own.

    Raises:
        ConfigError: there are none, or the run needs those of the training data.
    """
    if not micro_batches:
        raise ConfigError("train_step() got no micro-batches. Give a list of at least one.")
    if plan.batch_transform is not None and plan.parallel_ranks > 1:
        raise ConfigError(
            f"batch_transform={plan.batch_transform} mixes the batch of all {plan.parallel_ranks} "
            "ranks, and train_step() is given that of one. Train by steps(), or start one process."
        )
    if plan.on_spike == "rollback":
        raise ConfigError(
            "on_spike='rollback' leaves out batches of the training data, and train_step() is "
            "given its own. Say on_spike='warn', or train by steps()."
        )
