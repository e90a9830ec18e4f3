"""The proof of what a model's own loss is a mean over; tests/laws asks Hugging Face models."""

import pytest
import torch
from torch import nn

import surestep
from surestep.base.errors import TaskError
from tests import tiny
from tests.engine.test_model_loss import Own, own_task


def test_a_loss_that_is_no_mean_over_its_items_is_refused(tmp_path):
    class Summing(Own):
        def forward(self, x, labels):
            found = super().forward(x, labels)
            return {**found, "loss": found["loss"] * len(labels)}

    with pytest.raises(TaskError, match="not a mean over its items"):
        tiny.prepare(tmp_path / "run", vars(own_task(model=Summing())))


def test_the_check_counts_with_a_function_of_the_batch(tmp_path):
    task = own_task(items=lambda batch: 2 * len(batch["labels"]))
    with tiny.prepare(tmp_path / "run", vars(task)) as session:
        assert next(session.steps()).items == 16


def test_a_loss_that_compares_samples_is_declared(tmp_path):
    class Contrasting(Own):
        def forward(self, x, labels):
            logits = nn.Linear.forward(self, x)
            return {"loss": (logits @ logits.T).logsumexp(1).mean(), "logits": logits}

    with pytest.raises(TaskError, match=r"Task\(splits=False\)"):
        tiny.prepare(tmp_path / "run", vars(own_task(model=Contrasting())))
    declared = vars(own_task(model=Contrasting(), splits=False))
    with tiny.prepare(tmp_path / "declared", declared) as session:
        next(session.steps())


def test_what_is_not_one_for_each_sample_is_not_cut(tmp_path):
    class Weighted(Own):
        def forward(self, x, labels, weight):
            return super().forward(x * weight, labels)

    def inputs(batch):
        x, labels = batch
        return {"x": x, "labels": labels, "weight": torch.ones(1, tiny.FEATURES)}, labels

    task = surestep.Task(model=Weighted(), loss="model", train=tiny.data(), inputs=inputs)
    with tiny.prepare(tmp_path / "run", vars(task)) as session:
        assert next(session.steps()).items == 8
