"""Metrics over all predictions of a set equal scikit-learn and NumPy on the plain outputs."""

import queue
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
import torchmetrics
from sklearn.metrics import f1_score, roc_auc_score
from torch import nn

import surestep
from surestep.base.errors import TaskError
from surestep.engine.distributed.communicator import Communicator
from surestep.engine.metrics import row_buffer
from surestep.engine.metrics.whole_set import WholeSetMetric
from tests import tiny

X, Y = tiny.data(103, seed=5)


def auc(outputs, targets):
    return roc_auc_score(targets, outputs.softmax(dim=1), multi_class="ovr")


def f1(outputs, targets):
    return f1_score(targets, outputs.argmax(dim=1), average="macro")


def correlation(outputs, targets):
    return np.corrcoef(outputs[:, 0], targets)[0, 1]


FUNCTIONS = {"auc": auc, "f1": f1, "correlation": correlation}


def evaluated(folder, metrics, size=8, **parts):
    made = {"val": (X, Y), "metrics": metrics, **parts}
    with tiny.prepare(folder, made, validation={"batch_size": size}) as session:
        return session.evaluate()


@pytest.mark.parametrize("limit", [0, 2000, None])
@pytest.mark.parametrize("size", [1, 7, 32, 200])
def test_whole_set_metric_is_computed_over_all_predictions(tmp_path, monkeypatch, size, limit):
    if limit is not None:
        monkeypatch.setattr(row_buffer, "LIMIT", limit)
    whole = {name: surestep.whole_set(function) for name, function in FUNCTIONS.items()}
    # In fp64, since a matrix product in fp32 is rounded differently at another batch size.
    x, model = X.double(), tiny.model().double()
    data = {"val": (x, Y), "train": (x[:20], Y[:20]), "model": model}
    found = evaluated(tmp_path / "run", whole, size=size, **data)
    with torch.no_grad():
        outputs = model.eval()(x)
    for name, function in FUNCTIONS.items():
        assert found[f"val/{name}"] == pytest.approx(float(function(outputs, Y)), abs=1e-12)


def test_whole_set_function_gets_cpu_tensors_in_dataset_order(tmp_path):
    seen = []

    def keep(outputs, targets):
        seen.append((outputs, targets))
        return 0.0

    evaluated(tmp_path / "run", {"m": surestep.whole_set(keep)})
    outputs, targets = seen[-1]
    assert torch.equal(targets, Y)
    assert (outputs.device.type, outputs.dtype, outputs.requires_grad) == (
        "cpu",
        torch.float32,
        False,
    )


