"""A module gives `scaled_dot_product_attention` a dropout that stays on in eval mode.

The function has no parameter for the mode: it drops attention weights whenever `dropout_p` is above
0. So a model in eval mode gives a different, worse result for the same input each time. Nothing
fails.

Ignore it if dropout is wanted in eval mode.

Source:
https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.scaled_dot_product_attention.html

Wrong:

    import torch
    import torch.nn as nn
    import torch.nn.functional as F


    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv = nn.Linear(8, 24)

        def forward(self, x):
            query, key, value = self.qkv(x).chunk(3, dim=-1)
            return F.scaled_dot_product_attention(query, key, value, dropout_p=0.1)


    print(Attention().eval()(torch.randn(2, 5, 8)))

Right:

    import torch
    import torch.nn as nn
    import torch.nn.functional as F


    class Attention(nn.Module):
        def __init__(self, dropout):
            super().__init__()
            self.qkv = nn.Linear(8, 24)
            self.dropout = dropout

        def forward(self, x):
            query, key, value = self.qkv(x).chunk(3, dim=-1)
            p = self.dropout if self.training else 0.0
            return F.scaled_dot_product_attention(query, key, value, dropout_p=p)


    print(Attention(0.1)(torch.randn(2, 5, 8)))
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from surestep.doctor.edits import insert_after
from surestep.doctor.finding import Edit
from surestep.doctor.problem import Problem, at_event
from surestep.doctor.runtime.tally import Tally
from surestep.doctor.source.modules import has_self, is_in_forward, reads_mode
from surestep.doctor.source.trace import Event, Program
from surestep.doctor.source.training import describe, is_made_by
from surestep.doctor.source.values import Attribute, Constant, Unknown, Value
from surestep.doctor.watcher import Script, TorchCall, Watcher

SEVERITY = "error"
FIXABLE = True
FIX = "Pass dropout_p=p if self.training else 0.0."

_PATH = "torch.nn.functional.scaled_dot_product_attention"


def check(program: Program) -> Iterator[Problem]:
    """Find attention in the forward of a module whose dropout does not depend on its mode."""
    for trace in program.traces:
        for event, call in trace.calls:
            if call.path != _PATH or not is_in_forward(event):
                continue
            rate = call.argument(4, "dropout_p")
            if rate is None or not _is_on(rate):
                continue
            if any(reads_mode(branch.test) for branch in event.branches):
                continue
            yield at_event(
                event,
                f"The dropout of `{describe(rate)}` in this attention is also on in eval mode.",
                edits=_depend_on_mode(event),
            )


def _depend_on_mode(event: Event) -> tuple[Edit, ...]:
    if not has_self(event) or not isinstance(event.node, ast.Call):
        return ()
    names = {word.arg: word.value for word in event.node.keywords}
    rate = names.get("dropout_p")
    if not isinstance(rate, (ast.Constant, ast.Name, ast.Attribute)):
        return ()
    return (insert_after(event.file, rate, " if self.training else 0.0"),)


def _is_on(rate: Value) -> bool:
    """Return whether a rate is above 0, or is set once when the module is created."""
    if isinstance(rate, Constant):
        return isinstance(rate.value, float) and rate.value > 0
    while isinstance(rate, Attribute):
        if rate.name == "p" and is_made_by(rate.base, "torch.nn.Dropout"):
            return True
        rate = rate.base
    return isinstance(rate, Unknown) and (
        isinstance(rate.node, ast.FunctionDef) and rate.node.name == "__init__"
    )


class AttentionDropoutAlwaysOnWatcher(Watcher):
    """Find calls with dropout in eval mode."""

    FUNCTIONS = ("scaled_dot_product_attention",)

    def __init__(self) -> None:
        self._tally = Tally()  # of calls
        self._p = 0.0
        self._name = ""

    def on_call(self, run: Script, call: TorchCall) -> None:
        if not call["dropout_p"] > 0 or not run.modules or run.modules[-1].training:
            return
        self._tally.add_here(run)
        if self._tally.mistakes == 1:
            self._p, self._name = call["dropout_p"], type(run.modules[-1]).__name__

    def observe(self, run: Script) -> Iterator[Problem]:
        calls = self._tally.mistakes
        if calls:
            yield self._tally.report(
                f"{self._name} dropped {self._p:.0%} of its attention weights in eval mode, in "
                f"{calls} calls that were checked.",
                {"calls": calls, "dropout_p": self._p},
            )
