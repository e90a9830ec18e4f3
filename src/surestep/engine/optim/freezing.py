"""Freezing: for good, or until a given number of steps was taken.

What is trained is a function of the steps taken, so a resumed run is right without anything saved.
A frozen parameter has requires_grad=False and no gradient; the optimizer passes it over, so its
state begins when it is trained first, as that of a new parameter would.
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from torch import nn

from surestep.base.errors import TaskError
from surestep.config.param_groups import parse_param_group
from surestep.engine.model.param_patterns import match_params, plain_name
from surestep.engine.model.preserve import TrainModes
from surestep.engine.optim.param_groups import ParameterGroup, unfreeze_step
from surestep.engine.plan.plan import Plan

NORMS = nn.modules.batchnorm._NormBase  # those with running statistics


@contextmanager
def freeze_permanent(model: nn.Module, groups: Sequence[ParameterGroup]) -> Iterator[None]:
    """Freeze what is frozen for good, and leave the model as it was."""
    before = [(each, each.requires_grad) for each in model.parameters()]
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
    """List the normalisation that is frozen now, and was not when `before` was trained."""
    held = {id(each) for each in before if not each.requires_grad}
    return [
        module
        for module in model.modules()
        if isinstance(module, NORMS)
        and not any(each.requires_grad for each in module.parameters(recurse=False))
        and any(id(each) in held for each in module.parameters(recurse=False))
    ]


def make_unfreeze_schedule(
    model: nn.Module, plan: Plan, groups: Sequence[ParameterGroup], modes: TrainModes
) -> Callable[[int], None] | None:
    """Freeze what is to be frozen at the start; return what moves it, where anything moves."""
    if not plan.optim_groups:
        return None
    made = UnfreezeSchedule(model, plan, groups, modes)
    return made.at if made.starts else None


class UnfreezeSchedule:
    """The parts of a model that are trained only later, moved between frozen and trained.

    BatchNorm that is frozen is in eval mode for that time, so that its running statistics stay as
    well; then it is in the mode that it had.
    """

    def __init__(
        self, model: nn.Module, plan: Plan, groups: Sequence[ParameterGroup], modes: TrainModes
    ) -> None:
        self.later = [(each.trained_from, each.parameters) for each in groups if each.trained_from]
        self.starts = sorted({start for start, _ in self.later if start is not None})
        self.modes, self.usual = modes, modes.wanted
        self.norms = norm_starts(model, plan, groups)
        self.stage: int | None = None
        self.at(0)

    def at(self, steps_taken: int) -> None:
        """Freeze and train what is due at this place; nothing where that is as it was."""
        stage = bisect_right(self.starts, steps_taken)
        if stage == self.stage:
            return
        self.stage = stage
        for start, parameters in self.later:
            for parameter in parameters.values():
                parameter.requires_grad_(start is not None and start <= steps_taken)
                parameter.grad = None
        self.modes.wanted = [
            (module, training and self.norms.get(id(module), 0) <= steps_taken)
            for module, training in self.usual
        ]


def norm_starts(model: nn.Module, plan: Plan, groups: Sequence[ParameterGroup]) -> dict[int, float]:
    """Return from which step on each normalisation's statistics move, by the module's id.

    When the first of its parameters is trained, or, where it has none, as its buffers are matched.
    """
    starts = {id(p): g.trained_from for g in groups for p in g.parameters.values()}
    for group in map(parse_param_group, plan.optim_groups):
        if group.freeze is not None:
            start = unfreeze_step(group.freeze, plan)
            found = match_params(group.pattern, model)
            starts |= {id(b): start for b in model.buffers() if id(b) in found}
    norms: dict[int, float] = {}
    for module in model.modules():
        if isinstance(module, NORMS):
            tensors = (*module.parameters(recurse=False), *module.buffers(recurse=False))
            own = [starts[id(each)] for each in tensors if id(each) in starts]
            if own:
                norms[id(module)] = min(math.inf if each is None else each for each in own)
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


class UnfreezeDetector:
    """Notice that a parameter was unfrozen by hand, which no optimizer would move."""

    def __init__(self, model: nn.Module) -> None:
        self.still = [
            (plain_name(name), each)
            for name, each in model.named_parameters()
            if not each.requires_grad
        ]

    def __call__(self, _: object) -> None:
        """Look; called at log points."""
        thawed = [name for name, each in self.still if each.requires_grad]
        if thawed:
            raise TaskError(
                f"{', '.join(thawed[:8])} got requires_grad=True in mid-run, and no optimizer "
                "holds what was frozen at the start. Say when it is to be trained: "
                f"optim.groups=[\"{thawed[0]} freeze='2 epochs'\"]."
            )
