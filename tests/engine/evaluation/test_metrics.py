"""Metrics against scikit-learn and torchmetrics itself, on real data."""

import math
import sys

import numpy as np
import pytest
import torch
import torchmetrics
from sklearn import metrics as sk
from sklearn.datasets import load_breast_cancer, load_digits
from torch import nn

import surestep
from surestep import metrics
from surestep.base.errors import ConfigError, TaskError
from surestep.engine.metrics.base import init_metrics, metric_modes, table_metric_names
from tests import tiny

CPU = torch.device("cpu")
RATES = {"precision", "recall", "f1", "specificity", "average_precision", "auroc"}


def measured(metric, outputs, targets, cut=None):
    (opened,) = init_metrics({"m": metric}, CPU)
    for some, those in zip(
        outputs.split(cut or len(targets)), targets.split(cut or len(targets)), strict=True
    ):
        opened.update(some, those, len(those), range(len(those)))
    found = opened.compute()
    return (
        found["m"] if set(found) == {"m"} else {k.removeprefix("m_"): v for k, v in found.items()}
    )


@pytest.fixture(scope="module")
def cancer():
    """Logits of a linear model fitted to the breast cancer data, and its classes: 37% are 1."""
    x, y = load_breast_cancer(return_X_y=True)
    x = torch.tensor((x - x.mean(0)) / x.std(0))
    y = torch.tensor(1 - y)
    weights = torch.linalg.lstsq(x, y.double() - y.double().mean()).solution
    return (x @ weights * 6 - 1).float(), y


@pytest.fixture(scope="module")
def digits():
    x, y = load_digits(return_X_y=True)
    x, y = torch.tensor(x), torch.tensor(y)
    solution = torch.linalg.lstsq(x + 1e-3, nn.functional.one_hot(y, 10).double()).solution
    return ((x + 1e-3) @ solution * 5).float(), y


def expected_rates(chance, y, threshold=0.5):
    chosen = chance > threshold
    return {
        "precision": sk.precision_score(y, chosen),
        "recall": sk.recall_score(y, chosen),
        "f1": sk.f1_score(y, chosen),
        "specificity": sk.recall_score(1 - y, ~chosen),
        "average_precision": sk.average_precision_score(y, chance),
        "auroc": sk.roc_auc_score(y, chance),
    }


@pytest.mark.parametrize("cut", [1, 100, None])
@pytest.mark.parametrize("threshold", [0.5, 0.2])
def test_binary_is_scikit_learns_whatever_the_batch_size(cancer, threshold, cut):
    outputs, y = cancer
    if cut == 1:
        outputs, y = outputs[:60], y[:60]
    found = measured(metrics.binary(threshold), outputs, y, cut)
    chance = outputs.double().sigmoid().numpy()
    assert found == pytest.approx(expected_rates(chance, y.numpy(), threshold), abs=1e-6)


@pytest.mark.parametrize(
    "shape",
    [
        lambda o, y: (o[:, None], y),
        lambda o, y: (o[:, None], y[:, None].float()),
        lambda o, y: (o, y.float()),
        lambda o, y: (o, y.bool()),
        lambda o, y: (torch.stack((torch.zeros_like(o), o), 1), y),
        lambda o, y: (o.bfloat16().float().bfloat16(), y),
    ],
    ids=["(N, 1)", "(N, 1) both", "float", "bool", "two classes", "bf16"],
)
def test_binary_takes_outputs_of_each_form(cancer, shape):
    outputs, y = cancer
    if shape(outputs, y)[0].dtype == torch.bfloat16:
        outputs = outputs.bfloat16().float()
    found = measured(metrics.binary(), *shape(outputs, y), 100)
    expected = expected_rates(outputs.double().sigmoid().numpy(), y.numpy())
    assert found == pytest.approx(expected, abs=1e-6)


def test_logits_are_logits_even_where_all_of_a_batch_look_like_probabilities():
    outputs, y = torch.tensor([0.3, 0.4, 0.1, 0.2]), torch.tensor([1, 1, 0, 0])
    assert measured(metrics.binary(), outputs, y)["recall"] == 1.0
    assert measured(metrics.binary(scores="probabilities"), outputs, y)["recall"] == 0.0


