"""Every loss of torch, in the shapes that it takes: value and gradient are those of torch."""

import copy
import warnings
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from surestep.engine.batch import MicroBatch, map_tensors
from surestep.engine.checks.loss import compute_checked_loss
from surestep.engine.losses.adapt import as_loss
from surestep.engine.losses.base import FirstBatch
from surestep.engine.losses.torch_losses import FUNCTIONS
from tests.engine.losses.table import WEIGHT, C, N, indices, masked, normal

SPLITS = {"whole": [N], "uneven": [1, 4, 2], "single": [1] * N}
# Layers of a model, with weights, that return their own loss.
OF_A_MODEL = {"AdaptiveLogSoftmaxWithLoss", "LinearCrossEntropyLoss"}


@dataclass(frozen=True)
class Case:
    """A loss with outputs and targets."""

    loss: Any
    outputs: Any
    targets: Any

    def call(self, outputs: Any, targets: Any) -> Tensor:
        """Call torch's loss as a plain script does."""
        loss = self.loss
        if isinstance(loss, nn.CTCLoss):
            return loss(outputs, *targets)
        if not isinstance(outputs, tuple):
            return loss(outputs, targets)
        if isinstance(loss, nn.GaussianNLLLoss):
            return loss(outputs[0], targets, outputs[1])
        return loss(*outputs) if len(outputs) == 3 else loss(*outputs, targets)

    def rows(self, start: int, stop: int) -> tuple[Any, Any]:
        """Return the outputs and targets of some samples."""
        if isinstance(self.loss, nn.CTCLoss):
            labels, frames, lengths = self.targets
            if labels.dim() == 1:
                ends = [0, *lengths.cumsum(0).tolist()]
                labels = labels[ends[start] : ends[stop]]
            else:
                labels = labels[start:stop]
            return self.outputs[:, start:stop], (labels, frames[start:stop], lengths[start:stop])
        return map_tensors((self.outputs, self.targets), lambda tensor: tensor[start:stop])


def shaped(make: Any, kind: Any, *sizes: tuple[int, ...], **options: Any) -> dict[str, Case]:
    """Return a case of an elementwise loss for each shape."""
    return {
        f"{kind.__name__} {options} {size}": Case(kind(**options), *make(*size)) for size in sizes
    }


def numbers(*shape: int) -> tuple[Tensor, Tensor]:
    return normal(*shape), normal(*shape, seed=3)


def chances(*shape: int) -> tuple[Tensor, Tensor]:
    return normal(*shape).sigmoid(), normal(*shape, seed=3).sigmoid()


def logits(*shape: int) -> tuple[Tensor, Tensor]:
    return normal(*shape), normal(*shape, seed=3).sigmoid()


def counts(*shape: int) -> tuple[Tensor, Tensor]:
    return normal(*shape), indices(*shape, classes=5).double()


def signs(*shape: int) -> tuple[Tensor, Tensor]:
    return normal(*shape), indices(*shape, classes=2).double() * 2 - 1


def distributions(*shape: int) -> tuple[Tensor, Tensor]:
    return normal(*shape).log_softmax(1), normal(*shape, seed=3).softmax(1)


def log_distributions(*shape: int) -> tuple[Tensor, Tensor]:
    return normal(*shape).log_softmax(1), normal(*shape, seed=3).log_softmax(1)


def classes(*shape: int) -> tuple[Tensor, Tensor]:
    return normal(*shape), masked(indices(shape[0], *shape[2:]))


def soft_classes(*shape: int) -> tuple[Tensor, Tensor]:
    return normal(*shape), normal(*shape, seed=3).softmax(1)


def log_classes(*shape: int) -> tuple[Tensor, Tensor]:
    return normal(*shape).log_softmax(1), masked(indices(shape[0], *shape[2:]))


