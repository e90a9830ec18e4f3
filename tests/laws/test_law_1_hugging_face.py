"""Law 1 for a loss that the model computes: split = full batch = the usual loop, to 1e-6.

The plain loop calls `model(**batch).loss.backward()` on the full batch, as the examples of
transformers do.
"""

import functools
from pathlib import Path

import pytest
import torch
from torch import nn

import surestep
from surestep.base.errors import TaskError
from tests.laws.support import plain
from tests.laws.support.hugging_face_models import CASES, SAMPLES, Case, gpt2, masked
from tests.laws.support.tasks import train

BATCH, STEPS, LR = 10, 5, 0.05  # four steps an epoch
SGD = {"name": "sgd", "lr": LR, "momentum": 0.0, "weight_decay": 0.0}
CUTS = {"full": BATCH, "even": 5, "uneven": 3, "one by one": 1}


def usual(case: Case) -> nn.Module:
    model = case.model().train()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    for step in range(STEPS):
        epoch, start = divmod(step * BATCH, SAMPLES)
        rows = plain.order_of(SAMPLES, 0, epoch)[start : start + BATCH]
        optimizer.zero_grad()
        model(**{name: value[rows] for name, value in case.data.items()}).loss.backward()
        optimizer.step()
    return model


@functools.cache
def trained_plainly(name: str) -> nn.Module:
    return usual(CASES[name])


def trained(case: Case, folder: Path, micro_batch_size: int, **parts) -> nn.Module:
    model = case.model()
    task = surestep.Task(model=model, loss="model", train=case.data, **parts)
    options = {"max_steps": STEPS, "batch_size": BATCH, "max_grad_norm": "off", "optim": SGD}
    constant = {"schedule": {"name": "constant"}}
    train(task, folder, micro_batch_size=micro_batch_size, **options, **constant)
    return model


@pytest.mark.parametrize("micro_batch_size", CUTS.values(), ids=CUTS)
@pytest.mark.parametrize("name", CASES)
def test_split_batch_gives_the_update_of_the_usual_loop(name, micro_batch_size, tmp_path):
    expected = trained_plainly(name)
    assert plain.distance(CASES[name].model(), expected) > 1e-3
    assert (
        plain.distance(expected, trained(CASES[name], tmp_path / "run", micro_batch_size)) <= 1e-6
    )


def test_law_detects_a_wrong_item_count(tmp_path, monkeypatch):
    """The mutation divides by the labels before the shift."""
    monkeypatch.setattr("surestep.engine.losses.model_loss.is_causal_lm", lambda model: False)
    for check in ("check_shift", "check_additivity"):
        monkeypatch.setattr(
            f"surestep.engine.checks.first_batch.{check}", lambda *args, **kwargs: None
        )
    model = trained(CASES["causal, gpt2"], tmp_path / "run", 5)
    assert plain.distance(trained_plainly("causal, gpt2"), model) > 1e-5


@pytest.mark.parametrize(
    ("name", "items"), [("causal, gpt2", "tokens"), ("masked, bert", "next tokens")]
)
def test_item_count_that_the_model_does_not_use_is_rejected(name, items, tmp_path):
    right = {"tokens": "next tokens", "next tokens": "tokens"}[items]
    with pytest.raises(TaskError, match=f"items='{right}'"):
        trained(CASES[name], tmp_path / "run", 3, items=items)


def test_wrong_item_count_is_rejected_if_the_first_batch_ignores_nothing(tmp_path):
    data = masked()
    data["labels"] = data["input_ids"].clone()
    with pytest.raises(TaskError, match="items='next tokens'"):
        trained(Case(gpt2(), data), tmp_path / "run", 3, items="tokens")


def test_evaluation_is_weighted_by_tokens(tmp_path):
    case = CASES["causal, gpt2"]
    model = case.model().eval()
    with torch.no_grad():
        expected = float(model(**case.data).loss)
    task = surestep.Task(model=model, loss="model", train=case.data, val=case.data)
    config = surestep.Config(
        max_steps=1, batch_size=10, validation={"batch_size": 7}, logging={"progress": "quiet"}
    )
    with surestep.prepare(task, config, run=tmp_path / "run") as session:
        assert session.evaluate()["val/loss"] == pytest.approx(expected, rel=1e-6)


def test_metrics_see_logits_and_labels(tmp_path):
    seen = []

    def metric(outputs, targets):
        seen.append((tuple(outputs.shape), tuple(targets.shape)))
        return float(outputs.sum())

    task = surestep.Task(
        model=gpt2(),
        loss="model",
        train=masked(),
        val=masked(),
        metrics={"sum": surestep.whole_set(metric)},
    )
    config = surestep.Config(max_steps=1, batch_size=40, logging={"progress": "quiet"})
    with surestep.prepare(task, config, run=tmp_path / "run") as session:
        session.evaluate()
    assert set(seen) == {((40, 9, 30), (40, 9))}


@pytest.mark.parametrize("name", ["causal, gpt2", "regression, bert"])
def test_half_precision_passes_the_check(name, tmp_path):
    case = CASES[name]
    task = surestep.Task(model=case.model(), loss="model", train=case.data)
    train(task, tmp_path / "run", max_steps=1, batch_size=10, precision="bf16")