def test_confident_scores_keep_their_order():
    outputs, y = torch.tensor([20.0, 25.0, 30.0, -5.0]), torch.tensor([0, 1, 1, 0])
    assert measured(metrics.binary(), outputs, y)["auroc"] == 1.0


def test_targets_to_ignore_are_left_out(cancer):
    outputs, y = cancer
    masked = y.clone()
    masked[::3] = -100
    kept = masked != -100
    broken = outputs.clone()
    broken[::3] = math.nan
    for make in (metrics.binary, metrics.best_threshold, metrics.calibration_error):
        found = measured(make(), broken, masked, 100)
        assert found == measured(make(), outputs[kept], y[kept])


@pytest.mark.parametrize(
    ("outputs", "targets", "unknown"),
    [
        ([1.0, -1.0], [0, 0], {"recall", "average_precision", "auroc"}),
        ([1.0, -1.0], [1, 1], {"specificity", "auroc"}),
        ([-1.0, -1.0], [1, 0], {"precision"}),
        ([-1.0, -1.0], [0, 0], {"precision", "recall", "f1", "average_precision", "auroc"}),
        ([1.0, math.nan], [1, 0], RATES),
    ],
)
def test_what_has_nothing_to_be_measured_by_is_not_a_number(outputs, targets, unknown):
    found = measured(metrics.binary(), torch.tensor(outputs), torch.tensor(targets))
    assert {name for name, value in found.items() if math.isnan(value)} == unknown


def test_recall_at_precision_is_read_off_scikit_learns_curve(cancer):
    outputs, y = cancer
    outputs = outputs + torch.randn(len(y), generator=torch.Generator().manual_seed(0)) * 2
    precision, recall, _ = sk.precision_recall_curve(y, outputs.double().sigmoid())
    found = measured(metrics.recall_at_precision(0.9), outputs, y, 100)
    assert found["recall"] == pytest.approx(recall[precision >= 0.9].max(), abs=1e-6)
    at = outputs.double().sigmoid() >= found["threshold"]
    assert sk.precision_score(y, at) >= 0.9
    assert sk.recall_score(y, at) == pytest.approx(found["recall"], abs=1e-6)


def test_a_precision_that_nothing_reaches_has_no_threshold():
    found = measured(
        metrics.recall_at_precision(0.9), torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1, 0, 0])
    )
    assert found["recall"] == 0
    assert math.isnan(found["threshold"])


def test_the_best_threshold_has_the_largest_f1_of_all(cancer):
    outputs, y = cancer[0][:100], cancer[1][:100]
    chance = outputs.double().sigmoid()
    found = measured(metrics.best_threshold(), outputs, y, 100)
    every = [sk.f1_score(y, chance >= each) for each in chance.unique()]
    assert found["f1"] == pytest.approx(max(every), abs=1e-6)
    assert sk.f1_score(y, chance >= found["threshold"] - 1e-7) == pytest.approx(max(every))


def test_multilabel_is_scikit_learns_mean_over_labels(digits):
    outputs, y = digits
    targets = nn.functional.one_hot(y, 10).float()
    chance = outputs.double().sigmoid().numpy()
    found = measured(metrics.multilabel(10, 0.6), outputs, targets, 500)
    each = [expected_rates(chance[:, i], targets[:, i].long().numpy(), 0.6) for i in range(10)]
    for name in RATES:
        assert found[name] == pytest.approx(np.mean([one[name] for one in each]), abs=1e-6)


def test_a_label_that_is_never_there_is_left_out_of_the_mean(digits):
    outputs, y = digits
    targets = nn.functional.one_hot(y, 10)
    outputs, targets = outputs[y != 3], targets[y != 3]
    found = measured(metrics.multilabel(10), outputs, targets)
    others = [i for i in range(10) if i != 3]
    expected = measured(metrics.multilabel(9), outputs[:, others], targets[:, others])
    for name in ("recall", "average_precision", "auroc"):
        assert found[name] == pytest.approx(expected[name])


@pytest.mark.parametrize("cut", [1, 500, None])
def test_the_confusion_matrix_is_scikit_learns(digits, cut):
    outputs, y = digits
    if cut == 1:
        outputs, y = outputs[:100], y[:100]
    found = measured(metrics.confusion_matrix(10), outputs, y, cut)
    assert found == sk.confusion_matrix(y, outputs.argmax(1), labels=range(10)).tolist()


