"""The updates of a parameter are far too small, or far too large, for its values.

A step usually changes a parameter by about a thousandth of its size. Below a millionth it hardly
moves in the whole run: the learning rate is too low, or decays too early. Above a tenth it is
rewritten in a few steps: the learning rate is too high for it. The loss shows neither at once.

Only runs of more than 500 steps are compared, without the steps that change nothing.

Source: https://cs231n.github.io/neural-networks-3/#ratio

Wrong:

    import torch

    model = torch.nn.Linear(16, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-8)
    for _ in range(600):
        x, y = torch.randn(8, 16), torch.randint(4, (8,))
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()

Right:

    import torch

    model = torch.nn.Linear(16, 4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(600):
        x, y = torch.randn(8, 16), torch.randint(4, (8,))
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING

from surestep.doctor.problem import Location, Problem
from surestep.doctor.runtime.parameters import iter_parameters
from surestep.doctor.runtime.tally import Occurrence
from surestep.doctor.runtime.tensors import read_part
from surestep.doctor.watcher import Script, Watcher

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer

SEVERITY = "info"
FIX = "Change the learning rate of this parameter, so that a step changes it by about 0.1%."
_LOWEST, _HIGHEST = 1e-6, 1e-1
_SHARE = 0.9  # of the steps that were checked
_FEWEST = 30  # such steps: the first 20, and every 50th
_MOST_STEPS = 200  # whose ratios are kept
_MOST_PARAMETERS = 8  # the largest ones of an optimizer
_VALUES = 4096  # of a parameter


@dataclass
class _Seen(Occurrence):
    """Parameters of an optimizer, and their ratios."""

    since_step: int
    location: Location
    references: list[weakref.ref[Tensor]]
    names: list[str]
    ratios: list[Tensor] = field(default_factory=list)

    def read_parts(self) -> list[Tensor]:
        """Return some values of each parameter; none if one is gone."""
        parameters = [found for ref in self.references if (found := ref()) is not None]
        if len(parameters) < len(self.references):
            return []
        parts = (read_part(parameter, _VALUES) for parameter in parameters)
        return [part if part.dtype.itemsize == 8 else part.float() for part in parts]


class UpdateToWeightRatioWatcher(Watcher):
    """Compare the change of parameters in a step with their size."""

    SAMPLED = ("on_step", "after_step")

    def __init__(self) -> None:
        self._seen: dict[int, _Seen] = {}
        self._before: list[Tensor] = []

    def on_optimizer(self, run: Script, optimizer: Optimizer) -> None:
        if len(self._seen) >= _MOST_PARAMETERS:
            return
        used = list(iter_parameters(optimizer))
        matrices = [p for p in used if p.dim() > 1 and p.is_floating_point() and not p.is_meta]
        chosen = sorted(matrices, key=lambda p: -p.numel())[:_MOST_PARAMETERS]
        names = [_find_name(run, parameter) for parameter in chosen]
        references = [weakref.ref(parameter) for parameter in chosen]
        self._seen[id(optimizer)] = _Seen(run.step + 1, run.locate(), references, names)

    def on_step(self, run: Script, optimizer: Optimizer) -> None:
        seen = self._seen.get(id(optimizer))
        self._before = []
        if seen is not None and len(seen.ratios) < _MOST_STEPS:
            self._before = [part.clone() for part in seen.read_parts()]

    def after_step(self, run: Script, optimizer: Optimizer) -> None:
        if not self._before:
            return
        import torch

        from surestep.doctor import private

        seen = self._seen[id(optimizer)]
        parts = seen.read_parts()
        if not parts:
            return
        # One call for all of them, as the optimizers of torch do: a call takes most of the time.
        changes = private.foreach_sub(parts, self._before)
        norms = private.foreach_norm(self._before)
        ratios = private.foreach_div(private.foreach_norm(changes), norms)
        seen.ratios.append(torch.stack([ratio.to(ratios[0].device) for ratio in ratios]))
        self._before = []

    def observe(self, run: Script) -> Iterator[Problem]:
        for seen in self._seen.values():
            rows = [ratios.tolist() for ratios in seen.ratios]
            for index, name in enumerate(seen.names):
                ratios = [row[index] for row in rows if row[index] > 0]
                low = sum(ratio < _LOWEST for ratio in ratios)
                high = sum(ratio > _HIGHEST for ratio in ratios)
                if len(ratios) >= _FEWEST and max(low, high) >= _SHARE * len(ratios):
                    usual = median(ratios)
                    yield seen.report(
                        f"{max(low, high)} of {len(ratios)} steps that were checked changed {name} "
                        f"by {'less' if low else 'more'} than {_LOWEST if low else _HIGHEST:g} of "
                        f"its size; the median is {usual:.2g}.",
                        {"parameter": name, "ratio": usual, "steps": len(ratios)},
                    )
                    break  # one parameter shows it


def _find_name(run: Script, parameter: Tensor) -> str:
    """Return the name of a parameter in a model that was called, or its shape."""
    for model in list(run.models):
        for name, other in model.named_parameters():
            if other is parameter:
                return name
    return f"a parameter of shape {tuple(parameter.shape)}"
