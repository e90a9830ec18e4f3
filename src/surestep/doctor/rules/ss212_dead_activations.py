"""The output of a layer is the same number everywhere, for every batch.

A ReLU whose inputs are all negative gives 0 for every sample, and a sigmoid or tanh with far too
large inputs gives only 1. Then the layers before it get no gradient, and stay dead. Usually a step
was far too large, the inputs are not scaled, or the first bias is far from 0. Nothing fails: the
model only predicts the same for every input.

Only an activation or a layer with parameters is reported, and only if its inputs differ.

Source: https://karpathy.github.io/2019/04/25/recipe/

Wrong:

    import torch
    from torch import nn

    model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1), nn.ReLU(), nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e3)
    for _ in range(30):
        x = torch.rand(32, 4)
        loss = nn.functional.l1_loss(model(x), -x.sum(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

Right:

    import torch
    from torch import nn

    first = nn.Linear(4, 16)
    with torch.no_grad():
        first.bias[:8] = -50.0
    model = nn.Sequential(first, nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(30):
        x = torch.randn(32, 4)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), x.sum(1, keepdim=True)).backward()
        optimizer.step()
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from surestep.doctor.problem import Location, Problem
from surestep.doctor.runtime.tally import Occurrence
from surestep.doctor.watcher import Script, Watcher

if TYPE_CHECKING:
    from torch import Tensor, nn

SEVERITY = "warning"
FIX = "Lower the learning rate, scale the inputs, or initialize the layer before with small values."
_FEWEST = 15  # batches that were checked
_SHARE = 0.9  # of the batches
_VALUES = 1024  # of an output that are compared
_FIRST_VALUES = 16  # and before these, since reading values that are far apart takes long
_SMALLEST = 16  # values of an output
_MOST_LAYERS = 1000


@dataclass
class _Seen(Occurrence):
    """The outputs of a layer.

    Attributes:
        layer: a weak reference.
        name: of its class.
        index: among the layers that were called, from 1.
        calls: that were checked.
        is_last: whether its output is that of the model, which SS509 compares with targets.
        constant: in how many the output was constant, and the input was not; a tensor if one may
            have been, as a value of a device is read at the end.
    """

    layer: weakref.ref[nn.Module]
    name: str
    index: int
    since_step: int
    location: Location
    constant: Tensor | int = 0
    calls: int = 0
    is_last: bool = False


class DeadActivationsWatcher(Watcher):
    """Count the batches for which the output of a layer is constant."""

    SAMPLED = ("after_forward",)

    def __init__(self) -> None:
        self._seen: dict[int, _Seen] = {}
        self._newest: tuple[int, _Seen] | None = None  # and the id of its output
        # The last output, with its version and whether it was constant.
        self._checked: tuple[weakref.ref[Tensor], int, Tensor | None] | None = None

    def after_forward(
        self, run: Script, module: nn.Module, inputs: tuple[Any, ...], output: Any
    ) -> None:
        if run.in_backward or not module.training or not inputs:
            return
        import torch

        given = inputs[0]
        if not isinstance(output, torch.Tensor) or not isinstance(given, torch.Tensor):
            return
        is_large = min(output.numel(), given.numel()) >= _SMALLEST
        if self._newest is not None and len(run.modules) == 1:
            key, newest = self._newest
            newest.is_last = newest.is_last or key == id(output)
        is_number = output.is_floating_point() and not given.is_complex()
        if not is_large or not is_number or not _is_layer(module):
            return
        constant = is_constant = _is_constant(output)
        if is_constant is not None and (was_constant := self._was_constant(given)) is not None:
            constant = is_constant > was_constant
        has_version = not output.is_inference()
        self._checked = (weakref.ref(output), output._version, is_constant) if has_version else None
        seen = self._seen.get(id(module))
        if seen is None or seen.layer() is not module:
            if len(self._seen) >= _MOST_LAYERS:
                return
            at = run.step + 1, run.locate()
            name, index = type(module).__name__, len(self._seen) + 1
            seen = self._seen[id(module)] = _Seen(weakref.ref(module), name, index, *at)
        if constant is not None:
            seen.constant = seen.constant + constant
        seen.calls += 1
        self._newest = id(output), seen

    def _was_constant(self, given: Tensor) -> Tensor | None:
        """Return whether an input is constant: usually it is the output of the layer before."""
        if self._checked is not None:
            output, version, is_constant = self._checked
            if output() is given and version == given._version:
                return is_constant
        return _is_constant(given)

    def observe(self, run: Script) -> Iterator[Problem]:
        for seen in self._seen.values():
            if seen.calls < _FEWEST or seen.is_last:
                continue
            constant = int(seen.constant)
            if constant >= max(_FEWEST, _SHARE * seen.calls):
                yield seen.report(
                    f"The output of {seen.name} (layer {seen.index} in the order of their calls) "
                    f"was constant in {constant} of {seen.calls} batches that were checked.",
                    {"layer": seen.index, "constant": constant, "batches": seen.calls},
                )


def _is_layer(module: nn.Module) -> bool:
    """Return whether a module without others is an activation, or has parameters."""
    if next(module.children(), None) is not None:
        return False
    is_activation = type(module).__module__ == "torch.nn.modules.activation"
    return is_activation or next(module.parameters(), None) is not None


def _is_constant(tensor: Tensor) -> Tensor | None:
    """Return whether some values of a tensor, from all of it, are the same number.

    It is None if a few values show that they are not; those of a GPU are not read, as that waits.
    """
    values = tensor.detach() if tensor.is_contiguous() else tensor.detach().flatten()
    if values.device.type == "cpu":
        first = _pick(values, _FIRST_VALUES).tolist()
        if first.count(first[0]) < len(first):
            return None
    least, greatest = _pick(values, _VALUES).aminmax()
    return least == greatest


def _pick(values: Tensor, most: int) -> Tensor:
    """Return evenly spaced values of a contiguous tensor."""
    step = values.numel() // most | 1  # odd: an even step may read a few features only
    return values.as_strided((-(-values.numel() // step),), (step,))