def test_the_confusion_matrix_takes_outputs_of_each_form(cancer, digits):
    outputs, y = cancer
    expected = sk.confusion_matrix(y, outputs > 0).tolist()
    for form in (outputs, outputs[:, None], (outputs > 0).long()):
        assert measured(metrics.confusion_matrix(2), form, y) == expected
    assert measured(metrics.confusion_matrix(2), outputs[:, None], y[:, None].float()) == expected
    scores, digit = digits[0][:60], digits[1][:60]
    expected = measured(metrics.confusion_matrix(10), scores, digit)
    images = scores.reshape(6, 10, 10)  # six samples of ten places, classes last
    for form, dim in ((images, -1), (images.transpose(1, 2), 1)):
        found = measured(metrics.confusion_matrix(10, class_dim=dim), form, digit.reshape(6, 10))
        assert found == expected


def test_masked_places_are_in_no_cell(digits):
    outputs, y = digits
    masked = torch.where(torch.arange(len(y)) % 2 == 0, y, -100)
    found = measured(metrics.confusion_matrix(10), outputs, masked, 100)
    assert found == measured(metrics.confusion_matrix(10), outputs[::2], y[::2])


@pytest.mark.parametrize("cut", [7, None])
def test_the_calibration_error_is_that_of_its_definition(digits, cancer, cut):
    outputs, y = digits[0][:500], digits[1][:500]
    confidence, chosen = outputs.double().softmax(1).max(1)
    right = (chosen == y).double()
    bins = (confidence * 15).ceil().long() - 1
    expected = sum(
        (bins == each).double().mean() * (confidence - right)[bins == each].mean().abs()
        for each in bins.unique()
    )
    found = measured(metrics.calibration_error(10), outputs, y, cut)
    assert found == pytest.approx(float(expected), abs=1e-6)
    outputs, y = cancer
    found = measured(metrics.calibration_error(), outputs, y)
    direct = torchmetrics.CalibrationError("binary", n_bins=15)
    direct.update(outputs.sigmoid(), y)
    assert found == pytest.approx(float(direct.compute()), abs=1e-6)


@pytest.mark.parametrize("cut", [1, 3, None])
def test_perplexity_is_exp_of_the_mean_cross_entropy(cut):
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(6, 11, 5, generator=generator)
    tokens = torch.randint(5, (6, 11), generator=generator)
    tokens[1, 4:] = -100
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())
    found = measured(metrics.perplexity(), logits, tokens, cut)
    assert found == pytest.approx(float(loss.exp()), rel=1e-6)
    turned = measured(metrics.perplexity(class_dim=1), logits.transpose(1, 2), tokens, cut)
    assert turned == pytest.approx(found)
    shifted = nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
    found = measured(metrics.perplexity(shift=True), logits, tokens, cut)
    assert found == pytest.approx(float(shifted.exp()), rel=1e-6)


def test_perplexity_of_many_tokens_and_of_certainty():
    logits = torch.zeros(1, 10_000, 3)
    logits[..., 0] = 200.0
    tokens = torch.zeros(1, 10_000, dtype=torch.long)
    assert measured(metrics.perplexity(), logits, tokens) == 1.0
    tokens[0, 0] = 1
    assert measured(metrics.perplexity(), logits, tokens) == pytest.approx(math.exp(200 / 10_000))


def test_nothing_seen_and_nan_are_not_a_number():
    nothing = init_metrics({"a": metrics.binary(), "b": metrics.confusion_matrix(2)}, CPU)
    assert all(map(math.isnan, nothing[0].compute().values()))
    assert all(math.isnan(each) for row in nothing[1].compute()["b"] for each in row)
    outputs, y = torch.tensor([[1.0, math.nan]]), torch.tensor([1])
    assert math.isnan(measured(metrics.confusion_matrix(2), outputs, y)[0][0])
    assert math.isnan(measured(metrics.calibration_error(2), outputs, y))
    assert math.isnan(measured(metrics.perplexity(class_dim=1), outputs, y))


