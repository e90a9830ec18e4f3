"""What a knob learns of the step of a task."""

import torch
from torch import nn
from torch.nn import functional

from surestep.engine.plan.specs import TracedStep
from surestep.tuning.speed.traced_step import with_traced_step
from tests.tiny import CLASSES, FEATURES, plan


class Attends(nn.Module):
    def __init__(self):
        super().__init__()
        self.last = nn.Linear(FEATURES, CLASSES)

    def forward(self, x):
        rows = x[None, None]
        return self.last(functional.scaled_dot_product_attention(rows, rows, rows)[0, 0])


def test_traced_peak_grows_with_the_micro_batch():
    traced = with_traced_step(plan(micro_batch_size=2)).plan
    small, large = (
        traced.task_info.trace_step(traced.replace(micro_batch_size=size)).peak for size in (2, 8)
    )
    assert 0 < small < large


def test_trace_names_what_computes_attention():
    torch.manual_seed(0)
    attends, other = (with_traced_step(plan(parts)).plan for parts in ({"model": Attends()}, {}))
    assert attends.task_info.trace_step(attends).attention
    assert other.task_info.trace_step(other).attention == ()


def test_step_that_cannot_be_traced_is_not_known():
    planned = with_traced_step(plan({"model": nn.Linear(FEATURES + 1, CLASSES)})).plan
    assert planned.task_info.trace_step(planned) == TracedStep()
