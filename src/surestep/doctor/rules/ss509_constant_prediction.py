"""The model answers the same for every input.

The inputs and the targets of a batch differ, but the predictions are equal up to rounding. The
layers before the last are dead, such as ReLUs whose inputs are always negative, or a layer
multiplies by 0. Only the last bias still learns: it answers the mean of the targets, so the loss
falls at first and then stays. Nothing fails.

The first steps are not reported: a last layer may start with zeros.

Source: https://karpathy.github.io/2019/04/25/recipe/

Wrong:

    import torch
    from torch import nn

    hidden = nn.Linear(4, 16)
    nn.init.constant_(hidden.bias, -100)
    model = nn.Sequential(hidden, nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(30):
        x = torch.randn(32, 4)
        loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

Right:

    import torch
    from torch import nn

    head = nn.Linear(16, 1)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), head)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(30):
        x = torch.randn(32, 4)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), x.sum(1, keepdim=True)).backward()
        optimizer.step()
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from surestep.doctor.problem import Location, Problem
from surestep.doctor.runtime.tally import Tally
from surestep.doctor.runtime.tensors import is_tensor
from surestep.doctor.watcher import Script, TorchCall, Watcher

if TYPE_CHECKING:
    from torch import Tensor, nn

SEVERITY = "error"
FIX = "Lower the learning rate, scale the inputs, or check the layers for outputs that are all 0."
_FIRST = 5  # steps, in which a last layer that starts with zeros begins to learn
_CHECKED = 10  # predictions at the end of the run, which must all be constant
_FEWEST = 8  # samples of a batch
_MOST_VALUES = 1_000_000  # of a prediction that are compared
_COMPARED = 8  # samples of an input, from all of it
_ROUNDING = 1e-6  # of the largest value
_MASK = 1e4  # a class of this size for all samples is masked, such as by -1e9


@dataclass
class _Output:
    """What a model returned last.

    Attributes:
        storage: of its values.
        has_inputs: whether the inputs differ, as one truth value.
    """

    storage: int = 0
    has_inputs: Tensor | None = None


class ConstantPredictionWatcher(Watcher):
    """Compare the predictions for the samples of a batch."""

    FUNCTIONS = (
        *("cross_entropy", "nll_loss", "binary_cross_entropy", "mse_loss", "l1_loss"),
        *("binary_cross_entropy_with_logits", "smooth_l1_loss", "huber_loss"),
    )
    SAMPLED = ("after_forward", "on_call")

    def __init__(self) -> None:
        self._last = _Output()
        self._flags: deque[tuple[Location, int, Tensor]] = deque(maxlen=_CHECKED)

    def after_forward(
        self, run: Script, module: nn.Module, inputs: tuple[Any, ...], output: Any
    ) -> None:
        if len(run.modules) != 1 or run.step < _FIRST:
            return
        if is_tensor(output) and inputs and is_tensor(inputs[0]):
            storage = output.untyped_storage().data_ptr()
            given = inputs[0].detach()
            if given.numel() and given.dim():
                given = given[:: -(-len(given) // _COMPARED)]
            self._last = _Output(storage, _differ(given))

    def on_call(self, run: Script, call: TorchCall) -> None:
        prediction = call["input"]
        if run.step < _FIRST or not prediction.requires_grad:
            return
        values, target = prediction.detach(), call["target"].detach()
        is_of_model = values.untyped_storage().data_ptr() == self._last.storage
        if not is_of_model or self._last.has_inputs is None or not target.dim():
            return
        if len(values) != len(target):
            return
        same, is_varied = _are_same(values), _differ(target)
        if same is not None and is_varied is not None:
            flag = same & is_varied & self._last.has_inputs
            self._flags.append((run.locate(), run.step + 1, flag))

    def observe(self, run: Script) -> Iterator[Problem]:
        constant = Tally()
        for location, step, flag in self._flags:
            if bool(flag):
                constant.add(location, step)
        if constant.mistakes == _CHECKED:
            yield constant.report(
                f"The model gave equal predictions for all samples of each of the last {_CHECKED} "
                "batches that were checked, although their inputs and targets differ.",
                {"batches": constant.mistakes},
            )


def _differ(samples: Tensor) -> Tensor | None:
    """Return whether not all samples are equal; None if that cannot be seen."""
    if samples.dim() == 0 or not 0 < samples.numel() <= _MOST_VALUES:
        return None
    return (samples != samples[:1]).any()


def _are_same(values: Tensor) -> Tensor | None:
    """Return whether all rows are equal up to rounding; None for too few or too many values."""
    if values.dim() == 0 or len(values) < _FEWEST or not 0 < values.numel() <= _MOST_VALUES:
        return None
    difference, size = (values - values[:1]).abs().amax(0), values.abs().amax(0)
    size = size.masked_fill((difference == 0) & (size >= _MASK), 0)
    return difference.amax() <= _ROUNDING * size.amax()
