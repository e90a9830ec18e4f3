"""The target is one of the inputs.

The model copies it, and the loss falls to nearly 0 at once. With new data, in which the answer is
not known, the column is missing or wrong. Usual causes are a table whose label column was not
removed from the features, and a language model whose targets were not shifted by a token.

While a script runs, tokens are compared with their targets only if the model reads them in order:
its attention is causal, or it has one recurrent layer.

A target that is the complete input, as of an autoencoder, is not reported.

Source: https://arxiv.org/abs/2207.07048

Wrong:

    import torch

    import surestep

    x, y = torch.randn(60, 4), torch.arange(60) % 3
    x[:, 2] = y
    task = surestep.Task(torch.nn.Linear(4, 3), "multiclass", train=(x, y))
    config = surestep.Config(max_steps=3, batch_size=8)
    surestep.Trainer(task, config, run="run").fit()

Right:

    import torch

    import surestep

    x, y = torch.randn(60, 4), torch.arange(60) % 3
    task = surestep.Task(torch.nn.Linear(4, 3), "multiclass", train=(x, y))
    config = surestep.Config(max_steps=3, batch_size=8)
    surestep.Trainer(task, config, run="run").fit()
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import ref

from surestep.doctor.limits import FEWEST_OTHERS, FEWEST_TARGETS
from surestep.doctor.problem import Location, Problem
from surestep.doctor.runtime.tally import Occurrence
from surestep.doctor.runtime.tensors import is_tensor
from surestep.doctor.watcher import Script, TorchCall, Watcher

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor, nn


SEVERITY = "warning"
REVIEWED = True
FIX = "Remove the column from the inputs; of tokens, let the target be the next one."
_FEWEST_CALLS = 3
_MOST_VALUES = 1_000_000  # of a batch that are compared
_MOST_LINES = 20
_LOSSES = (
    *("cross_entropy", "binary_cross_entropy", "binary_cross_entropy_with_logits"),
    *("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"),
)


@dataclass
class _Seen(Occurrence):
    """The calls of a loss in one line.

    Attributes:
        location: the line.
        since_step: of the first, from 1.
        equal: for each column of the inputs, whether it was the target; one value for tokens.
        varied: how many targets differed from the first of their batch.
        calls: how many.
        samples: of them all.
        model: that got the inputs.
    """

    location: Location
    since_step: int
    equal: Tensor
    varied: Tensor
    model: Callable[[], nn.Module | None]
    calls: int = 1
    samples: int = 0


class TargetIsInputWatcher(Watcher):
    """Compare the targets of losses with what the model got last."""

    FUNCTIONS = (*_LOSSES, "scaled_dot_product_attention")
    SAMPLED = ("on_forward", "on_call")

    def __init__(self) -> None:
        self._input: Tensor | None = None
        self._model: Callable[[], nn.Module | None] = lambda: None
        self._is_causal = False
        self._columns: dict[Location, _Seen] = {}
        self._tokens: dict[Location, _Seen] = {}

    def on_forward(self, run: Script, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        if len(run.modules) != 1:
            return
        self._input = None
        tensors = [value for value in inputs if is_tensor(value)]
        is_table = len(tensors) == 1 and tensors[0].dim() == 2 and tensors[0].shape[1] > 1
        if is_table and tensors[0].numel() <= _MOST_VALUES:
            self._input, self._model = tensors[0].detach(), ref(module)

    def on_call(self, run: Script, call: TorchCall) -> None:
        if call.name == "scaled_dot_product_attention":
            self._is_causal = self._is_causal or bool(call["is_causal"])
            return
        given, self._input = self._input, None
        if given is None or not call.result.requires_grad:
            return
        target = call["target"].detach()
        if target.device != given.device:
            return
        is_tokens = call.name == "cross_entropy" and not target.is_floating_point()
        if is_tokens and not given.is_floating_point() and target.numel() == given.numel():
            equal = (target.reshape(-1) == given.reshape(-1)).all()
            self._add(run, self._tokens, equal, target)
        elif target.numel() == len(given) and given.is_floating_point():
            equal = (given == target.reshape(-1, 1).to(given.dtype)).all(0)
            self._add(run, self._columns, equal, target)

    def _add(
        self, run: Script, found: dict[Location, _Seen], equal: Tensor, target: Tensor
    ) -> None:
        location, varied = run.locate(), (target != target.reshape(-1)[0]).sum()
        seen = found.get(location)
        if seen is None and len(found) < _MOST_LINES:
            seen = _Seen(location, run.step + 1, equal, varied, self._model)
            found[location] = seen
        elif seen is not None and seen.equal.shape == equal.shape:
            seen.equal, seen.varied = seen.equal & equal, seen.varied + varied
            seen.calls += 1
        if seen is not None:
            seen.samples += target.numel()

    def observe(self, run: Script) -> Iterator[Problem]:
        for seen in [*self._columns.values(), *self._tokens.values()]:
            if (
                seen.calls < _FEWEST_CALLS
                or seen.samples < FEWEST_TARGETS
                or int(seen.varied) < FEWEST_OTHERS
            ):
                continue
            equal = seen.equal.reshape(-1).nonzero().flatten().tolist()
            if not equal:
                continue
            message = f"Column {equal[0]} of the inputs was the target in all {seen.calls} batches"
            if seen.location in self._tokens and seen is self._tokens[seen.location]:
                if not (self._is_causal or _reads_in_order(seen.model())):
                    continue
                message = f"The targets of all {seen.calls} batches were the tokens of their inputs"
            yield seen.report(
                f"{message} that were checked.", {"batches": seen.calls, "samples": seen.samples}
            )


def _reads_in_order(model: nn.Module | None) -> bool:
    """Return whether a model predicts tokens from those before them, unlike an autoencoder."""
    from torch import nn

    if model is None:
        return False
    recurrent = [module for module in model.modules() if isinstance(module, nn.RNNBase)]
    if len(recurrent) == 1 and not recurrent[0].bidirectional:
        return True
    masks = (mask for mask in model.buffers() if mask.dim() >= 2 and mask.numel() <= _MOST_VALUES)
    return any(_is_triangular(mask) for mask in masks)


def _is_triangular(mask: Tensor) -> bool:
    """Return whether a mask keeps each token from those after it."""
    matrix = mask.reshape(-1, *mask.shape[-2:])[0]
    if len(matrix) < 2 or matrix.shape[0] != matrix.shape[1]:
        return False
    kept = matrix != 0
    is_lower = bool(kept.tril().equal(kept)) and bool(kept[-1, 0])
    is_upper = bool(kept.triu(1).equal(kept)) and bool(kept[0, -1])  # -inf where it is hidden
    return is_lower or is_upper
