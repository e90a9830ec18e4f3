"""A KL divergence gets arguments that it does not expect, so it is not a divergence.

`kl_div(input, target)` expects log-probabilities as `input`, and probabilities as `target` unless
`log_target=True`. Its default reduction divides by the number of elements, not of samples, so the
result is too small by the number of classes. Nothing fails: the result is a number that moves.

The default reduction is reported only where its result is trained on, and `reduction="mean"` never:
you may want it. While a script runs, the default of `nn.KLDivLoss()` has the same effect as a
reduction that you wrote, so only the source shows it. `F.kl_div(q.log(), p)` is the divergence from
p to q, KL(p || q).

Source: https://docs.pytorch.org/docs/stable/generated/torch.nn.KLDivLoss.html

Wrong:

    import torch
    import torch.nn.functional as F

    teacher, student = torch.nn.Linear(4, 3), torch.nn.Linear(4, 3)
    x, temperature = torch.randn(8, 4), 2.0
    with torch.no_grad():
        soft = F.softmax(teacher(x) / temperature, dim=1)
    output = F.log_softmax(student(x) / temperature, dim=1)
    loss = F.kl_div(output, soft) * temperature**2
    loss.backward()

Right:

    import torch
    import torch.nn.functional as F

    teacher, student = torch.nn.Linear(4, 3), torch.nn.Linear(4, 3)
    x, temperature = torch.randn(8, 4), 2.0
    with torch.no_grad():
        soft = F.softmax(teacher(x) / temperature, dim=1)
    output = F.log_softmax(student(x) / temperature, dim=1)
    (F.kl_div(output, soft, reduction="batchmean") * temperature**2).backward()
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from surestep.doctor.problem import Problem, at_event
from surestep.doctor.runtime.origins import PROBABILITIES, find_origin, name_node, skip_reshapes
from surestep.doctor.runtime.tally import LineTally
from surestep.doctor.runtime.tensors import may_be_probabilities
from surestep.doctor.source.losses import SourceLoss, find_losses, find_trained
from surestep.doctor.source.outputs import Outputs
from surestep.doctor.source.trace import Program
from surestep.doctor.source.training import describe
from surestep.doctor.source.values import Constant
from surestep.doctor.watcher import Script, TorchCall, Watcher

if TYPE_CHECKING:
    from torch import Tensor

SEVERITY = "error"
FIX = 'Write F.kl_div(F.log_softmax(x, -1), F.softmax(y, -1), reduction="batchmean").'


def check(program: Program) -> Iterator[Problem]:
    """Find divergences of wrong arguments."""
    outputs = Outputs(program)
    for trace in program.traces:
        trained = find_trained(trace)
        for loss in find_losses(trace, "kl_div"):
            reason = _explain_arguments(loss, outputs)
            if not reason and id(loss.event.value) in trained and _has_default_reduction(loss):
                reason = (
                    f"`{loss.event.text}` has the reduction 'mean', which divides by "
                    "the number of elements instead of samples."
                )
            if reason:
                yield at_event(loss.event, reason)


def _explain_arguments(loss: SourceLoss, outputs: Outputs) -> str:
    """Return what is wrong with the arguments of a divergence."""
    if outputs.all_are(loss.input, "softmax", "sigmoid") is not None:
        return f"`{describe(loss.input)}` holds probabilities; `input` must be log-probabilities."
    log_target = loss.option("log_target")
    is_log = isinstance(log_target, Constant) and log_target.value is True
    is_plain = log_target is None or (isinstance(log_target, Constant) and not log_target.value)
    target = describe(loss.target)
    if is_plain and outputs.all_are(loss.target, "log_softmax", "log_sigmoid") is not None:
        return f"`{target}` holds log-probabilities, but `log_target` is not True."
    if is_log and outputs.all_are(loss.target, "softmax", "sigmoid") is not None:
        return f"`{target}` holds probabilities, but `log_target=True`."
    return ""


def _has_default_reduction(loss: SourceLoss) -> bool:
    positional = 2 if loss.settings is loss.event.value else 0
    names = ("reduction", "size_average", "reduce")
    return len(loss.settings.args) <= positional and all(loss.option(n) is None for n in names)


class KlArgumentsWatcher(Watcher):
    """Check what a divergence gets."""

    FUNCTIONS = ("kl_div",)
    SAMPLED = ("on_call",)

    def __init__(self) -> None:
        self._tally = LineTally()

    def on_call(self, run: Script, call: TorchCall) -> None:
        if call.result.requires_grad:
            self._tally.add(run, _explain(call))

    def observe(self, run: Script) -> Iterator[Problem]:
        for seen in self._tally:
            yield seen.report(
                f"{seen.reason} in {seen.mistakes} of {self._tally.calls} calls of kl_div.",
                {"calls": self._tally.calls, "mistakes": seen.mistakes},
            )


def _explain(call: TorchCall) -> str:
    """Return what is wrong with a divergence."""
    if _holds_probabilities(call["input"]):
        return "`input` was probabilities instead of log-probabilities"
    target = call["target"]
    if call["log_target"] and _holds_probabilities(target):
        return "`log_target` was True, but `target` was probabilities"
    if not call["log_target"] and _holds_log_probabilities(target):
        return "`log_target` was not True, but `target` was log-probabilities"
    if not call.given & {"reduction", "size_average", "reduce"} and call["input"].dim() > 1:
        return "The reduction was the default 'mean', which divides by elements instead of samples"
    return ""


def _holds_probabilities(tensor: Tensor) -> bool:
    """Return whether a softmax or a sigmoid made a tensor, or whether a softmax may have done so.

    Without a graph, its values decide, which is not worth waiting for a device.
    """
    if tensor.grad_fn is not None:
        origin = find_origin(tensor)
        is_exp_of_log = name_node(origin) == "Exp" and _is_log(origin.next_functions[0][0])
        return name_node(origin) in PROBABILITIES or is_exp_of_log
    return may_be_probabilities(tensor, -1)


def _holds_log_probabilities(tensor: Tensor) -> bool:
    """Return whether a softmax and a logarithm made a tensor, or may have done so."""
    if tensor.grad_fn is not None:
        return _is_log(tensor.grad_fn)
    return may_be_probabilities(tensor, -1, is_log=True)


def _is_log(node: Any) -> bool:
    """Return whether a node of a graph computed log-probabilities."""
    return node is not None and name_node(skip_reshapes(node)) in ("LogSoftmax", "LogSigmoid")
