"""Separate random numbers for custom optimizers.

What such code draws changes neither the training nor what other code draws.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch

from surestep.engine.rng import ModelRNG, preserve_torch_rng
from surestep.engine.state.state import State

_SURESTEP = __name__.partition(".")[0]
_DRAW_NOTHING = (_SURESTEP, "torch", "bitsandbytes")  # the optimizers by name
_OPTIMIZER_HOOKS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")


@contextmanager
def seed_steps(
    optimizer: torch.optim.Optimizer, name: str, state: State, seed: int, device: torch.device
) -> Iterator[None]:
    """Seed each step of a custom optimizer, or of one with hooks.

    A manual step may step it several times, so its number within the step is part of the seed.

    Args:
        optimizer: the optimizer.
        name: its name in the state.
        state: the state, with the number of the step.
        seed: the seed of the run.
        device: of the model.
    """
    is_known = type(optimizer).__module__.partition(".")[0] in _DRAW_NOTHING
    if is_known and not any(getattr(optimizer, hooks, None) for hooks in _OPTIMIZER_HOOKS):
        yield
        return
    step, rng = optimizer.step, ModelRNG(seed, device)
    before = {key: value for key, value in vars(optimizer).items() if key == "step"}
    place, number = None, 0

    @wraps(step)
    def seeded_step(*args: Any, **options: Any) -> Any:
        nonlocal place, number
        # Each step and each rollback replaces the progress by a new object.
        number = number + 1 if state.progress is place else 0
        place = state.progress
        with preserve_torch_rng(device):
            rng.seed_for("optimizer", place.step, number, name)
            return step(*args, **options)

    vars(optimizer)["step"] = seeded_step
    try:
        yield
    finally:
        del vars(optimizer)["step"]
        vars(optimizer).update(before)  # a scheduler of torch sets it too
