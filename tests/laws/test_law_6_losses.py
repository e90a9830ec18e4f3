"""Law 6 for the built-in losses: value and gradient read no device value."""

import pytest
import torch
from torch import Tensor

from surestep.engine.losses.adapt import as_loss
from surestep.laws.host_reads import host_reads
from tests.engine.losses.table import CASES, Case


def reads_of(case: Case) -> list[str]:
    loss = as_loss(case.loss, "samples")
    given = case.outputs if isinstance(case.outputs, tuple) else (case.outputs,)
    leaves = tuple(tensor.clone().requires_grad_() for tensor in given)
    outputs = leaves if isinstance(case.outputs, tuple) else leaves[0]
    with host_reads() as reads:
        value = loss.value(outputs, case.targets)
        value = value if isinstance(value, Tensor) else sum(value.values())
        torch.autograd.backward(value)
    return list(reads)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_loss_reads_no_device_value(case):
    assert reads_of(case) == []