SHAPES = ((N,), (N, 1), (N, C), (N, C, 4), (N, C, 2, 4))
DEEP = ((N, C), (N, C, 4), (N, C, 2, 4), (N, C, 2, 4, 2))
IMAGES = torch.rand(C, 1, 1, dtype=torch.double) + 0.5
ELEMENTWISE = {
    **shaped(numbers, nn.MSELoss, *SHAPES),
    **shaped(numbers, nn.L1Loss, *SHAPES),
    **shaped(numbers, nn.SmoothL1Loss, *SHAPES, beta=0.4),
    **shaped(numbers, nn.SmoothL1Loss, (N, C), beta=0.0),
    **shaped(numbers, nn.HuberLoss, *SHAPES, delta=0.7),
    **shaped(chances, nn.BCELoss, *SHAPES),
    **shaped(chances, nn.BCELoss, (N, C), weight=WEIGHT),
    **shaped(chances, nn.BCELoss, (N, C, 2, 4), weight=IMAGES),
    **shaped(logits, nn.BCEWithLogitsLoss, *SHAPES),
    **shaped(logits, nn.BCEWithLogitsLoss, (N, C), weight=WEIGHT, pos_weight=WEIGHT.flip(0)),
    **shaped(logits, nn.BCEWithLogitsLoss, (N, C, 2, 4), pos_weight=IMAGES),
    **shaped(counts, nn.PoissonNLLLoss, *SHAPES),
    **shaped(counts, nn.PoissonNLLLoss, (N, C), full=True),
    **shaped(signs, nn.SoftMarginLoss, *SHAPES),
    **shaped(distributions, nn.KLDivLoss, *DEEP),
    **shaped(log_distributions, nn.KLDivLoss, *DEEP, log_target=True),
}
CLASSES = {
    **shaped(classes, nn.CrossEntropyLoss, *DEEP),
    **shaped(classes, nn.CrossEntropyLoss, *DEEP, weight=WEIGHT),
    **shaped(classes, nn.CrossEntropyLoss, *DEEP, weight=WEIGHT, label_smoothing=0.2),
    **shaped(classes, nn.CrossEntropyLoss, *DEEP, label_smoothing=0.2),
    **shaped(soft_classes, nn.CrossEntropyLoss, *DEEP, weight=WEIGHT, label_smoothing=0.2),
    **shaped(log_classes, nn.NLLLoss, *DEEP),
    **shaped(log_classes, nn.NLLLoss, *DEEP, weight=WEIGHT),
    **{
        f"ignore_index {ignored} {kind.__name__}": Case(
            kind(ignore_index=ignored, weight=weight),
            normal(N, C, 4).log_softmax(1),
            masked(indices(N, 4), value=ignored),
        )
        for kind in (nn.CrossEntropyLoss, nn.NLLLoss)
        for ignored, weight in ((-1, None), (1, WEIGHT), (255, None))
    },
}
A, B, D = (normal(N, 2, 3, 4, seed=seed) for seed in range(3))
SIGNS = indices(N, 4, classes=2).double() * 2 - 1
LISTED = torch.tensor(
    [[0, 2, -1], [1, -1, 0], [2, 1, 0], [-1, 0, 1], [0, -1, 2], [1, 0, -1], [2, -1, 0]]
)
BROADCAST = {
    "HingeEmbedding (N,)": Case(nn.HingeEmbeddingLoss(0.5), A[:, 0, 0, 0], SIGNS[:, 0]),
    "HingeEmbedding (N, 4)": Case(nn.HingeEmbeddingLoss(), A[:, 0, 0], SIGNS),
    "HingeEmbedding, targets (N, 1)": Case(nn.HingeEmbeddingLoss(), A[:, 0, 0], SIGNS[:, :1]),
    "HingeEmbedding, outputs (N, 1)": Case(nn.HingeEmbeddingLoss(), A[:, 0, 0, :1], SIGNS),
    **{
        f"GaussianNLL, targets {tuple(target.shape)}, variance {tuple(variance.shape)}": Case(
            nn.GaussianNLLLoss(full=full), (mean, variance.exp()), target
        )
        for mean, variance, target, full in (
            (A[:, 0, 0, 0], B[:, 0, 0, 0], D[:, 0, 0, 0], False),
            (A[:, 0, 0], B[:, 0, 0], D[:, 0, 0], True),
            (A[:, 0, 0], B[:, 0, 0, :1], D[:, 0, 0], False),
            (A[:, 0, 0], B[:, 0, 0, 0], D[:, 0, 0], False),
            (A[:, 0, 0], B[:, 0, 0], D[:, 0, 0, :1], True),
            (A[:, 0], B[:, 0, :, :1], D[:, 0, :1], False),
            (A, B[..., 0], D[:, :1], False),
        )
    },
    "MarginRanking (N,)": Case(
        nn.MarginRankingLoss(0.3), (A[:, 0, 0, 0], B[:, 0, 0, 0]), SIGNS[:, 0]
    ),
    "MarginRanking (N, 4)": Case(nn.MarginRankingLoss(), (A[:, 0, 0], B[:, 0, 0]), SIGNS),
    "MarginRanking, targets (N, 1)": Case(
        nn.MarginRankingLoss(0.3), (A[:, 0, 0], B[:, 0, 0]), SIGNS[:, :1]
    ),
    "MarginRanking, one b for four a": Case(
        nn.MarginRankingLoss(0.3), (A[:, 0, 0], B[:, 0, 0, :1]), SIGNS[:, :1]
    ),
    "CosineEmbedding": Case(nn.CosineEmbeddingLoss(0.1), (A[:, 0, 0], B[:, 0, 0]), SIGNS[:, 0]),
    "MultiMargin": Case(nn.MultiMarginLoss(weight=WEIGHT, p=2), normal(N, C), indices(N)),
    "MultiLabelMargin": Case(nn.MultiLabelMarginLoss(), normal(N, C), LISTED),
    "MultiLabelSoftMargin": Case(nn.MultiLabelSoftMarginLoss(weight=WEIGHT), *logits(N, C)),
    "MultiLabelSoftMargin (N, 4, C)": Case(nn.MultiLabelSoftMarginLoss(), *logits(N, 4, C)),
    "MultiLabelSoftMargin, targets (N, 1, C)": Case(
        nn.MultiLabelSoftMarginLoss(), normal(N, 4, C), logits(N, 1, C)[1]
    ),
}
DISTANCE = nn.PairwiseDistance(1)
TRIPLETS = {
    f"{type(loss).__name__} {where} {'with' if targets is not None else 'without'} targets": Case(
        loss, parts, targets
    )
    for loss in (
        nn.TripletMarginLoss(margin=0.7, swap=True),
        nn.TripletMarginLoss(p=1),
        nn.TripletMarginWithDistanceLoss(distance_function=DISTANCE),
    )
    for where, parts in {
        "(N, D)": (A[:, 0, 0], B[:, 0, 0], D[:, 0, 0]),
        "(N, 3, D)": (A[:, 0], B[:, 0], D[:, 0]),
        "(N, 2, 3, D)": (A, B, D),
        "one positive, three negatives": (A[:, 0, :1], B[:, 0, :1], D[:, 0]),
    }.items()
    for targets in (None, torch.zeros(N))
}
FRAMES, LENGTHS = torch.tensor([9, 9, 8, 9, 7, 9, 9]), torch.tensor([4, 1, 2, 3, 0, 4, 2])
SPOKEN = normal(9, N, 6).log_softmax(2)
LABELS = indices(N, 4, classes=6, low=1)
LIST = torch.cat([row[:length] for row, length in zip(LABELS, LENGTHS, strict=True)])
CTC = {
    "CTC padded": Case(nn.CTCLoss(), SPOKEN, (LABELS, FRAMES, LENGTHS)),
    "CTC concatenated": Case(nn.CTCLoss(), SPOKEN, (LIST, FRAMES, LENGTHS)),
    "CTC last blank": Case(nn.CTCLoss(blank=5), SPOKEN, (LABELS - 1, FRAMES, LENGTHS)),
    "CTC zero_infinity": Case(
        nn.CTCLoss(zero_infinity=True), SPOKEN, (LABELS, FRAMES // 3, LENGTHS)
    ),
}
CASES = {**ELEMENTWISE, **CLASSES, **BROADCAST, **TRIPLETS, **CTC}


def measure(loss: Any, case: Case, sizes: list[int]) -> tuple[Tensor, float]:
    """Return the loss of micro-batches of these sizes, summed over their items, and the items."""
    total, items, start = torch.zeros((), dtype=torch.double), 0.0, 0
    for size in sizes:
        outputs, targets = case.rows(start, start + size)
        own = loss.items(outputs if targets is None else (outputs, targets), targets)
        if own:
            total = total + loss.total(outputs, targets, own)[0]
        items, start = items + own, start + size
    return total, items


def leaves(value: Any) -> list[Tensor]:
    found = value if isinstance(value, tuple) else (value,)
    return [each.requires_grad_() for each in found]


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("name", CASES)
def test_value_and_gradient_are_those_of_torch(name, split):
    given = CASES[name]
    mean = "batchmean" if isinstance(given.loss, nn.KLDivLoss) else "mean"
    for reduction in {"mean", "sum", mean}:
        module = copy.deepcopy(given.loss)
        module.reduction = reduction
        case = Case(module, map_tensors(given.outputs, torch.clone), given.targets)
        parameters = leaves(case.outputs)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # mean of KLDivLoss
            expected = case.call(case.outputs, case.targets)
        loss = as_loss(module, "samples")
        total, items = measure(loss, case, SPLITS[split])
        found = total / items if loss.divides else total
        assert loss.divides == (reduction != "sum")
        torch.testing.assert_close(found, expected, rtol=1e-13, atol=1e-13)
        for own, plain in zip(
            torch.autograd.grad(found, parameters),
            torch.autograd.grad(expected, parameters),
            strict=True,
        ):
            torch.testing.assert_close(own, plain, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("name", CASES)
def test_first_batch_of_shapes_that_torch_takes_is_accepted(name):
    case = CASES[name]
    loss = as_loss(case.loss, "samples")
    if loss.check is not None:
        loss.check(FirstBatch(case.outputs, case.targets))
    micro = MicroBatch((case.outputs,), {}, case.targets, 1.0, N, 0)
    compute_checked_loss(loss, case.outputs, case.targets, micro)


def test_every_loss_of_torch_has_a_case():
    kinds = {name for name in vars(nn) if name.endswith("Loss")} - OF_A_MODEL
    assert kinds == {type(case.loss).__name__ for case in CASES.values()}
    of_functions = {type(make()) for make in FUNCTIONS.values()}
    assert {kind.__name__ for kind in of_functions} == kinds


def test_every_loss_function_of_torch_is_known():
    names = {name for name in vars(F) if name.endswith("_loss") and not name.startswith("_")}
    names |= {"cross_entropy", "kl_div", "binary_cross_entropy", "binary_cross_entropy_with_logits"}
    assert {getattr(F, name) for name in names} == set(FUNCTIONS)
