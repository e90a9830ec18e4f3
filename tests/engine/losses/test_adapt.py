import pytest
import torch
from torch import nn
from torch.nn import functional

import surestep
from surestep.base.errors import TaskError
from surestep.engine.losses.adapt import as_loss, as_losses
from surestep.engine.losses.base import LossModule

torch.manual_seed(0)
N, C, T = 7, 3, 5
LOGITS, WEIGHT = torch.randn(N, C, dtype=torch.double), torch.tensor([0.2, 1.0, 3.0]).double()
CLASSES = torch.tensor([0, 2, -100, 1, 2, -100, 0])
PADDED_BY_ZERO = torch.tensor([0, 2, 0, 1, 2, 1, 0])
PROBABILITIES = torch.softmax(torch.randn(N, C, dtype=torch.double), dim=1)
PIXELS, PIXEL_CLASSES = torch.randn(N, C, T, dtype=torch.double), torch.randint(C, (N, T))
REAL, TARGET = torch.randn(N, 2, dtype=torch.double), torch.rand(N, 2, dtype=torch.double)
WEIGHTED = nn.CrossEntropyLoss(weight=WEIGHT)
CASES = {
    "CE": (nn.CrossEntropyLoss(), LOGITS, CLASSES),
    "CE ignore_index=0": (nn.CrossEntropyLoss(ignore_index=0), LOGITS, PADDED_BY_ZERO),
    "CE weight": (WEIGHTED, LOGITS, CLASSES),
    "CE smoothing": (nn.CrossEntropyLoss(label_smoothing=0.1), LOGITS, CLASSES),
    "CE weight smoothing": (
        nn.CrossEntropyLoss(weight=WEIGHT, label_smoothing=0.1),
        LOGITS,
        CLASSES,
    ),
    "CE probabilities": (nn.CrossEntropyLoss(), LOGITS, PROBABILITIES),
    "CE probabilities weight": (WEIGHTED, LOGITS, PROBABILITIES),
    "CE pixels": (nn.CrossEntropyLoss(), PIXELS, PIXEL_CLASSES),
    "CE pixels weight": (WEIGHTED, PIXELS, PIXEL_CLASSES),
    "CE pixels probabilities": (nn.CrossEntropyLoss(), PIXELS, PIXELS.softmax(1)),
    "NLL": (nn.NLLLoss(weight=WEIGHT), LOGITS.log_softmax(1), CLASSES),
    "MSE": (nn.MSELoss(), REAL, TARGET),
    "L1": (nn.L1Loss(), REAL, TARGET),
    "SmoothL1": (nn.SmoothL1Loss(beta=0.3), REAL, TARGET),
    "Huber": (nn.HuberLoss(delta=0.3), REAL, TARGET),
    "BCE": (nn.BCELoss(), REAL.sigmoid(), TARGET),
    "BCE logits": (nn.BCEWithLogitsLoss(pos_weight=torch.tensor(2.0).double()), REAL, TARGET),
    "BCE logits weight": (nn.BCEWithLogitsLoss(weight=torch.tensor(0.5).double()), REAL, TARGET),
    "SoftMargin": (nn.SoftMarginLoss(), REAL, TARGET.round() * 2 - 1),
    "KL batchmean": (nn.KLDivLoss(reduction="batchmean"), REAL.log_softmax(1), TARGET),
    "KL log target": (nn.KLDivLoss(reduction="batchmean", log_target=True), REAL, TARGET.log()),
    "F.cross_entropy": (functional.cross_entropy, LOGITS, CLASSES),
    "F.nll_loss": (functional.nll_loss, LOGITS.log_softmax(1), CLASSES),
    "F.mse_loss": (functional.mse_loss, REAL, TARGET),
    "F.l1_loss": (functional.l1_loss, REAL, TARGET),
    "F.smooth_l1_loss": (functional.smooth_l1_loss, REAL, TARGET),
    "F.huber_loss": (functional.huber_loss, REAL, TARGET),
    "F.bce": (functional.binary_cross_entropy, REAL.sigmoid(), TARGET),
    "F.bce_logits": (functional.binary_cross_entropy_with_logits, REAL, TARGET),
}
known = pytest.mark.parametrize(("plain", "outputs", "targets"), CASES.values(), ids=CASES)


def sum_and_items(loss, outputs, targets):
    items = loss.items((outputs, targets), targets)
    value = loss.value(outputs, targets)
    return (value if loss.is_sum else loss.to_sum(value, items)[0]), items


@known
def test_sum_of_a_known_loss_divided_by_its_items_is_torchs_mean(plain, outputs, targets):
    total, items = sum_and_items(as_loss(plain, "samples"), outputs, targets)
    torch.testing.assert_close(total / items, plain(outputs, targets), rtol=1e-12, atol=0)


@known
def test_known_loss_adds_up_over_micro_batches_of_different_sizes(plain, outputs, targets):
    loss = as_loss(plain, "samples")
    parts = [sum_and_items(loss, outputs[a:b], targets[a:b]) for a, b in ((0, 3), (3, 4), (4, N))]
    total, items = (sum(each) for each in zip(*parts, strict=True))
    torch.testing.assert_close(total / items, plain(outputs, targets), rtol=1e-12, atol=0)


@known
def test_known_loss_object_is_not_modified(plain, outputs, targets):
    before = plain(outputs, targets)
    as_loss(plain, "samples")
    assert torch.equal(plain(outputs, targets), before)


def test_mean_of_kl_div_is_over_elements():
    plain = nn.KLDivLoss()
    with pytest.warns(UserWarning, match="batchmean"):
        expected = plain(REAL.log_softmax(1), TARGET)
    total, items = sum_and_items(as_loss(plain, "samples"), REAL.log_softmax(1), TARGET)
    assert items == N * 2
    torch.testing.assert_close(total / items, expected)


