"""The check of what a model's own loss is a mean over; tests/laws has Hugging Face models."""

import pytest
import torch
from torch import nn

import surestep
from surestep.base.errors import TaskError
from surestep.engine.checks.varied_model import VariedModel
from tests import tiny
from tests.engine.losses.test_model_loss import Own, own_task


def test_model_loss_that_is_not_a_mean_over_its_items_is_rejected(tmp_path):
    class Summing(Own):
        def forward(self, x, labels):
            found = super().forward(x, labels)
            return {**found, "loss": found["loss"] * len(labels)}

    with pytest.raises(TaskError, match="not a mean over its items"):
        tiny.prepare(tmp_path / "run", vars(own_task(model=Summing())))


def test_items_of_a_model_loss_can_be_a_function_of_the_batch(tmp_path):
    task = own_task(items=lambda batch: 2 * len(batch["labels"]))
    with tiny.prepare(tmp_path / "run", vars(task)) as session:
        assert next(session.steps()).items == 16


def test_model_loss_that_compares_samples_must_be_declared(tmp_path):
    class Contrasting(Own):
        def forward(self, x, labels):
            logits = nn.Linear.forward(self, x)
            return {"loss": (logits @ logits.T).logsumexp(1).mean(), "logits": logits}

    with pytest.raises(TaskError, match=r"Task\(loss_is_separable=False\)"):
        tiny.prepare(tmp_path / "run", vars(own_task(model=Contrasting())))
    declared = vars(own_task(model=Contrasting(), loss_is_separable=False))
    with tiny.prepare(tmp_path / "declared", declared) as session:
        next(session.steps())


def test_model_input_without_a_row_per_sample_is_not_split(tmp_path):
    class Weighted(Own):
        def forward(self, x, labels, weight):
            return super().forward(x * weight, labels)

    def inputs(batch):
        x, labels = batch
        return {"x": x, "labels": labels, "weight": torch.ones(1, tiny.FEATURES)}, labels

    task = surestep.Task(model=Weighted(), loss="model", train=tiny.data(), inputs=inputs)
    with tiny.prepare(tmp_path / "run", vars(task)) as session:
        assert next(session.steps()).items == 8


class EachToken(nn.Module):
    """Has the same initial loss for each token; a frozen weight is stored in 8 bits."""

    def __init__(self):
        super().__init__()
        self.frozen = nn.Parameter(torch.eye(4).to(torch.float8_e4m3fn), requires_grad=False)
        self.head = nn.Linear(4, 3)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, x, labels):
        logits = self.head(x @ self.frozen.to(x.dtype))
        return {"loss": nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())}


def prepare_each_token(folder, items):
    generator = torch.Generator().manual_seed(0)
    train = {
        "x": torch.randn(16, 5, 4, generator=generator),
        "labels": torch.randint(3, (16, 5), generator=generator),
    }
    task = surestep.Task(model=EachToken(), loss="model", train=train, items=items)
    return surestep.prepare(task, tiny.config(), run=folder)


def test_labels_of_a_model_with_8_bit_weights_are_checked(tmp_path):
    prepare_each_token(tmp_path / "right", "tokens").close()
    with pytest.raises(TaskError, match=r"Task\(items='tokens'\)"):
        prepare_each_token(tmp_path / "wrong", "next tokens")


def test_label_check_is_skipped_if_it_runs_out_of_memory(tmp_path, monkeypatch):
    def out_of_memory(*_):
        raise torch.OutOfMemoryError("no memory for a copy")

    monkeypatch.setattr(VariedModel, "__init__", out_of_memory)
    prepare_each_token(tmp_path, "tokens").close()
