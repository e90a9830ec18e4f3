"""The options that a user changes in a loss are those of the copy that a run has."""

import pytest
import torch
from torch import nn

from surestep.engine.losses.adapt import as_loss

OUTPUTS = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
TARGETS = torch.tensor([0, 1, 2, 2, -100, 1])
CHANGES = {
    "smoothing": lambda plain: setattr(plain, "label_smoothing", 0.3),
    "ignore_index": lambda plain: setattr(plain, "ignore_index", 2),
    "weight": lambda plain: setattr(plain, "weight", torch.tensor([1.0, 5.0, 2.0])),
    "weight, in place": lambda plain: plain.weight.mul_(3),
    "no weight": lambda plain: setattr(plain, "weight", None),
}


@pytest.mark.parametrize("change", CHANGES)
def test_changed_option_counts_from_the_next_update_on(change):
    plain = nn.CrossEntropyLoss(torch.tensor([1.0, 2.0, 3.0]))
    targets = TARGETS.clamp(min=0) if change == "ignore_index" else TARGETS
    loss = as_loss(plain, "samples")

    def mean():
        return loss.value(OUTPUTS, targets) / loss.items(None, targets)

    before = mean()
    assert not loss.options.is_changed()
    for time in range(2):
        CHANGES[change](plain)
        assert time or loss.options.is_changed()
        loss.options.update(torch.device("cpu"))
        assert not loss.options.is_changed()
        torch.testing.assert_close(mean(), plain(OUTPUTS, targets))
    assert not torch.equal(mean(), before)


def test_weights_written_in_place_are_copied_to_the_device_of_the_copy():
    plain = nn.CrossEntropyLoss(torch.tensor([1.0, 2.0, 3.0]))
    options = as_loss(plain, "samples").options
    for _ in range(2):
        options.own.weight = plain.weight.clone()  # as on another device
        plain.weight.mul_(3)
        options.update(torch.device("cpu"))
        assert torch.equal(options.own.weight, plain.weight)


def test_reduction_of_the_copy_stays_a_sum():
    plain = nn.MSELoss()
    loss = as_loss(plain, "samples")
    plain.reduction = "none"
    loss.options.update(torch.device("cpu"))
    assert torch.equal(loss.value(OUTPUTS, OUTPUTS + 1), torch.tensor(18.0))


def test_user_is_told_of_no_change_that_was_taken_over():
    plain = nn.CrossEntropyLoss(torch.ones(3))
    loss = as_loss(plain, "samples")
    loss.options.own.label_smoothing = 0.2  # of the copy alone
    plain.ignore_index = 1
    loss.options.update(torch.device("cpu"))
    plain.ignore_index = 0
    loss.options.update(torch.device("cpu"))
    assert loss.options.own.label_smoothing == 0.2