@pytest.mark.parametrize(
    ("metric", "outputs", "targets", "message"),
    [
        (metrics.binary, (4,), torch.tensor([0.3, 1, 0, 1]), "targets hold 0.3, and this metric"),
        (metrics.binary, (4, 3), torch.zeros(4), r"takes outputs \(N,\), \(N, 1\) or \(N, 2\)"),
        (lambda: metrics.multilabel(3), (4, 2), torch.zeros(4, 2), "A metric of 3 labels takes"),
        (lambda: metrics.confusion_matrix(4), (2, 3), torch.zeros(2), r"4 classes in dimension 1"),
        (metrics.perplexity, (2, 5, 7), torch.zeros(2, 7), r"Say class_dim=1 for"),
        (
            lambda: metrics.binary(scores="probabilities"),
            None,
            torch.zeros(4),
            r"'probabilities' was said, and the outputs lie between 2 and 2.*scores='logits'",
        ),
    ],
)
def test_what_does_not_fit_is_refused_in_words(metric, outputs, targets, message):
    given = torch.zeros(outputs) if outputs is not None else torch.full((4,), 2.0)
    with pytest.raises(TaskError, match=message):
        measured(metric(), given, targets)


def test_outputs_that_are_no_tensor_are_refused():
    with pytest.raises(TaskError, match="takes tensors, and the outputs are a dict"):
        metrics.binary().update({}, torch.zeros(2))


@pytest.mark.parametrize("make", [metrics.binary, metrics.recall_at_precision])
def test_a_threshold_is_a_probability(make):
    with pytest.raises(TaskError, match=r"=1\.5 is no probability\. Use one from 0 to 1"):
        make(1.5)


def test_without_torchmetrics_the_command_that_installs_it_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchmetrics.classification", None)
    monkeypatch.setitem(sys.modules, "torchmetrics.text", None)
    for make in (metrics.binary, metrics.perplexity):
        with pytest.raises(TaskError, match=r"pip install 'surestep\[metrics\]'"):
            make()


def test_names_and_directions_are_known_before_the_run():
    assert metric_modes("m", metrics.binary()) == {f"m_{name}": "max" for name in RATES}
    assert metric_modes("m", metrics.best_threshold()) == {"m_f1": "max", "m_threshold": None}
    assert metric_modes("m", metrics.perplexity()) == {"m": "min"}
    assert table_metric_names({"a": metrics.binary(), "b": metrics.confusion_matrix(3)}) == ("b",)


X, Y = tiny.data()


def parts():
    found = {"table": metrics.confusion_matrix(3), "ece": metrics.calibration_error(3)}
    return {"val": (X, Y), "metrics": found}


def test_a_table_stands_in_the_events_and_in_checkpoints(tmp_path):
    run = tiny.fit(tmp_path, parts(), validation={"metric": "ece"})
    events = [each for each in run.events() if each["event"] == "evaluation"]
    assert [sum(map(sum, each["metrics"]["val/table"])) for each in events] == [20.0, 20.0]
    assert run.last.metrics["val/table"] == events[-1]["metrics"]["val/table"]
    with tiny.prepare(tmp_path, parts(), validation={"metric": "ece"}) as session:
        assert session.state.best.latest["val/table"] == events[-1]["metrics"]["val/table"]
        assert session.state.best.metric == "val/ece"


def test_nothing_is_judged_by_a_table(tmp_path):
    message = r"validation\.metric='table' is a table, and which of two tables is better is not"
    with pytest.raises(ConfigError, match=message):
        tiny.plan(parts(), validation={"metric": "table", "mode": "max"})
    own = {
        "val": (X, Y),
        "metrics": {"own": torchmetrics.ConfusionMatrix("multiclass", num_classes=3)},
    }
    with pytest.raises(TaskError, match=r"validation\.metric='val/own' is a table"):
        tiny.prepare(tmp_path, own, validation={"metric": "own", "mode": "max"})


def test_a_rate_can_say_what_is_best(tmp_path):
    y = (Y == 0).float()
    model = nn.Sequential(nn.Linear(4, 1), nn.Flatten(0))
    said = {
        "model": model,
        "loss": nn.BCEWithLogitsLoss(),
        **{"train": (X, y), "val": (X, y), "metrics": {"at": metrics.binary()}},
    }
    run = tiny.fit(tmp_path, said, validation={"metric": "at_average_precision"})
    assert run.status["monitor"] == ["val/at_average_precision", "max"]
    found = surestep.Run(tmp_path).best.metrics
    assert {f"val/at_{name}" for name in RATES} | {"val/loss"} == set(found)
