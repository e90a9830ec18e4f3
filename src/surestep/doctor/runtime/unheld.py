"""Find parameters that get gradients, and that no optimizer has."""

from __future__ import annotations

import gc
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import WeakSet

from surestep.doctor.problem import Location
from surestep.doctor.runtime.parameters import list_held
from surestep.doctor.runtime.tally import Occurrence
from surestep.doctor.runtime.tensors import read_part
from surestep.doctor.watcher import Script

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

_MOST_OPTIMIZERS = 16  # of which the moment is remembered: finding all parameters takes long
_MOST_LATE = 1000  # parameters
_VALUES = 16  # of a parameter, by which a change is noticed


@dataclass(frozen=True)
class _Moment:
    """The parameters that were there when an optimizer was made, by their ids.

    The id of a parameter that is gone may be that of a later one.
    """

    known: dict[int, weakref.ref[Tensor]]
    frozen: frozenset[int]

    def is_new(self, parameter: Tensor) -> bool:
        """Return whether a parameter was made later."""
        found = self.known.get(id(parameter))
        return found is None or found() is not parameter


def _find_parameters() -> _Moment:
    from torch.nn import Parameter

    kinds = _subclasses(Parameter)  # a lookup is 20 times as fast as `issubclass`
    found = [p for p in gc.get_objects() if type(p) in kinds]
    frozen = frozenset(id(p) for p in found if not p.requires_grad)
    return _Moment({id(p): weakref.ref(p) for p in found}, frozen)


@dataclass
class Late(Occurrence):
    """A parameter that gets gradients, and that no optimizer has.

    Attributes:
        parameter: a weak reference.
        name: in its model.
        is_new: whether it was made after the optimizer; otherwise it was frozen then.
        since_step: the first step with a gradient for it, from 1.
        location: of that step.
        first: some of its values at that step.
        last: the same values at the last step that was checked.
        steps: that were checked, with a gradient for it.
        until: the last of them.
    """

    parameter: weakref.ref[Tensor]
    name: str
    is_new: bool
    since_step: int
    location: Location
    first: Tensor
    last: Tensor
    steps: int = 0
    until: int = 0

    def is_trained(self) -> bool:
        """Return whether it changed, so that something else updates it."""
        import torch

        return not torch.equal(self.first, self.last)


def _subclasses(kind: type) -> set[type]:
    below: list[type] = kind.__subclasses__()
    return {kind}.union(*map(_subclasses, below))


class Unheld:
    """Remembers what was there when optimizers were made, and checks parameters in some steps."""

    def __init__(self) -> None:
        self._made = 0
        self._optimizers: WeakSet[Optimizer] = WeakSet()
        self._late: dict[int, Late] = {}

    def remember(self, run: Script, optimizer: Optimizer) -> None:
        """Remember the parameters that are there when an optimizer is made, once for all rules."""
        self._optimizers.add(optimizer)
        self._made += 1
        if self._made <= _MOST_OPTIMIZERS and optimizer not in run.moments:
            run.moments[optimizer] = _find_parameters()

    def check(self, run: Script, model: nn.Module, optimizer: Optimizer) -> None:
        """Count the parameters of a model with a gradient that no optimizer has.

        Args:
            run: in which it is called.
            model: whose parameters are checked.
            optimizer: that should have them; nothing is counted if they were there before it was
                made, and could be trained.
        """
        moment = run.moments.get(optimizer)
        if moment is None:
            return
        held = list_held(self._optimizers)
        for name, parameter in model.named_parameters():
            if id(parameter) in held:
                continue  # now; earlier steps did not update it
            if parameter.grad is not None and parameter.requires_grad:
                self._count(run, moment, name, parameter)

    def _count(self, run: Script, moment: _Moment, name: str, parameter: Tensor) -> None:
        key, values = id(parameter), read_part(parameter, _VALUES).clone()
        late = self._late.get(key)
        if late is None or late.parameter() is not parameter:
            is_new = moment.is_new(parameter)
            if not (is_new or key in moment.frozen) or len(self._late) >= _MOST_LATE:
                return
            seen = run.step + 1, run.locate()
            late = Late(weakref.ref(parameter), name, is_new, *seen, values, values)
            self._late[key] = late
        late.last = values
        late.steps, late.until = late.steps + 1, run.step + 1

    def find(self, fewest: int) -> list[Late]:
        """Return the parameters that nothing updates in so many steps, checked or between."""
        found = [late for late in self._late.values() if late.until - late.since_step + 1 >= fewest]
        return [late for late in found if not late.is_trained()]
