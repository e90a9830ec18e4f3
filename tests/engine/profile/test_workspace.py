"""What an operation allocates and frees inside, by the events of torch's allocator."""

from itertools import accumulate

import pytest
import torch
from torch import nn

from surestep.engine.profile import workspace
from surestep.engine.profile.step_trace import StepTrace
from surestep.engine.profile.workspace import (
    describe_call,
    follow_allocations,
    measure_workspace,
)

CONVOLVE = torch.ops.aten.convolution.default
HOW = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)


def test_allocations_are_followed_until_the_result_exists():
    sizes = follow_allocations(lambda: torch.zeros(256).add(torch.zeros(256)))
    assert sum(sizes) == 1024
    assert max(accumulate(sizes)) == 3 * 1024


def test_workspace_is_what_is_freed_before_the_end():
    images, weight = torch.ones(4, 16, 8, 8), torch.ones(16, 16, 3, 3)
    sizes = follow_allocations(lambda: CONVOLVE(images, weight, None, *HOW))
    inside = max(accumulate(sizes)) - images.nbytes  # the outputs have as many bytes
    assert measure_workspace(describe_call(CONVOLVE, (images, weight, None, *HOW))) == inside


@pytest.mark.parametrize(
    "transform",
    [torch.fft.rfft, torch.fft.irfft, torch.fft.fft],
    ids=["to complex", "to real", "complex"],
)
def test_fourier_transforms_of_any_dimension_are_measured(transform):
    x = torch.ones(8, 17, 16, dtype=None if transform is torch.fft.rfft else torch.complex64)
    sizes = follow_allocations(lambda: transform(x, dim=1))
    trace = StepTrace("cpu", 1, {}, nn.Identity(), is_fake=False, measures_workspace=True)
    with trace:
        transform(x, dim=1)
    trace.measure_workspaces()
    assert trace.find_peak().total == max(accumulate(sizes))


def test_large_images_are_measured_with_fewer_samples(monkeypatch):
    images, weight = torch.ones(64, 16, 8, 8), torch.ones(16, 16, 3, 3)
    call = describe_call(CONVOLVE, (images, weight, None, *HOW))
    full = measure_workspace.__wrapped__(call)
    monkeypatch.setattr(workspace, "_AT_MOST", images.nbytes // 2)
    assert measure_workspace.__wrapped__(call) == pytest.approx(full, abs=weight.nbytes)
