"""A module gives `scaled_dot_product_attention` a dropout that stays on in eval mode.

The function has no parameter for the mode: it drops attention weights whenever `dropout_p` is above
0. So a model in eval mode gives a different, worse result for the same input each time. Nothing
fails.

Ignore it if dropout is wanted in eval mode.

Source:
https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.scaled_dot_product_attention.html
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from surestep.doctor.edits import insert_after
from surestep.doctor.finding import Edit
from surestep.doctor.problem import Problem, at_event
from surestep.doctor.source.modules import has_self, is_in_forward, reads_mode
from surestep.doctor.source.trace import Event, Program
from surestep.doctor.source.training import describe, is_made_by
from surestep.doctor.source.values import Attribute, Constant, Unknown, Value
from surestep.doctor.watcher import NOWHERE, Observation, Run, Watcher
from surestep.doctor.watcher import Call as CallOfTorch

SEVERITY = "error"
FIXABLE = True
FIX = "Pass dropout_p=p if self.training else 0.0."

_PATH = "torch.nn.functional.scaled_dot_product_attention"


def check(program: Program) -> Iterator[Problem]:
    """Find attention in the forward of a module whose dropout does not depend on its mode."""
    for trace in program.traces:
        for event in trace.events:
            call = event.call
            if call is None or call.path != _PATH or not is_in_forward(event):
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


class Watch(Watcher):
    """Find calls with dropout in eval mode."""

    FUNCTIONS = ("scaled_dot_product_attention",)

    def __init__(self) -> None:
        self._location = NOWHERE
        self._calls = self._first = 0
        self._p = 0.0
        self._name = ""

    def on_call(self, run: Run, call: CallOfTorch) -> None:
        if not call["dropout_p"] > 0 or not run.modules or run.modules[-1].training:
            return
        self._calls += 1
        if self._calls == 1:
            self._first, self._location = run.step + 1, run.locate()
            self._p, self._name = call["dropout_p"], type(run.modules[-1]).__name__

    def observe(self, run: Run) -> Iterator[Observation]:
        if self._calls:
            yield Observation(
                self._location,
                f"{self._name} dropped {self._p:.0%} of its attention weights in eval mode, in "
                f"{self._calls} calls that were checked.",
                self._first,
                {"calls": self._calls, "dropout_p": self._p},
            )


def bad_constant():
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


def bad_attribute():
    import torch
    from torch import nn
    from torch.nn.functional import scaled_dot_product_attention

    class Attention(nn.Module):
        def __init__(self, width, dropout):
            super().__init__()
            self.qkv = nn.Linear(width, 3 * width)
            self.dropout = dropout

        def forward(self, x):
            query, key, value = self.qkv(x).chunk(3, dim=-1)
            return scaled_dot_product_attention(
                query, key, value, dropout_p=self.dropout, is_causal=True
            )

    model = Attention(8, 0.2)
    model.eval()
    print(model(torch.randn(2, 5, 8)))


def bad_rate_of_a_dropout():
    import torch
    from torch import nn

    class Attention(nn.Module):
        def __init__(self, config):
            super().__init__()
            self.qkv = nn.Linear(config["width"], 3 * config["width"])
            self.drop = nn.Dropout(config["dropout"])

        def attend(self, query, key, value):
            return nn.functional.scaled_dot_product_attention(query, key, value, None, self.drop.p)

        def forward(self, x):
            return self.drop(self.attend(*self.qkv(x).chunk(3, dim=-1)))

    print(Attention({"width": 8, "dropout": 0.1}).eval()(torch.randn(2, 5, 8)))


def good_depends_on_the_mode():
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


def good_without_dropout():
    import torch
    import torch.nn as nn
    import torch.nn.functional as F

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv = nn.Linear(8, 24)

        def forward(self, x):
            query, key, value = self.qkv(x).chunk(3, dim=-1)
            return F.scaled_dot_product_attention(query, key, value, dropout_p=0.0, is_causal=True)

    print(Attention()(torch.randn(2, 5, 8)))


def good_early_return_in_eval_mode():
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
            if not self.training:
                return F.scaled_dot_product_attention(query, key, value)
            return F.scaled_dot_product_attention(query, key, value, dropout_p=self.dropout)

    print(Attention(0.1)(torch.randn(2, 5, 8)))
