"""Freezing: for good, or until a given number of steps was taken.

Which parameters the options freeze is a function of the steps taken, so nothing is saved for it;
what the user's code freezes is saved. A frozen parameter has requires_grad=False and no gradient;
the optimizer skips it, so its state begins when it is first trained, like that of a new parameter.
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from torch import nn

from surestep.base.errors import TaskError
from surestep.config.param_groups import parse_param_group
from surestep.engine.model.parametrized import own_parameters
from surestep.engine.model.preserve import NORMS
from surestep.engine.modes import TrainModes
from surestep.engine.optim.param_groups import ParameterGroup, match_params, unfreeze_step
from surestep.engine.plan.plan import Plan
from surestep.engine.state.state import State


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


class UnfreezeSchedule:
    """Freezes what is trained later, and unfreezes it after a number of steps taken.

    Frozen BatchNorm is in eval mode, so that its running statistics stay as they are.

    Attributes:
        starts: from which number of steps taken a parameter is trained, by its id.
    """

    def __init__(
        self, model: nn.Module, plan: Plan, groups: Sequence[ParameterGroup], modes: TrainModes
    ) -> None:
        later = [(group.trained_from, group.parameters) for group in groups if group.trained_from]
        self.starts: Mapping[int, int] = {
            id(p): start for start, named in later for p in named.values()
        }
        self._parameters = [p for _, named in later for p in named.values()]
        self._ordered = sorted(set(self.starts.values()))
        self._modes, self._usual = modes, modes.wanted
        self._norms = norm_starts(model, plan, groups)
        self._stage: int | None = None
        self.apply(0)

    def is_due(self, steps_taken: int) -> bool:
        """Return whether `apply` would change something."""
        return bisect_right(self._ordered, steps_taken) != self._stage

    def apply(self, steps_taken: int) -> None:
        """Freeze and unfreeze parameters, and set the modes that modules have in training."""
        if not self.is_due(steps_taken):
            return
        self._stage = bisect_right(self._ordered, steps_taken)
        for parameter in self._parameters:
            parameter.requires_grad_(self.starts[id(parameter)] <= steps_taken)
            parameter.grad = None
        self._modes.wanted = [
            (module, training and self._norms.get(id(module), 0) <= steps_taken)
            for module, training in self._usual
        ]


def make_unfreeze_schedule(
    model: nn.Module, plan: Plan, groups: Sequence[ParameterGroup], modes: TrainModes
) -> UnfreezeSchedule | None:
    """Freeze what is trained later; return what unfreezes it, or None."""
    if not plan.optim_groups:
        return None
    schedule = UnfreezeSchedule(model, plan, groups, modes)
    return schedule if schedule.starts else None


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


def check_requires_grad(state: State) -> Callable[..., None]:
    """Return a check, for log points, of what your code froze or unfroze in mid-run.

    What was frozen at the start is in no optimizer. ZeRO treats a missing gradient as 0.
    """
    parameters = list(state.model.named_parameters())
    frozen = [item for item in parameters if not item[1].requires_grad]
    trained = [item for item in parameters if item[1].requires_grad and state.keeper is not None]

    def check(*_: object) -> None:
        unfrozen = [name for name, parameter in frozen if parameter.requires_grad]
        if unfrozen:
            raise TaskError(
                f"{', '.join(unfrozen[:8])} got requires_grad=True during the run, but a parameter "
                "that was frozen at the start is in no optimizer. Set when it is to be trained: "
                f"optim.groups=[\"{unfrozen[0]} freeze='2 epochs'\"]."
            )
        lost = [name for name, parameter in trained if not parameter.requires_grad]
        if lost:
            raise TaskError(
                f"{', '.join(lost[:8])} got requires_grad=False during the run, and ZeRO would "
                "still update it by decay and momentum. Freeze it before the run, or set "
                "parallel.zero_stage=0."
            )

    return check
