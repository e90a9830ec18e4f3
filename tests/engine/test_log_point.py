"""What is told of a step that was not finite."""

import math

import torch

from surestep.engine.log_point import what_failed
from surestep.engine.parallel.base import GradNorm, Outcome
from surestep.engine.state import Place
from surestep.engine.step import StepResult


def test_where_ranks_have_pieces_of_gradients_the_norm_of_all_is_told():
    norms = GradNorm(torch.tensor(math.inf), torch.empty(0), [])
    outcome, loss = Outcome(False, nonfinite=True), torch.tensor(2.0)
    result = StepResult(3, 0, 0.1, 4, 4, 4, Place(), outcome, norms, loss, [])
    assert what_failed(result, 0.5, []) == (
        "Step 3 was not finite: its loss is 0.5, and the norm of its gradients is inf."
    )
