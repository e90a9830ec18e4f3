"""Weight decay also shrinks the parameters of normalisation layers, biases and embeddings.

Weight decay pulls each parameter of its group to zero. For the weights of linear layers and
convolutions this limits the size of the function. The scale of a normalisation layer belongs at 1,
and a bias does not make the function larger, so decay only disturbs them. An embedding that is
rarely used is pulled to zero without being trained. Nothing fails: the result is usually a little
worse.

Ignore it if you reproduce a result that was trained like this. Only AdamW with an explicit weight
decay is reported: SGD with decay on all parameters is a common recipe for convolutional networks.

Source: https://arxiv.org/abs/1812.01187, section 3.1, and
https://github.com/karpathy/minGPT/blob/master/mingpt/model.py

Wrong:

    import torch
    from torch import nn

    model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).pow(2).mean().backward()
        optimizer.step()

Right:

    import torch
    from torch import nn

    model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 1))
    weights = [p for p in model.parameters() if p.ndim >= 2]
    others = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": weights}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, weight_decay=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).pow(2).mean().backward()
        optimizer.step()
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from surestep.doctor.problem import Location, Problem, at_event
from surestep.doctor.source.modules import find_layers
from surestep.doctor.source.trace import Program
from surestep.doctor.source.training import describe, options_of
from surestep.doctor.source.values import Call, Collection, Constant, Value
from surestep.doctor.watcher import Script, Watcher
from surestep.doctor.wording import list_names

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

SEVERITY = "info"
FIX = "Put parameters with p.ndim < 2, and those of embeddings, in a group with weight_decay=0."
_DEFAULT = 0.01  # weight decay of AdamW
_LAYERS = re.compile(r"^((Lazy|Sync)?BatchNorm|LayerNorm|RMSNorm|GroupNorm|Embedding)")


def check(program: Program) -> Iterator[Problem]:
    """Find AdamW with one weight decay for all parameters of a module that has such layers."""
    for trace in program.traces:
        for event, call in trace.calls:
            if call.path != "torch.optim.AdamW" or call.has_unknown_arguments:
                continue
            for model, decay in _find_decayed(call):
                layer = next(filter(_is_sensitive, find_layers(model)[0]), None)
                if layer is not None:
                    yield at_event(
                        event,
                        f"weight_decay={decay} also shrinks the parameters of `{describe(layer)}`.",
                        weight_decay=decay,
                        layer_line=layer.line,
                    )
                    break


def _find_decayed(call: Call) -> Iterator[tuple[Value, float]]:
    """Yield the modules of which all parameters decay, and how much."""
    given, decay = call.argument(0, "params"), call.argument(4, "weight_decay")
    groups = given.elements if isinstance(given, Collection) and not given.keys else [given]
    for group in groups:
        parameters, own = group, decay
        if isinstance(group, Collection):
            parameters = group.entries.get("params")
            own = group.entries.get("weight_decay", decay)
        if (
            isinstance(parameters, Call)
            and parameters.path == ".parameters"
            and (number := _number_of(own)) > 0
        ):
            for model in options_of(parameters.receiver)[:1]:
                yield model, number


def _number_of(value: Value | None) -> float:
    known = value.value if isinstance(value, Constant) else 0
    return float(known) if isinstance(known, (int, float)) else 0.0


def _is_sensitive(layer: Call) -> bool:
    options = (layer.keywords.get(name) for name in ("affine", "elementwise_affine"))
    is_off = any(isinstance(option, Constant) and not option.value for option in options)
    return layer.path.startswith("torch.nn.") and bool(_LAYERS.match(layer.name)) and not is_off


class DecayOnNormAndBiasWatcher(Watcher):
    """Find parameters of normalization layers and embeddings in groups of AdamW with decay."""

    def __init__(self) -> None:
        self._found: list[tuple[Location, int, float, list[str]]] = []

    def on_optimizer(self, run: Script, optimizer: Optimizer) -> None:
        from torch.optim import AdamW

        if type(optimizer) is not AdamW:
            return
        # The default shows no choice, unless another group has none.
        decays = {group["weight_decay"] for group in optimizer.param_groups}
        known = {decay for decay in decays if decay > 0}
        if decays == {_DEFAULT}:
            return
        decayed = {
            id(parameter)
            for group in optimizer.param_groups
            if group["weight_decay"] in known
            for parameter in group["params"]
        }
        names = [name for model in list(run.models) for name in _list_sensitive(model, decayed)]
        if names:
            self._found.append((run.locate(), run.step + 1, max(known), names))

    def observe(self, run: Script) -> Iterator[Problem]:
        for location, step, decay, names in self._found[:1]:
            yield Problem(
                f"AdamW with a weight decay of {decay:g} also shrinks {list_names(names)}.",
                {"parameters": names, "weight_decay": decay},
                location=location,
                since_step=step,
            )


def _list_sensitive(model: nn.Module, decayed: set[int]) -> Iterator[str]:
    """Yield the names of decayed parameters of normalization layers and embeddings."""
    for name, layer in model.named_modules():
        if _LAYERS.match(type(layer).__name__):
            for part, parameter in layer.named_parameters(recurse=False):
                if id(parameter) in decayed:
                    yield f"{name}.{part}" if name else part
