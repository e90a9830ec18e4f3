import pytest
import torch
from torch import nn

import surestep
from surestep.base.errors import CheckpointError, ConfigError
from surestep.record.run import Run
from surestep.trainer.evaluator import evaluate_run
from tests import tiny

X, Y = tiny.data()
SPLIT = {
    "train": (X[:10], Y[:10]),
    "val": {"near": (X[10:13], Y[10:13]), "far": (X[13:16], Y[13:16])},
    "test": (X[16:], Y[16:]),
}


def accuracy(outputs, targets):
    return (outputs.argmax(dim=1) == targets).float().mean()


def normed():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))


class Weighted(nn.Module):
    """A loss that has a tensor."""

    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.tensor(3.0))

    def forward(self, outputs, targets):
        return self.scale * nn.functional.cross_entropy(outputs, targets)


def trained(folder, **said):
    """Return a closed run whose best checkpoint is not its last, its task and its config."""
    parts = {**SPLIT, "metrics": {"accuracy": accuracy}, **said.pop("parts", {})}
    said = {"epochs": 3, "validation": {"metric": "near/loss", "mode": "max"}, **said}
    tiny.fit(folder, parts, **said)
    return tiny.task(**parts), tiny.config(**said)


def session_metrics(folder, task, config, split, which):

    with surestep.prepare(task, config, run=folder) as session:
        return session.evaluate_checkpoint(split, which)


@pytest.mark.parametrize("which", ["best", "last"])
def test_closed_run_is_evaluated_as_an_open_one(tmp_path, which):
    task, config = trained(tmp_path)
    run = Run(tmp_path)
    assert run.best.step != run.last.step
    for split in ("near", "far", "test", "train"):
        saved, metrics = evaluate_run(run, task, config, split=split, which=which)
        assert metrics == session_metrics(tmp_path, task, config, split, which)
        assert saved == getattr(run, which)


def test_sharded_run_is_evaluated_in_one_process(tmp_path):
    task, config = trained(tmp_path)
    ranked = config.replace_options({"parallel.strategy": "fsdp", "parallel.shard": "grad_op"})
    of_one = evaluate_run(Run(tmp_path), task, config, split="test", which="last")
    assert evaluate_run(Run(tmp_path), task, ranked, split="test", which="last") == of_one


@pytest.mark.parametrize(
    "said",
    [
        {"precision": "bf16"},
        {"parts": {"model": normed()}},
        {"parts": {"loss": Weighted()}},
        {"validation": {"batch_size": 2}},
        {"seed": 3},
    ],
    ids=["bf16", "modes", "loss with tensors", "batches", "seed"],
)
def test_closed_and_open_evaluation_agree_for_every_kind_of_run(tmp_path, said):
    task, config = trained(tmp_path, **said)
    _, metrics = evaluate_run(Run(tmp_path), task, config, split="test", which="last")
    assert metrics == session_metrics(tmp_path, task, config, "test", "last")


def test_split_val_evaluates_every_validation_set(tmp_path):
    task, config = trained(tmp_path)
    saved, metrics = evaluate_run(Run(tmp_path), task, config, split="val", which="best")
    assert set(metrics) == {"near/loss", "near/accuracy", "far/loss", "far/accuracy"}
    assert metrics == saved.metrics


def test_evaluation_gives_the_numbers_of_plain_torch(tmp_path):
    task, config = trained(tmp_path)
    run, model = Run(tmp_path), tiny.model(seed=9)
    _, metrics = evaluate_run(run, task, config, split="test", which="best")
    run.load_model(model, "best")
    with torch.no_grad():
        outputs = model.eval()(X[16:])
    assert metrics["test/loss"] == pytest.approx(
        float(nn.functional.cross_entropy(outputs, Y[16:])), rel=1e-6
    )
    assert metrics["test/accuracy"] == float(accuracy(outputs, Y[16:]))


def test_evaluation_of_the_training_data_uses_every_sample(tmp_path):
    task, config = trained(tmp_path, data={"drop_last": True})
    run, model = Run(tmp_path), tiny.model(seed=9)
    _, metrics = evaluate_run(run, task, config, split="train", which="last")
    run.load_model(model, "last")
    with torch.no_grad():
        expected = float(nn.functional.cross_entropy(model.eval()(X[:10]), Y[:10]))
    assert metrics["train/loss"] == pytest.approx(expected, rel=1e-6)


def test_active_run_can_be_evaluated_without_writing_anything(tmp_path):
    with tiny.prepare(tmp_path, SPLIT) as session:
        next(session.steps())
        session.save()
        before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
        task, config = tiny.task(**{**SPLIT, "model": tiny.model(seed=7)}), tiny.config()
        saved, metrics = evaluate_run(session.run, task, config, split="test", which="last")
        assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
        assert (saved.step, metrics) == (1, session.evaluate("test"))


@pytest.mark.parametrize(
    ("parts", "split", "message"),
    [
        (SPLIT, "tset", r"no tset data\. Did you mean 'test'\?"),
        ({**SPLIT, "val": None}, "val", r"no val data\. Known: train, test\."),
    ],
)
def test_missing_split_is_rejected(tmp_path, parts, split, message):
    run = tiny.fit(tmp_path, parts)
    with pytest.raises(ConfigError, match=message):
        evaluate_run(run, tiny.task(**parts), tiny.config(), split=split, which="last")


def test_different_model_is_rejected_with_the_mismatched_name(tmp_path):
    run = tiny.fit(tmp_path, SPLIT)
    other = tiny.task(**{**SPLIT, "model": nn.Linear(4, 3)})
    with pytest.raises(CheckpointError, match="weight"):
        evaluate_run(run, other, tiny.config(), split="test", which="last")
