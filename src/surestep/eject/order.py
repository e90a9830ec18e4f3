"""The order of the training samples of an ejected script."""

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from surestep.base.errors import RecipeError
from surestep.eject.choices import Choices, flags_of
from surestep.eject.data import is_pair, loads
from surestep.eject.recipe import TaskCall
from surestep.engine.data.samplers.length import ByLength
from surestep.engine.data.samplers.weights import Weighted
from surestep.engine.task.task import Task

_SAMPLERS = "surestep.samplers."
# The first argument of each sampler, by which the script orders the samples.
_ARGUMENTS: Mapping[str, str] = {
    **{"shuffled": "", "sequential": "", "weighted": "weights", "balanced": "labels"},
    **{"by_length": "lengths", "custom": "function"},
}
_FUNCTIONS: Mapping[str, str] = {
    **{"weighted": "weighted_order", "balanced": "balanced_order"},
    **{"by_length": "length_order", "custom": "custom_order"},
}
SAMPLED_BY: Mapping[str, str] = {
    "weighted": "Tensor  # the weight of each sample",
    "balanced": "Tensor  # the class of each sample",
    "by_length": "Tensor  # the length of each sample",
    "custom": "Callable[[int, int], Any]  # the order of an epoch, of (seed, epoch)",
}


@dataclass(frozen=True)
class SamplerCall:
    """The call of `surestep.samplers` in a recipe.

    Attributes:
        kind: the function that it calls; "" without a sampler.
        sampled_by: the source of what the samples are ordered by; None for the targets, and for an
            order that needs nothing.
    """

    kind: str = ""
    sampled_by: str | None = None


def read_sampler(call: TaskCall) -> SamplerCall:
    """Return the call that makes the sampler of a recipe.

    Raises:
        RecipeError: the source does not show it, or eject does not print it.
    """
    given = call.arguments.get("sampler")
    if given is None or _is_none(given):
        return SamplerCall()
    name = call.source.resolve(given.func) if isinstance(given, ast.Call) else ""
    kind = name.removeprefix(_SAMPLERS)
    if not isinstance(given, ast.Call) or kind not in _ARGUMENTS:
        raise RecipeError(
            f"Task(sampler={call.text_of(given)}) is not printed. Call surestep.samplers there: "
            f"{', '.join(_ARGUMENTS)}."
        )
    named = [one.value for one in given.keywords if one.arg == _ARGUMENTS[kind]]
    node = next(iter([*given.args[:1], *named]), None)
    if node is None or _is_none(node):
        return SamplerCall(kind)
    text = call.text_of(node)
    if kind == "custom":
        return SamplerCall(kind, text)
    dtype = ", dtype=torch.float64" if kind == "weighted" else ""
    return SamplerCall(kind, f"torch.as_tensor({text}{dtype})")


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def check_sampler(task: Task, call: SamplerCall) -> None:
    """Check that a script can have the order of a sampler.

    Args:
        task: whose sampler it is.
        call: that makes it.

    Raises:
        RecipeError: it cannot.
    """
    if isinstance(task.sampler, ByLength) and callable(task.sampler.lengths):
        raise RecipeError(
            "Task(sampler=by_length(function)) calls the function on every sample before the run, "
            "and eject does not print that. Give by_length() the length of each sample."
        )
    if call == SamplerCall("balanced") and loads(task):
        raise RecipeError(
            "Task(sampler=balanced()) takes the classes from the data, and eject prints that for a "
            "pair of tensors alone. Give it the classes: balanced(labels)."
        )


def choose_order(task: Task, call: SamplerCall) -> Choices:
    """Return what the sampler of a Task chooses of `templates/program.py` and `orders.py`.

    Args:
        task: whose sampler it is.
        call: that makes it.
    """
    if call.kind not in _FUNCTIONS:
        return Choices(renamed={"parts.sampled_by, ": ""})
    constants: dict[str, Any] = {}
    if isinstance(task.sampler, Weighted):
        samples = len(task.train[0] if is_pair(task.train) else task.train)
        constants = {
            "DRAWS": samples if task.sampler.draws is None else task.sampler.draws,
            "REPLACEMENT": task.sampler.replacement,
        }
    elif isinstance(task.sampler, ByLength):
        constants = {"WINDOW": task.sampler.window}
    function = _FUNCTIONS[call.kind]
    field = "train[1]" if call.sampled_by is None else "sampled_by"
    calls = {
        "epoch_order(epoch, len(x))": f"{function}(epoch, parts.{field})",
        "epoch_order(epoch, len(self.data))": f"{function}(epoch, self.{field})",
    }
    return Choices(flags_of(sampled=True), constants, calls)
