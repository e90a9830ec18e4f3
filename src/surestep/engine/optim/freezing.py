"""Freezing: for good, or until a given number of steps was taken.

Which parameters are trained is a function of the steps taken, so nothing is saved for it. A frozen
parameter has requires_grad=False and no gradient; the optimizer skips it, so its state begins when
it is first trained, like that of a new parameter.
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from torch import nn

from surestep.base.errors import TaskError
from surestep.config.param_groups import parse_param_group
from surestep.engine.model.parametrized import own_parameters
from surestep.engine.model.preserve import NORMS
from surestep.engine.modes import TrainModes
from surestep.engine.optim.param_groups import ParameterGroup, match_params, unfreeze_step
from surestep.engine.plan.plan import Plan


@contextmanager
def freeze_permanent(model: nn.Module, groups: Sequence[ParameterGroup]) -> Iterator[None]:
    """Freeze what is never trained, and restore the model at the end."""
    before = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    try:
        for group in groups:
            if group.trained_from is None:
                for parameter in group.parameters.values():
                    parameter.requires_grad_(False)
        yield
    finally:
        for parameter, required in before:
            parameter.requires_grad_(required)


def frozen_norm_modules(model: nn.Module, before: Iterable[nn.Parameter]) -> list[nn.Module]:
    """List the normalization that is frozen, and of which a parameter in `before` was trained."""
    frozen = {id(parameter) for parameter in before if not parameter.requires_grad}
    return [
        module
        for module in model.modules()
        if isinstance(module, NORMS)
        and not any(weight.requires_grad for weight in own_parameters(module))
        and any(id(weight) in frozen for weight in own_parameters(module))
    ]


def make_unfreeze_schedule(
    model: nn.Module, plan: Plan, groups: Sequence[ParameterGroup], modes: TrainModes
) -> Callable[[int], None] | None:
    """Freeze what is trained later; return what unfreezes it after a number of steps, or None.

    Frozen BatchNorm is in eval mode, so that its running statistics stay as they are.
    """
    if not plan.optim_groups:
        return None
    later = [(group.trained_from, group.parameters) for group in groups if group.trained_from]
    starts = sorted({start for start, _ in later})
    usual, norms = modes.wanted, norm_starts(model, plan, groups)
    stage: int | None = None

    def unfreeze(steps_taken: int) -> None:
        nonlocal stage
        before, stage = stage, bisect_right(starts, steps_taken)
        if stage == before:
            return
        for start, parameters in later:
            for parameter in parameters.values():
                parameter.requires_grad_(start <= steps_taken)
                parameter.grad = None
        modes.wanted = [
            (module, training and norms.get(id(module), 0) <= steps_taken)
            for module, training in usual
        ]

    unfreeze(0)
    return unfreeze if starts else None


def norm_starts(model: nn.Module, plan: Plan, groups: Sequence[ParameterGroup]) -> dict[int, float]:
    """Return from which step on the statistics of each normalization move, by the module's id.

    That is when the first of its parameters is trained, or, if it has none, as its buffers match.
    """
    starts = {id(p): group.trained_from for group in groups for p in group.parameters.values()}
    for group in map(parse_param_group, plan.optim_groups):
        if group.freeze is not None:
            start = unfreeze_step(group.freeze, plan)
            matches = match_params(group.pattern, model)
            starts |= {id(buffer): start for buffer in model.buffers() if id(buffer) in matches}
    norms: dict[int, float] = {}
    for module in model.modules():
        if isinstance(module, NORMS):
            tensors = (*own_parameters(module), *module.buffers(recurse=False))
            own = [starts[id(tensor)] for tensor in tensors if id(tensor) in starts]
            if own:
                norms[id(module)] = min(math.inf if start is None else start for start in own)
    return norms


def trained_modules(
    modes: TrainModes, model: nn.Module, plan: Plan, groups: Sequence[ParameterGroup]
) -> set[nn.Module]:
    """Return the modules that are in training mode at some step of the run."""
    starts = norm_starts(model, plan, groups)
    return {
        module
        for module, training in modes.wanted
        if training and starts.get(id(module), 0) < math.inf
    }


def detect_unfreezing(model: nn.Module) -> Callable[[object], None]:
    """Return a check, for log points, that no parameter was unfrozen in mid-run.

    No optimizer would update it.
    """
    frozen = [item for item in model.named_parameters() if not item[1].requires_grad]

    def check(_: object) -> None:
        thawed = [name for name, parameter in frozen if parameter.requires_grad]
        if thawed:
            raise TaskError(
                f"{', '.join(thawed[:8])} got requires_grad=True during the run, but a parameter "
                "that was frozen at the start is in no optimizer. Set when it is to be trained: "
                f"optim.groups=[\"{thawed[0]} freeze='2 epochs'\"]."
            )

    return check
