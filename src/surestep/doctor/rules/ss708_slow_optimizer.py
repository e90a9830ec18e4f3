"""The options of an optimizer choose its slowest implementation.

With `foreach=False` and without `fused=True`, an optimizer updates one parameter after another on a
GPU, with several kernels for each: a step of a large model takes many times longer.
`set_to_none=False` writes zeros over all gradients and then adds to them, instead of freeing them.

Ignore it on a CPU, and ignore `foreach=False` if there is no memory for one more copy of the
parameters. A script that reads gradients, or uses CUDA graphs, is not reported for `set_to_none`.

Source: https://docs.pytorch.org/docs/stable/optim.html

Wrong:

    import torch

    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    for _ in range(10):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).pow(2).mean().backward()
        optimizer.step()

Right:

    import torch

    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(10):
        optimizer.zero_grad(set_to_none=True)
        model(torch.randn(8, 4)).pow(2).mean().backward()
        optimizer.step()
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from surestep.doctor.problem import Location, Problem, at_event
from surestep.doctor.source.trace import Program
from surestep.doctor.source.training import describe, is_made_by
from surestep.doctor.source.values import Call, Collection, Constant, Operation
from surestep.doctor.watcher import Script, Watcher

if TYPE_CHECKING:
    from torch.optim import Optimizer

SEVERITY = "speed"
FIX = "Leave out foreach and set_to_none, or pass fused=True."
_FEWEST = 10  # parameters: the time is in the number of kernels
_NEEDS_GRADIENTS = re.compile(r"graph|static|\.grad\b|use_gradient_as_bucket_view", re.IGNORECASE)


def check(program: Program) -> Iterator[Problem]:
    """Find the options that turn off what PyTorch chooses by default."""
    keeps_gradients = program.contains(_NEEDS_GRADIENTS)
    for trace in program.traces:
        for event, call in trace.calls:
            is_slow_option = _is_false(call, "foreach") and not _has_one_parameter(call)
            if (
                is_made_by(call, "torch.optim.")
                and is_slow_option
                and (_is_false(call, "fused") or "fused" not in call.keywords)
            ):
                yield at_event(event, f"`{describe(call)}` updates one parameter after another.")
            is_zeroing = call.path == ".zero_grad" and is_made_by(call.receiver, "torch.optim.")
            if is_zeroing and _is_false(call, "set_to_none", 0) and not keeps_gradients:
                yield at_event(event, f"`{describe(call)}` writes zeros instead of freeing them.")


def _is_false(call: Call, name: str, position: int = -1) -> bool:
    option = call.argument(position, name)
    return isinstance(option, Constant) and option.value is False


def _has_one_parameter(call: Call) -> bool:
    """Return whether an optimizer is made for one tensor, such as one that steps in a hook."""
    given = call.argument(0, "params")
    if not isinstance(given, Collection) or not given.is_complete or len(given.elements) != 1:
        return False
    return not isinstance(given.elements[0], (Collection, Operation))  # a group, or *parameters


class SlowOptimizerWatcher(Watcher):
    """Find optimizers of many parameters on a GPU that update one after another."""

    def __init__(self) -> None:
        self._found: list[tuple[Location, int, str, int]] = []

    def on_optimizer(self, run: Script, optimizer: Optimizer) -> None:
        for group in optimizer.param_groups:
            on_gpu = sum(parameter.device.type == "cuda" for parameter in group["params"])
            if is_slow(group, on_gpu):
                name = type(optimizer).__name__
                self._found.append((run.locate(), run.step + 1, name, on_gpu))

    def observe(self, run: Script) -> Iterator[Problem]:
        for location, step, name, count in self._found[:1]:
            yield Problem(
                f"{name} with foreach=False updates {count} parameters on a GPU one after another.",
                {"parameters": count},
                location=location,
                since_step=step,
            )


def is_slow(group: Mapping[str, Any], on_gpu: int) -> bool:
    """Return whether a group turns off both fast implementations for its parameters on a GPU."""
    is_off = group.get("foreach") is False and not group.get("fused")
    return is_off and not group.get("capturable") and on_gpu >= _FEWEST
