"""Separate random numbers for callbacks and custom optimizers.

What such code draws changes neither the training nor what other code draws.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial, wraps
from typing import Any

import torch

from surestep.engine.rng import ModelRNG, SeparateRNG, derive_seed, preserve_torch_rng
from surestep.engine.state.state import State
from surestep.engine.step.callback import Callback, callbacks_with

_SURESTEP = __name__.partition(".")[0]
_DRAW_NOTHING = (_SURESTEP, "torch", "bitsandbytes")  # the optimizers by name
_OPTIMIZER_HOOKS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")


def hooks_of(
    callbacks: Sequence[Callback], moment: str, seed: int, device: torch.device
) -> list[Callable[..., Any]]:
    """Return the hooks of the callbacks that override `moment`; those of surestep draw nothing.

    Args:
        callbacks: the callbacks of the run.
        moment: the name of the hook.
        seed: the seed of the run.
        device: of the model.
    """
    hooks: list[Callable[..., Any]] = []
    numbers: Counter[str] = Counter()
    for callback in callbacks_with(callbacks, moment):
        kind, hook = type(callback), getattr(callback, moment)
        if kind.__module__.partition(".")[0] == _SURESTEP:
            hooks.append(hook)
            continue
        name = f"{kind.__module__}.{kind.__qualname__}"  # so that no other callback changes it
        own = derive_seed("callback", seed, moment, name, numbers[name])
        rng = SeparateRNG(own, device)
        hooks.append(partial(_call_hook, rng.call, hook))
        numbers[name] += 1
    return hooks


def _call_hook(call: Any, hook: Any, state: State, *args: Any) -> Any:
    return call(state.progress.step, hook, state, *args)


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