class Named(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = tiny.model()

    def forward(self, x):
        return {"score": self.inner(x), "pair": (x[:, 0], x[:, 1:])}


def test_nested_outputs_keep_their_structure(tmp_path):
    def shapes(outputs, targets):
        return {"score": len(outputs["score"]), "second": outputs["pair"][1].shape[1]}

    loss = lambda outputs, targets: nn.functional.cross_entropy(outputs["score"], targets)  # noqa: E731
    found = evaluated(tmp_path / "run", {"m": surestep.whole_set(shapes)}, model=Named(), loss=loss)
    assert (found["val/m_score"], found["val/m_second"]) == (103, 3)


def test_preprocess_selects_the_rows_of_a_whole_set_metric(tmp_path):
    def of_class_0(outputs, targets):
        counts = targets != 2
        return outputs.softmax(1)[counts, 0], targets[counts]

    metric = surestep.whole_set(
        lambda score, targets: roc_auc_score(targets == 0, score), preprocess=of_class_0
    )
    found = evaluated(tmp_path / "run", {"auc": metric}, size=7)
    with torch.no_grad():
        score = tiny.model().eval()(X).softmax(1)[Y != 2, 0]
    assert found["val/auc"] == pytest.approx(roc_auc_score(Y[Y != 2] == 0, score), abs=1e-12)


class Rank(Communicator):
    """One of two ranks, which are threads: their texts are shared, their rows are in a queue."""

    barrier_of_both, texts = threading.Barrier(2, timeout=60), ["", ""]

    def __init__(self, rank):
        super().__init__(rank, 2)

    def all_gather_text(self, text):
        self.barrier_of_both.wait()
        self.texts[self.rank] = text
        self.barrier_of_both.wait()
        return list(self.texts)


def test_preprocess_may_keep_no_row_or_several_rows_of_a_sample_on_several_ranks(monkeypatch):
    """Each of two ranks has every second batch of 4 samples; class 2 counts twice, class 0 not."""

    def kept(outputs, targets):
        return outputs.repeat_interleave(targets, 0), targets.repeat_interleave(targets)

    def computed(rank):
        metric = WholeSetMetric("m", surestep.whole_set(lambda rows, _: rows, preprocess=kept))
        for start in range(4 * rank, len(Y), 8):
            batch = range(start, min(start + 4, len(Y)))
            metric.update(X[batch], Y[batch], len(batch), batch)
        return metric.compute(Rank(rank))

    sent = queue.Queue()
    monkeypatch.setattr(torch.distributed, "send", lambda rows, **_: sent.put(rows))
    monkeypatch.setattr(
        torch.distributed, "recv", lambda rows, **_: rows.copy_(sent.get(timeout=60))
    )
    with ThreadPoolExecutor(2) as ranks:
        found = list(ranks.map(computed, range(2)))
    assert found == [{"m": kept(X, Y)[0].tolist()}] * 2


def test_ignored_targets_are_passed_to_whole_set_metrics(tmp_path):
    targets = Y.clone()
    targets[:40] = -100
    metric = surestep.whole_set(lambda outputs, targets: (targets == -100).sum())
    found = evaluated(tmp_path / "run", {"ignored": metric}, val=(X, targets))
    assert found["val/ignored"] == 40


def test_higher_is_better_sets_the_mode_of_a_whole_set_metric(tmp_path):
    metric = surestep.whole_set(f1, higher_is_better=True)
    run = tiny.fit(
        tmp_path / "run", {"val": (X, Y), "metrics": {"f1": metric}}, validation={"metric": "f1"}
    )
    events = [each["metrics"]["val/f1"] for each in run.events() if each["event"] == "evaluation"]
    assert run.best.metrics["val/f1"] == max(events)


@pytest.mark.parametrize(
    ("metric", "words"),
    [
        (lambda: surestep.whole_set(3), r"whole_set\(function=...\) is a int"),
        (lambda: surestep.whole_set(f1, preprocess="x"), r"whole_set\(preprocess=...\) is a str"),
        (lambda: surestep.whole_set(torchmetrics.AUROC("binary")), "has update and compute"),
        (
            lambda: surestep.whole_set(f1, preprocess=lambda o, t: o),
            "preprocess returned a Tensor. Return a pair",
        ),
        (
            lambda: surestep.whole_set(f1, preprocess=lambda o, t: (o, ["a"] * len(t))),
            "was given a str",
        ),
        (
            lambda: surestep.whole_set(f1, preprocess=lambda o, t: (o, t[1:])),
            r"a tensor with shape \(7,\) for 8 rows",
        ),
        (lambda: surestep.whole_set(lambda outputs: 0.0), "fails on all 8 rows.*TypeError"),
    ],
)
def test_invalid_whole_set_metric_is_rejected_before_the_first_step(tmp_path, metric, words):
    with pytest.raises(TaskError, match=words):
        evaluated(tmp_path / "run", {"m": metric()})


def test_rows_of_different_shapes_are_rejected(tmp_path):
    widths = iter(range(1, 100))
    ragged = surestep.whole_set(f1, preprocess=lambda o, t: (o.repeat(1, next(widths)), t))
    with pytest.raises(TaskError, match=r"rows of shape \(6,\) in one batch and \(9,\) in another"):
        evaluated(tmp_path / "run", {"m": ragged})


def test_metric_undefined_on_a_single_batch_only_causes_a_warning(tmp_path):
    def needs_fifty(outputs, targets):
        if len(targets) < 50:
            raise ValueError("too few samples")
        return 1.0

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = evaluated(tmp_path / "run", {"m": surestep.whole_set(needs_fifty)})
    assert found["val/m"] == 1.0
    assert any(
        "too few samples. It got outputs" in (text := str(each.message))
        and text.endswith("It fails on the first training batch; on a full set it may not.")
        for each in caught
    )


def test_failure_of_a_whole_set_metric_names_the_metric_and_the_cause(tmp_path):
    def fails(outputs, targets):
        if len(targets) == 103:
            raise ValueError("103 samples")
        return 0.0

    with pytest.raises(TaskError, match=r"metrics\['m'\] fails on all 103 rows.*ValueError: 103"):
        evaluated(tmp_path / "run", {"m": surestep.whole_set(fails)})


def test_dict_in_the_dict_of_a_metric_is_refused_with_what_to_return(tmp_path):
    nested = surestep.whole_set(lambda outputs, targets: {"a": {"b": 1.0}})
    with pytest.raises(TaskError, match=r"whose 'a' is a dict too. .* such as \{'a_b': 0.5\}"):
        evaluated(tmp_path / "run", {"m": nested})