def test_sum_reduction_is_not_divided():
    loss = as_loss(nn.MSELoss(reduction="sum"), "samples")
    assert not loss.divides
    assert torch.equal(loss.value(REAL, TARGET), nn.MSELoss(reduction="sum")(REAL, TARGET))


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_loss_with_a_hook_equals_torchs_and_the_hook_sees_its_reduction(reduction):
    plain, seen = nn.MSELoss(reduction=reduction), []
    plain.register_forward_hook(lambda module, args, value: seen.append(value.detach()))
    loss = as_loss(plain, "samples")
    total, items = sum_and_items(loss, REAL, TARGET)
    expected = plain(REAL, TARGET)
    torch.testing.assert_close(total, expected * (items if loss.divides else 1))
    torch.testing.assert_close(seen[0], expected)


def test_reduction_none_is_rejected():
    with pytest.raises(TaskError, match=r"MSELoss\(reduction='none'\).* Use MSELoss\(\)"):
        as_loss(nn.MSELoss(reduction="none"), "samples")


@pytest.mark.parametrize("more", [{"items": "tokens"}, {"items": "samples", "reduction": "sum"}])
def test_items_and_reduction_of_a_known_loss_cannot_be_set(more):
    with pytest.raises(TaskError, match="CrossEntropyLoss brings its own"):
        as_loss(nn.CrossEntropyLoss(), **more)


def test_loss_module_of_the_user_counts_as_it_says():
    class Pairs(LossModule):
        name, doc = "pairs", surestep.losses.mse.doc

        def count(self, targets):
            return len(targets) // 2

        def total(self, outputs, targets):
            return (outputs - targets).sum()

    loss = as_loss(Pairs(), "samples")
    assert (loss.count(TARGET), loss.items(None, TARGET), loss.counts_samples) == (3, N, False)


@pytest.mark.parametrize(("weight", "share"), [(None, 1.0), (0, 0.0), (0.5, 0.5)])
def test_weight_of_one_of_several_losses_may_be_zero_and_is_one_if_not_set(weight, share):
    weights = {} if weight is None else {"a": weight}
    loss = as_losses({"a": "mse", "b": "mae"}, {}, weights, {"b": "mean"})
    assert [part.weight for part in loss.components] == [share, 1.0]


@pytest.mark.parametrize("dtypes", [["half", "float"], ["float", "half"]])
def test_loss_sums_in_fp32_at_once_if_some_parameter_has_16_bits(dtypes):
    model = nn.Sequential(*(getattr(nn.Linear(2, 2), dtype)() for dtype in dtypes))
    loss = as_loss(nn.MSELoss(), "samples")
    assert loss.for_model(model).value is loss.in_fp32
    assert loss.for_model(nn.Linear(2, 2)) is loss
    assert loss.in_fp32(REAL.half(), TARGET.half()).dtype is torch.float32
    assert torch.equal(loss.value(REAL, TARGET), (REAL - TARGET).square().sum())  # still a sum


def test_scores_of_classes_are_floating_point_with_a_dimension_for_them():
    loss = as_loss(surestep.losses.multiclass(), "samples")
    outputs = (LOGITS, LOGITS[:, 0], LOGITS.long(), (LOGITS,))
    assert [loss.find_class_dim(each) for each in outputs] == [1, None, None, None]


def test_subclass_of_a_known_loss_is_treated_as_a_custom_callable():
    class Focal(nn.CrossEntropyLoss):
        def forward(self, outputs, targets):
            return super().forward(outputs, targets) ** 2

    assert not as_loss(Focal(), "samples").is_sum


def mean_loss(outputs, targets):
    return functional.cross_entropy(outputs, targets)


@pytest.mark.parametrize(
    ("items", "expected"),
    [("samples", N), ("tokens", 5), (lambda batch: len(batch[0]) / 2, N / 2)],
    ids=["samples", "tokens", "function"],
)
def test_callable_is_a_mean_over_the_items_that_are_set(items, expected):
    total, counted = sum_and_items(as_loss(mean_loss, items), LOGITS, CLASSES)
    assert counted == expected
    torch.testing.assert_close(total, mean_loss(LOGITS, CLASSES) * expected)


def test_unknown_items_are_rejected():
    with pytest.raises(TaskError, match=r"items='words' is not known\. Use 'samples', 'tokens'"):
        as_loss(mean_loss, "words")


def test_loss_of_named_terms_is_their_sum_and_each_term_is_returned():
    loss = as_loss(lambda o, t: {"a": o.mean(), "b": 2 * o.mean()}, "samples")
    total, parts = loss.to_sum(loss.value(REAL, TARGET), 4)
    torch.testing.assert_close(total, 12 * REAL.mean())
    torch.testing.assert_close(parts["b"], 8 * REAL.mean())


@pytest.mark.parametrize(
    ("loss", "targets", "count"),
    [
        (as_loss(nn.CrossEntropyLoss(weight=WEIGHT), "samples"), CLASSES, 5),
        (as_loss(nn.CrossEntropyLoss(), "samples"), PROBABILITIES, N),
        (as_loss(nn.MSELoss(), "samples"), TARGET, N),
        (as_loss(mean_loss, "tokens"), CLASSES, 5),
        (as_loss(mean_loss, lambda batch: 99.0), CLASSES, N),
    ],
    ids=["classes", "probabilities", "elementwise", "tokens", "function"],
)
def test_metric_counts_samples_or_targets_that_are_not_ignored(loss, targets, count):
    assert loss.count(targets) == count
