"""What each loss rejects in a first batch, with its message, and what it accepts."""

import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from surestep import losses
from surestep.base.errors import DataError, SurestepError, TaskError
from surestep.engine.losses.adapt import as_loss
from surestep.engine.losses.base import FirstBatch
from surestep.engine.losses.mixed import MixedTargets, accept_mixed
from tests.engine.losses.table import CASES, FRAMES, LENGTHS, SPOKEN, N, indices, normal

C, T, V = 3, 5, 6
LOGITS, P, W = normal(N, C), normal(N, C, 4, 5), normal(N, T, V)
Y, YES, M = indices(N), indices(N, classes=2), indices(N, C, 4, 5, classes=2)
R, TOKENS = indices(N, 4, 5), indices(N, T, classes=V)
ONE_HOT = F.one_hot(Y, C)
MANY = ONE_HOT | F.one_hot((Y + 1) % C, C)

CE, BCE = "multiclass", "binary"
LONG = (torch.ones(N, 2).long(), torch.full((N,), 2), torch.full((N,), 2))
REFUSED = {
    "softmax": (CE, LOGITS.softmax(1), Y, r"outputs are probabilities, .*Leave the softmax out"),
    "softmax of pixels": (CE, P.softmax(1), R, "outputs are probabilities"),
    "one-hot": (
        CE,
        LOGITS,
        ONE_HOT,
        r"they are one-hot, but .*class indices.*targets\.argmax\(1\)",
    ),
    "one-hot bool": (CE, LOGITS, ONE_HOT.bool(), r"targets\.argmax\(1\)"),
    "multi-hot": (CE, LOGITS, MANY, r"several 1s or none.*losses\.multilabel\(\)"),
    "float multi-hot": (
        CE,
        LOGITS,
        MANY.double(),
        r"several 1s or none.*losses\.multilabel\(\)",
    ),
    "regression targets": (
        CE,
        LOGITS,
        5 * LOGITS,
        r"add up to 1 .*surestep\.losses\.mse\(\) or huber",
    ),
    "regression targets (N,)": (
        CE,
        LOGITS,
        LOGITS[:, 0],
        r"use targets\.long\(\).*surestep\.losses\.mse\(\)",
    ),
    "one output": (
        CE,
        LOGITS[:, :1],
        YES,
        r"of one class is always 0.*surestep\.losses\.binary\(\)",
    ),
    "one output (N,)": (CE, LOGITS[:, 0], YES, r"surestep\.losses\.binary\(\)"),
    "class out of range": (
        CE,
        LOGITS,
        Y + 1,
        "run from 1 to 3, and the model has 3 outputs: .* 0 to 2",
    ),
    "-1 and 1": (
        CE,
        LOGITS,
        2 * YES - 1,
        r"If -1 means ignored, set ignore_index=-1; .*losses\.binary",
    ),
    "int32": (CE, LOGITS, Y.int(), r"Class indices are int64, .*use \.long\(\)"),
    "classes last": (CE, LOGITS.view(N, 1, C), Y[:, None], "flatten or transpose the outputs"),
    "weights": (losses.multiclass(weight=[1, 2]), LOGITS, Y, "2 class weights, .* has 3 outputs"),
    "tuple": (
        CE,
        (LOGITS, LOGITS),
        Y,
        "The model returns a tuple, and the loss takes a tensor",
    ),
    "binary (N, 1) and (N,)": (
        BCE,
        LOGITS[:, :1],
        YES,
        r"broadcast.*targets\.unsqueeze\(-1\)",
    ),
    "binary of two outputs": (BCE, LOGITS[:, :2], YES, r"two outputs.*losses\.multiclass\(\)"),
    "binary of -1 and 1": (BCE, LOGITS[:, 0], 2 * YES - 1, r"use \(targets \+ 1\) / 2"),
    "binary of classes": (BCE, LOGITS[:, 0], Y, r"losses\.multiclass\(\) .* and 3 outputs"),
    "binary of regression targets": (
        BCE,
        LOGITS[:, 0],
        3 * LOGITS[:, 1],
        r"For numbers use surestep\.losses\.mse\(\)",
    ),
    "multilabel of indices": (
        "multilabel",
        LOGITS,
        Y,
        r"class indices use surestep\.losses\.multiclass\(\)",
    ),
    "multilabel (N,)": (
        "multilabel",
        LOGITS[:, 0],
        YES,
        r"one label use surestep\.losses\.binary\(\)",
    ),
    "multilabel pos_weight": (
        losses.multilabel(pos_weight=[1, 2]),
        *(LOGITS, MANY, "2 numbers in pos_weight, and the model has 3 outputs"),
    ),
    "mse broadcast": ("mse", LOGITS[:, :1], LOGITS[:, 0], r"would broadcast.*squeeze\(-1\)"),
    "mse of classes": ("mse", LOGITS, Y, r"3 outputs use surestep\.losses\.multiclass\(\)"),
    "mse of integers": ("mse", LOGITS[:, 0], Y, r"mse takes floating point numbers.*\.float\(\)"),
    "quantile count": (
        "quantile",
        LOGITS[:, :2],
        LOGITS[:, 0],
        r"number for each of the 3 quantiles.*mae",
    ),
    "margin of one score": (
        "margin",
        LOGITS[:, 0],
        Y,
        "compares a, b, and the model returns a tensor",
    ),
    "margin columns": (
        "margin",
        (LOGITS[:, :1], LOGITS[:, :1]),
        YES,
        r"each \(N,\).*squeeze\(-1\)",
    ),
    "margin of 0 and 1": ("margin", LOGITS[:, :2], YES, r"takes -1 and 1.*2 \* targets - 1"),
    "triplet of two": (
        "triplet",
        (LOGITS, LOGITS),
        None,
        r"returns a tuple of 2.*\(samples, 3, \.\.\.\)",
    ),
    "triplet of shapes": (
        "triplet",
        (LOGITS, LOGITS, LOGITS[:3]),
        None,
        "three embeddings must have the same shape",
    ),
    "contrastive of one": (
        "contrastive",
        (LOGITS[:1], LOGITS[:1]),
        None,
        "with at least two samples",
    ),
    "contrastive of shapes": (
        "contrastive_pairs",
        (LOGITS, LOGITS[:, :2]),
        None,
        "two embeddings must have the same shape",
    ),
    "no teacher": (
        "distillation",
        LOGITS,
        Y,
        r"Task\(teacher=net\), or .*\(labels, teacher_logits\)",
    ),
    "teacher of a different shape": (
        "distillation",
        LOGITS,
        (Y, LOGITS[:, :2]),
        "logits of the same shape",
    ),
    "teacher's softmax": ("distillation", LOGITS, (Y, LOGITS.softmax(1)), "Leave its softmax out"),
    "student's softmax": (
        "distillation",
        LOGITS.softmax(1),
        (Y, LOGITS),
        "distillation takes logits",
    ),
    "distilled floats": (
        "distillation",
        LOGITS,
        (LOGITS, LOGITS),
        r"class indices: use labels\.long\(\)",
    ),
    "dice of one channel": ("dice", P[:, :1], R, r"one region use targets\.unsqueeze\(1\)"),
    "dice without channels": ("dice", P[:, 0], M[:, 0], r"use unsqueeze\(1\) on both"),
    "dice without pixels": (
        "dice",
        LOGITS,
        Y,
        r"Without pixels use surestep\.losses\.multiclass\(\)",
    ),
    "dice of grey masks": ("dice", P, M * 255, "run from 0 to 255, and dice takes 0 to 1"),
    "dice of shapes": ("dice", P, M[:, :2].double(), "For indices use the shape"),
    "dice out of range": ("dice", P, R + 1, "run from 1 to 3"),
    "dice_bce of indices": ("dice_bce", P, R, r"For class indices use surestep\.losses\.dice_ce"),
    "dice_ce of one-hot": ("dice_ce", P, F.one_hot(R, C).movedim(-1, 1), r"targets\.argmax\(1\)"),
    "dice_ce of masks": (
        *("dice_ce", P, P.softmax(1)),
        r"targets: indices \(N, \.\.\.\) int64. Use targets\.argmax\(1\)",
    ),
    "focal of classes": ("focal", LOGITS, LOGITS[:, :2], "would broadcast"),
    "focal alpha": (losses.focal(alpha=0.3), LOGITS, Y, "a number for each of 3 classes"),
    "vocabulary second": ("next_token", W.transpose(1, 2), TOKENS, r"Use class_dim=1\."),
    "vocabulary last": (
        losses.next_token(class_dim=1),
        W,
        TOKENS,
        r"or \(N, V, T\) with class_dim=1.*Use class_dim=-1\.",
    ),
    "classes second": (
        losses.multiclass(class_dim=-1),
        W.transpose(1, 2),
        TOKENS,
        r"\(N, \.\.\., C\) with class_dim=-1.*Leave class_dim=-1 out",
    ),
    "no token dimension": (
        "next_token",
        LOGITS,
        Y,
        r"one class for each sample use surestep\.losses\.multiclass",
    ),
    "float tokens": ("masked_tokens", W, TOKENS.float(), r"Tokens are int64.*\.long\(\)"),
    "token out of range": (
        "next_token",
        W,
        TOKENS + 1,
        "run from 1 to 6, and the model has 6 outputs",
    ),
    "softmax of tokens": ("next_token", W.softmax(2), TOKENS, "next_token takes logits"),
    "nothing masked": ("masked_tokens", W, TOKENS, r"No target .* is -100.*losses\.next_token\(\)"),
    "ctc of one tensor": ("ctc", W, TOKENS, r"targets \(labels, input_lengths, label_lengths\)"),
    "ctc frames first": ("ctc", normal(9, N, V), SPOKEN, r"Use outputs\.transpose\(0, 1\)"),
    "ctc blank": ("ctc", normal(N, 9, V), (SPOKEN[0] * 0, FRAMES, LENGTHS), "which is the blank"),
    "ctc class": (
        "ctc",
        normal(N, 9, 3),
        SPOKEN,
        "labels are 0 to 2 without 0, which is the blank",
    ),
    "ctc frames": ("ctc", normal(N, 5, V), SPOKEN, "9 frames by its length, and .* returns 5"),
    "ctc short": (
        *("ctc", normal(N, 9, V), (SPOKEN[0], LENGTHS // 2, LENGTHS)),
        r"7 samples have fewer frames than labels.*zero_infinity=True",
    ),
    "BCELoss of logits": (
        nn.BCELoss(),
        LOGITS,
        ONE_HOT.double(),
        r"nn\.BCEWithLogitsLoss\(\), which",
    ),
    "BCEWithLogits of -1": (
        nn.BCEWithLogitsLoss(),
        LOGITS,
        LOGITS.sign(),
        r"use \(targets \+ 1\) / 2",
    ),
    "NLL of logits": (nn.NLLLoss(), LOGITS, Y, r"outputs are logits.*nn\.CrossEntropyLoss\(\)"),
    "NLL of probabilities": (nn.NLLLoss(), LOGITS.softmax(1), Y, "outputs are probabilities"),
    "KL of probabilities": (
        nn.KLDivLoss(),
        LOGITS.softmax(1),
        LOGITS.softmax(1),
        "are probabilities",
    ),
    "SoftMargin of 0 and 1": (nn.SoftMarginLoss(), LOGITS, ONE_HOT.double(), r"2 \* targets - 1"),
    "column of indices": (CE, LOGITS, Y[:, None], r"Use targets\.squeeze\(1\)"),
    "channel of indices": ("dice_ce", P, R[:, None], r"Use targets\.squeeze\(1\)"),
    "tokens of classes": (
        *(CE, W, TOKENS),
        r"Use surestep\.losses\.multiclass\(class_dim=-1\), or outputs\.transpose\(1, 2\)",
    ),
    "ignored probabilities": (
        losses.multiclass(ignore_index=1),
        *(LOGITS, LOGITS.softmax(1), "ignore_index=1 is for class indices, .* Leave it out"),
    ),
    "binary weights": (
        losses.binary(pos_weight=[1, 2]),
        *(LOGITS[:, :1], YES[:, None], r"2 numbers in pos_weight, .*losses\.multilabel\(\)"),
    ),
    "dice ignoring masks": (
        losses.dice(ignore_index=0),
        *(P, M, "ignore_index=0 is for class indices, but the targets are masks"),
    ),
    "dice_bce of a region": ("dice_bce", P[:, :1], M[:, 0], r"use targets\.unsqueeze\(1\)"),
    "focal alpha of masks": (losses.focal(alpha=2.0), P, M, "alpha=2.0 is not a share"),
    "focal alphas of masks": (losses.focal(alpha=[1.0, 2.0]), P, M, "focal takes one number"),
    "uint8 without ignore_index": (
        *(CE, normal(N, 200), Y.byte()),
        r"torch\.uint8, in which ignore_index=-100 is the class 156: use \.long\(\)",
    ),
    "uint8 images": (nn.CrossEntropyLoss(), P, R.byte(), r"torch\.uint8: use \.long\(\)"),
    "ctc softmax": ("ctc", normal(N, 9, V).softmax(2), SPOKEN, "ctc takes logits"),
    "ctc flat labels": (
        *("ctc", normal(N, 9, V), (SPOKEN[0].flatten(), FRAMES, LENGTHS)),
        r"of shape \(28,\), and ctc takes integers \(samples, positions\)",
    ),
    "ctc float labels": (
        *("ctc", normal(N, 9, V), (SPOKEN[0].double(), FRAMES, LENGTHS)),
        r"labels are torch\.float64.*use \.long\(\)",
    ),
    "ctc long labels": (
        *("ctc", normal(N, 9, V), (SPOKEN[0], FRAMES, LENGTHS + 1)),
        "label_lengths have 5 labels, and a row of labels has 4",
    ),
    "ctc blank out of range": (
        losses.ctc(blank=6),
        *(normal(N, 9, V), SPOKEN, "blank=6 is not a class: the model has 6 outputs"),
    ),
    "ctc repeated": (
        *("ctc", normal(N, 9, V), LONG),
        r"7 samples have fewer frames than labels.*a blank between two that are equal",
    ),
    "CTCLoss short": (
        *(nn.CTCLoss(), normal(9, N, V).log_softmax(2), (SPOKEN[0], LENGTHS // 2, LENGTHS)),
        r"7 samples have fewer frames than labels.*CTCLoss\(zero_infinity=True\)",
    ),
}


@pytest.mark.parametrize(("loss", "outputs", "targets", "sentence"), REFUSED.values(), ids=REFUSED)
def test_mismatched_first_batch_is_rejected_with_a_fix(loss, outputs, targets, sentence):
    with pytest.raises((TaskError, DataError)) as caught:
        as_loss(loss, "samples").check(FirstBatch(outputs, targets))
    assert caught.match(f"(?s){sentence}")


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_matching_first_batch_is_accepted_without_a_warning(case):
    if case.loss.name == "multiclass" and case.loss.options["ignore_index"] == 1:
        return
    case.loss.check(FirstBatch(case.outputs, case.targets))


@pytest.mark.parametrize(
    ("labels", "needed"),
    [([2, 2, 2, 2], 3), ([2, 1, 1, 1], 2), ([1, 1, 2, 2], 3), ([1, 2, 2, 1], 2)],
)
def test_padding_that_equals_the_last_label_needs_no_frame(labels, needed):
    def check(frames):
        row = torch.tensor([labels]), torch.tensor([frames]), torch.tensor([2])
        as_loss("ctc", "samples").check(FirstBatch(normal(1, 9, 3), row))

    check(needed)
    with pytest.raises(DataError, match="1 samples have fewer frames than labels"):
        check(needed - 1)


@pytest.mark.parametrize("squashed", ["softmax", "sigmoid"])
@pytest.mark.parametrize(
    ("loss", "outputs", "targets"),
    [
        ("multiclass", LOGITS, Y),
        ("binary", LOGITS[:, 0], YES),
        ("multilabel", LOGITS, MANY),
        ("dice_bce", P, M),
        ("focal", LOGITS, Y),
        (nn.BCEWithLogitsLoss(), LOGITS, MANY.double()),
        (nn.CrossEntropyLoss(), LOGITS, Y),
    ],
)
def test_outputs_after_a_softmax_or_sigmoid_are_rejected(loss, outputs, targets, squashed):
    with pytest.raises(TaskError, match=r"takes logits.*give the loss as a function"):
        as_loss(loss, "samples").check(FirstBatch(outputs, targets, squashed=squashed))


def test_outputs_between_0_and_1_without_a_known_sigmoid_cause_a_warning():
    with pytest.warns(UserWarning, match="as after a sigmoid"):
        losses.dice_bce().check(FirstBatch(P.sigmoid(), M))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_probabilities_in_16_bits_are_rejected(dtype):
    with pytest.raises(TaskError, match="outputs are probabilities"):
        as_loss(CE, "samples").check(FirstBatch(LOGITS.softmax(1).to(dtype), Y))


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8])
def test_ignore_index_that_is_a_class_causes_a_warning(dtype):
    with pytest.warns(UserWarning, match=r"ignore_index=1 is one of the model's 3 classes"):
        losses.multiclass(ignore_index=1).check(FirstBatch(P, R.to(dtype)))


def test_tokens_that_are_all_equal_show_no_shift():
    tokens = torch.ones(N, T).long()
    losses.next_token().check(FirstBatch(W, tokens, (tokens,)))
    losses.next_token(targets="shifted").check(FirstBatch(W, tokens, (tokens,)))


def test_second_targets_of_a_mixed_batch_are_checked_too():
    loss, share = accept_mixed(as_loss(CE, "samples")), torch.ones(N) / 2
    loss.check(FirstBatch(LOGITS, MixedTargets(Y, Y, share)))
    with pytest.raises(DataError, match="run from 1 to 3"):
        loss.check(FirstBatch(LOGITS, MixedTargets(Y, Y + 1, share)))


@pytest.mark.parametrize(
    ("targets", "kind", "sentence"),
    [
        (TOKENS.roll(-1, 1), "tokens", r"shifted already.*next_token\(targets='shifted'\)"),
        (TOKENS, "shifted", r"not shifted: .*next_token\(targets='tokens'\)"),
    ],
)
def test_tokens_shifted_twice_or_not_at_all_are_rejected(targets, kind, sentence):
    loss = losses.next_token(targets=kind)
    hidden = targets.clone()
    hidden[:, -1] = -100
    with pytest.raises(DataError, match=sentence):
        loss.check(FirstBatch(W, hidden, (TOKENS,)))
    other = {"tokens": TOKENS, "shifted": TOKENS.roll(-1, 1)}[kind]
    loss.check(FirstBatch(W, other, (TOKENS, torch.ones(N, T), torch.ones(N, T).long())))


OPTIONS = {
    "smoothing": (lambda: losses.multiclass(label_smoothing=1.5), "label_smoothing=1.5 is no"),
    "weights": (lambda: losses.multiclass(weight=[1, -1]), "has values below 0 or not finite"),
    "unknown weight string": (
        lambda: losses.multiclass(weight="even"),
        "weight='even' is not known",
    ),
    "ignore_index is a label": (lambda: losses.binary(ignore_index=0), "ignore_index=0 is a label"),
    "delta": (lambda: losses.huber(delta=0), "delta=0 is not above 0"),
    "quantiles": (lambda: losses.quantile(quantiles=(0.5, 0.1)), "not rising shares"),
    "quantile of 0": (lambda: losses.quantile(quantiles=(0.0, 0.5)), "not rising shares"),
    "quantile of 1": (lambda: losses.quantile(quantiles=(0.5, 1.0)), "not rising shares"),
    "equal quantiles": (lambda: losses.quantile(quantiles=(0.5, 0.5)), "not rising shares"),
    "empty quantiles": (lambda: losses.quantile(quantiles=()), "not rising shares"),
    "temperature": (lambda: losses.contrastive(temperature=0), "temperature=0 is not above 0"),
    "alpha": (lambda: losses.distillation(alpha=2), "alpha=2 is not a share"),
    "distilled": (lambda: losses.distillation(temperature=-1), "temperature=-1 is not above 0"),
    "per": (lambda: losses.dice(per="pixel"), "per='pixel' is not known"),
    "smooth": (lambda: losses.dice_ce(smooth=0), "smooth=0 is not above 0"),
    "gamma": (lambda: losses.focal(gamma=-1), "gamma=-1 is below 0"),
    "z": (lambda: losses.masked_tokens(z_loss=-1), "z_loss=-1 is below 0"),
    "targets": (lambda: losses.next_token(targets="next"), "targets='next' is not known"),
    "one quantile": (lambda: losses.quantile(quantiles=0.5), r"Use \(0\.1, 0\.5, 0\.9\)"),
    "triplet margin": (lambda: losses.triplet(margin=0), "margin=0 is not above 0"),
    "balanced focus": (lambda: losses.focal(alpha="balanced"), "alpha='balanced' is not known"),
}


def test_quantiles_may_be_an_array():
    outputs, targets = torch.randn(4, 2), torch.randn(4)
    loss = losses.quantile(quantiles=np.array([0.1, 0.9]))
    assert loss(outputs, targets) == losses.quantile(quantiles=(0.1, 0.9))(outputs, targets)


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_shares_may_be_0_and_1(share):
    labels, smoothing = torch.tensor([0, 2]), {"label_smoothing": share}
    for loss in (losses.distillation(alpha=share), losses.multiclass(**smoothing)):
        targets = (labels, LOGITS[:2]) if loss.name == "distillation" else labels
        loss.check(FirstBatch(LOGITS[:2], targets))
    plain = nn.CrossEntropyLoss(**smoothing)
    torch.testing.assert_close(loss(LOGITS[:2], labels), plain(LOGITS[:2], labels))


@pytest.mark.parametrize(("make", "sentence"), OPTIONS.values(), ids=OPTIONS)
def test_invalid_loss_option_is_rejected(make, sentence):
    with pytest.raises(SurestepError, match=sentence):
        make()


@pytest.mark.parametrize("dim", [1, 2])
def test_classes_of_kl_div_may_be_in_any_dimension(dim):
    as_loss(nn.KLDivLoss(), "samples").check(FirstBatch(W.log_softmax(dim), W.softmax(dim)))


def test_distillation_without_labels_is_rejected_with_a_fix():
    with pytest.raises(TaskError, match=r"takes labels, and got a NoneType\..*alpha=1\.0"):
        losses.distillation().items(None, (None, LOGITS))


def test_custom_loss_function_has_no_first_batch_check():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert as_loss(lambda o, t: F.cross_entropy(o, t), "samples").check is None


@pytest.mark.parametrize("name", ["multiclass", "dice_ce", "focal"])
def test_images_of_uint8_class_indices_are_accepted(name):
    loss = as_loss(name, "samples")
    values = [loss.value(P, targets) for targets in (R, R.byte())]
    sums = [sum(v.values()) if isinstance(v, dict) else v for v in values]
    assert torch.equal(*sums)
    loss.check(FirstBatch(P, R.byte()))
