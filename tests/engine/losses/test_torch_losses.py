"""torch's losses with several arguments, and those whose mean is not over elements."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from surestep.engine.losses.adapt import as_loss
from surestep.engine.losses.base import FirstBatch
from surestep.engine.losses.torch_losses import FUNCTIONS, KNOWN
from tests.engine.losses.table import FRAMES, LENGTHS, SPOKEN, WEIGHT, N, indices, normal, rows

C = 3
A, B, D = (normal(N, 4, seed=seed) for seed in range(3))
LOGITS, Y, MULTI = normal(N, C), indices(N), indices(N, C, classes=2).double()
SIGNS, COUNTS = indices(N, classes=2).double() * 2 - 1, indices(N, C, classes=5).double()
FRAMES_OUT = normal(N, 9, 6).log_softmax(2)
LISTED = torch.tensor(
    [[0, 2, -1], [1, -1, 0], [2, 1, 0], [-1, 0, 1], [0, -1, 2], [1, 0, -1], [2, -1, 0]]
)
CASES = {
    "PoissonNLL": (nn.PoissonNLLLoss(), LOGITS, COUNTS),
    "PoissonNLL full": (nn.PoissonNLLLoss(log_input=False, full=True), LOGITS.exp(), COUNTS),
    "GaussianNLL": (nn.GaussianNLLLoss(full=True), (A, B.exp()), D),
    "HingeEmbedding": (nn.HingeEmbeddingLoss(margin=0.5), A.abs(), D.sign()),
    "MarginRanking": (nn.MarginRankingLoss(margin=0.3), (A[:, 0], B[:, 0]), SIGNS),
    "CosineEmbedding": (nn.CosineEmbeddingLoss(margin=0.1), (A, B), SIGNS),
    "TripletMargin": (nn.TripletMarginLoss(swap=True), (A, B, D), None),
    "TripletDistance": (
        nn.TripletMarginWithDistanceLoss(distance_function=nn.PairwiseDistance(1)),
        *((A, B, D), None),
    ),
    "MultiMargin": (nn.MultiMarginLoss(weight=WEIGHT), LOGITS, Y),
    "MultiLabelMargin": (nn.MultiLabelMarginLoss(), LOGITS, LISTED),
    "MultiLabelSoftMargin": (nn.MultiLabelSoftMarginLoss(weight=WEIGHT), LOGITS, MULTI),
    "SoftMargin": (nn.SoftMarginLoss(), LOGITS, MULTI * 2 - 1),
    "CTC": (nn.CTCLoss(), FRAMES_OUT, SPOKEN),
    "F.poisson_nll_loss": (F.poisson_nll_loss, LOGITS, COUNTS),
    "F.multi_margin_loss": (F.multi_margin_loss, LOGITS, Y),
    "F.multilabel_soft_margin_loss": (F.multilabel_soft_margin_loss, LOGITS, MULTI),
}
known = pytest.mark.parametrize(("plain", "outputs", "targets"), CASES.values(), ids=CASES)


def torchs_mean(plain, outputs, targets):
    """Call the loss as a plain script does."""
    if isinstance(plain, nn.GaussianNLLLoss):
        return plain(outputs[0], targets, outputs[1])
    if isinstance(plain, nn.CTCLoss):
        return plain(outputs.transpose(0, 1), *targets)
    given = outputs if isinstance(outputs, tuple) else (outputs,)
    return plain(*given) if targets is None else plain(*given, targets)


def ours(plain, outputs, targets):
    loss = as_loss(plain, "samples")
    items = loss.items(outputs if targets is None else (outputs, targets), targets)
    if isinstance(plain, nn.CTCLoss):
        outputs = outputs.transpose(0, 1)
    return loss.total(outputs, targets, items)[0], items, loss


@known
def test_sum_divided_by_its_items_is_torchs_mean(plain, outputs, targets):
    total, items, _ = ours(plain, outputs, targets)
    expected = torchs_mean(plain, outputs, targets)
    torch.testing.assert_close(total / items, expected, rtol=1e-12, atol=0)


@known
def test_sums_over_micro_batches_of_different_sizes_add_up(plain, outputs, targets):
    parts = [ours(plain, rows(outputs, a, b), rows(targets, a, b)) for a, b in ((0, 2), (2, N))]
    total, items = sum(part[0] for part in parts), sum(part[1] for part in parts)
    expected = torchs_mean(plain, outputs, targets)
    torch.testing.assert_close(total / items, expected, rtol=1e-12, atol=0)


def test_every_known_torch_loss_has_a_case():
    from tests.engine.losses.test_adapt import CASES as FIRST

    tried = {type(case[0]) for case in (*CASES.values(), *FIRST.values())}
    assert set(KNOWN) <= tried
    assert {type(make()) for make in FUNCTIONS.values()} <= tried


def test_torch_loss_with_sum_reduction_is_not_divided():
    total, _, loss = ours(nn.CTCLoss(reduction="sum"), FRAMES_OUT, SPOKEN)
    assert not loss.divides
    summed = nn.CTCLoss(reduction="sum")(FRAMES_OUT.transpose(0, 1), SPOKEN[0], FRAMES, LENGTHS)
    torch.testing.assert_close(total, summed, rtol=1e-12, atol=0)


SEVERAL = {name: case for name, case in CASES.items() if isinstance(case[1], tuple)}


@pytest.mark.parametrize(("plain", "outputs", "targets"), SEVERAL.values(), ids=SEVERAL)
def test_sum_of_a_loss_of_several_tensors_is_not_divided(plain, outputs, targets):
    plain = copy.copy(plain)
    plain.reduction = "sum"
    found, _, loss = ours(plain, outputs, targets)
    plain.reduction = "mean"
    mean, items, _ = ours(plain, outputs, targets)
    assert not loss.divides
    count = len(outputs[0]) if items == len(outputs[0]) else outputs[0].numel()
    torch.testing.assert_close(found, mean / items * count, rtol=1e-12, atol=0)


def test_complex_outputs_of_l1_loss_are_accepted():
    check = as_loss(nn.L1Loss(), "samples").check
    assert check is not None
    check(FirstBatch(torch.complex(LOGITS, LOGITS), LOGITS))


@pytest.mark.parametrize("kind", [torch.Tensor, lambda weight: nn.Parameter(weight, False)])
def test_class_weights_of_torch_are_counted_as_they_are(kind):
    loss = as_loss(nn.CrossEntropyLoss(weight=kind(torch.tensor([-1.0, 2.0]))), "samples")
    assert loss.items(None, torch.tensor([0, 1, 1])) == 3.0
