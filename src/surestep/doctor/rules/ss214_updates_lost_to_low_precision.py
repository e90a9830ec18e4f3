"""All parameters are bfloat16 or float16, and the learning rate is too small for them.

bfloat16 has 8 significant bits, so adding an update of less than about 0.2% of a weight changes
nothing. With a learning rate of 1e-4 or less, most updates of Adam are that small, and they are
lost in each step. Nothing fails: the loss only falls more slowly, or stops.

Ignore it if the optimizer keeps a float32 copy, or rounds at random.

Source: https://arxiv.org/abs/2010.06192

Wrong:

    import torch

    model = torch.nn.Linear(4, 1).bfloat16()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    for _ in range(12):
        optimizer.zero_grad()
        model(torch.randn(8, 4, dtype=torch.bfloat16)).pow(2).mean().backward()
        optimizer.step()

Right:

    import torch

    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    for _ in range(3):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(torch.randn(8, 4)).pow(2).mean()
        loss.backward()
        optimizer.step()
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from surestep.doctor.problem import Problem, at_event
from surestep.doctor.runtime.parameters import iter_parameters
from surestep.doctor.runtime.tally import Tally
from surestep.doctor.runtime.tensors import read_part
from surestep.doctor.source.modules import models_of
from surestep.doctor.source.trace import Program, Trace
from surestep.doctor.source.training import describe, find_actions, is_made_by, is_same, strip
from surestep.doctor.source.values import Call, Constant, Symbol, Value
from surestep.doctor.watcher import Script, Watcher

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer

SEVERITY = "warning"
FIX = "Keep the parameters in float32, and compute inside torch.autocast."
_VALUES = 1024  # of a parameter that are compared
_MOST_PARAMETERS = 8
_MOST_STEPS = 200
_FEWEST = 10  # steps
_LOST = 0.4  # of the values

_ADAM = ("torch.optim.Adam", "torch.optim.AdamW", "torch.optim.NAdam", "torch.optim.RAdam")
_LOW = ("torch.bfloat16", "torch.float16", "torch.half")
_MAX_LR = 1e-4


def check(program: Program) -> Iterator[Problem]:
    """Find steps of Adam with a small learning rate on models of low precision."""
    for trace in program.traces:
        for step in find_actions(trace):
            optimizer = strip(step.target)
            if step.kind != "step" or not is_made_by(optimizer, *_ADAM):
                continue
            lr = optimizer.argument(1, "lr") if isinstance(optimizer, Call) else None
            if not isinstance(lr, Constant) or not isinstance(lr.value, float):
                continue
            models = models_of(optimizer)
            low = [model for model in models if _precision_of(trace, model) in _LOW]
            if low and lr.value <= _MAX_LR:
                yield at_event(
                    step.event,
                    f"`{describe(low[0])}` is in low precision: with lr={lr.value}, most updates "
                    "round to nothing.",
                    lr=lr.value,
                )


def _precision_of(trace: Trace, model: Value) -> str:
    """Return the dtype to which a model was last converted; "" if it is not certain."""
    dtype = ""
    for event, call in trace.calls:
        if not call.is_method or not is_same(call.receiver, model):
            continue
        if call.name in ("half", "bfloat16", "float", "double"):
            dtype = "" if event.branches else f"torch.{call.name}"
        elif call.name == "to":
            for given in call.arguments:
                if isinstance(given, Symbol):
                    dtype = "" if event.branches else given.path
    return dtype


class UpdatesLostToLowPrecisionWatcher(Watcher):
    """Count the values with a gradient that a step does not change."""

    SAMPLED = ("on_step", "after_step")

    def __init__(self) -> None:
        self._before: list[tuple[Tensor, Tensor, Tensor]] = []
        self._counts: list[Tensor] = []  # of values: unchanged, and with a gradient
        self._first = Tally()  # of these steps
        self._dtype = ""

    def on_step(self, run: Script, optimizer: Optimizer) -> None:
        self._before = []
        # Optimizers of other packages may keep a copy in float32, or round at random.
        is_known = type(optimizer).__module__.startswith("torch.optim.")
        if not is_known or len(self._counts) >= _MOST_STEPS:
            return
        import torch

        for parameter in iter_parameters(optimizer):
            is_low = parameter.dtype in (torch.bfloat16, torch.float16)
            if not is_low or parameter.grad is None or parameter.grad.is_sparse:
                continue
            values, gradients = read_part(parameter, _VALUES), read_part(parameter.grad, _VALUES)
            self._before.append((values, values.clone(), gradients != 0))
            self._dtype = str(parameter.dtype).removeprefix("torch.")
            if len(self._before) >= _MOST_PARAMETERS:
                break

    def after_step(self, run: Script, optimizer: Optimizer) -> None:
        if not self._before:
            return
        import torch

        if not self._counts:
            self._first.add(run.locate(), run.step)
        unchanged = [((now == old) & has_gradient).sum() for now, old, has_gradient in self._before]
        all_ = [has_gradient.sum() for _, _, has_gradient in self._before]
        pair = torch.stack(unchanged).sum(), torch.stack(all_).sum()
        self._counts.append(torch.stack(pair))
        self._before = []

    def observe(self, run: Script) -> Iterator[Problem]:
        if len(self._counts) < _FEWEST:
            return
        import torch

        counts = torch.stack([count.cpu() for count in self._counts]).tolist()
        shares = sorted(unchanged / total for unchanged, total in counts if total)
        usual = shares[len(shares) // 2] if shares else 0.0
        if usual > _LOST:
            yield self._first.report(
                f"A step left {usual:.0%} of the {self._dtype} values with a gradient unchanged, "
                f"in the median of {len(shares)} steps: their updates are rounded to nothing.",
                {"share": usual, "steps": len(shares), "dtype": self._dtype},
            )
