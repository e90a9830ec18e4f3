"""The loss that a model computes itself: its items and its errors, without transformers."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

import surestep
from surestep.base.errors import DataError, TaskError
from surestep.engine.losses.model_loss import (
    batch_as_kwargs,
    extract_logits,
    extract_loss,
    is_causal_lm,
    model_loss,
)
from tests import tiny

IGNORED = torch.tensor([[1, 2, -100], [-100, 4, 5]])


class Own(nn.Linear):
    """A model that returns its loss and its logits."""

    def __init__(self, config=None):
        super().__init__(tiny.FEATURES, tiny.CLASSES)
        self.config = config

    def forward(self, x, labels):
        logits = super().forward(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def own_task(**parts):
    x, y = tiny.data()
    return surestep.Task(
        **{"model": Own(), "loss": "model", "train": {"x": x, "labels": y}} | parts
    )


def items_of(model, items, labels):
    return model_loss(model, items).items({"labels": labels}, labels)


@pytest.mark.parametrize(
    ("kind", "encoder_decoder", "shifts"),
    [
        ("TinyForCausalLM", False, True),
        ("TinyLMHeadModel", False, True),
        ("TinyForConditionalGeneration", False, True),
        ("TinyForConditionalGeneration", True, False),
        ("TinyForMaskedLM", False, False),
        ("TinyForTokenClassification", False, False),
    ],
)
def test_type_of_the_model_decides_whether_labels_are_shifted(kind, encoder_decoder, shifts):
    model = type(kind, (Own,), {})(SimpleNamespace(is_encoder_decoder=encoder_decoder))
    assert is_causal_lm(model) is shifts
    assert items_of(model, "samples", IGNORED) == (3 if shifts else 4)


def test_compiled_model_is_unwrapped():
    inner = type("TinyForCausalLM", (Own,), {})()
    wrapped = nn.Module()
    wrapped._orig_mod = inner
    assert is_causal_lm(wrapped)


def test_items_that_are_set_override_the_type_of_the_model():
    assert items_of(Own(), "next tokens", IGNORED) == 3
    assert items_of(type("TinyForCausalLM", (Own,), {})(), "tokens", IGNORED) == 4
    assert items_of(Own(), lambda batch: len(batch["labels"]), IGNORED) == 2


def test_labels_of_samples_are_not_shifted():
    loss = model_loss(Own(), "next tokens")
    assert loss.count(torch.tensor([1, 2, -100])) == loss.items({}, torch.tensor([1, 2, -100])) == 2


def test_float_labels_count_elements_for_the_loss_and_samples_for_metrics():
    loss, labels = model_loss(Own(), "samples"), torch.rand(5, 4)
    assert loss.items(None, labels) == 20
    assert loss.count(labels) == 5


def test_unknown_items_of_a_model_loss_are_rejected():
    with pytest.raises(TaskError, match="'next tokens'"):
        own_task(items="words").build_loss(Own())


def test_full_batch_goes_to_the_model_and_its_labels_are_the_targets():
    batch = {"input_ids": 1, "labels": 2}
    assert batch_as_kwargs(batch) == ((), batch, 2)
    assert batch_as_kwargs({"x": 1, "next_sentence_label": 3})[2] == 3
    spans = {"start_positions": 1, "end_positions": 2}
    assert batch_as_kwargs({"x": 1, **spans})[2] == spans
    assert batch_as_kwargs({"x": 1})[2] == {"x": 1}
    with pytest.raises(DataError, match="dataset of dicts"):
        batch_as_kwargs((1, 2))


def test_loss_is_read_from_an_object_or_a_dict():
    value = torch.tensor(2.0)
    assert extract_loss({"loss": value}) is value
    assert extract_loss(SimpleNamespace(loss=value)) is value
    with pytest.raises(TaskError, match="returned no loss"):
        extract_loss(SimpleNamespace(loss=None))
    with pytest.raises(TaskError, match="return_dict=True"):
        extract_loss((value, 1))


def test_metrics_get_the_logits_or_all_outputs():
    assert extract_logits({"logits": 3}) == 3
    assert extract_logits(SimpleNamespace(logits=3)) == 3
    assert extract_logits({"scores": 3}) == {"scores": 3}


def test_model_loss_without_labels_is_rejected(tmp_path):
    class Unlabelled(Own):
        def forward(self, x, labels=None):
            return {"loss": None, "logits": nn.Linear.forward(self, x)}

    with pytest.raises(TaskError, match="labels it takes"):
        tiny.prepare(tmp_path / "run", vars(own_task(model=Unlabelled())))


def test_unknown_string_for_the_loss_is_rejected():
    with pytest.raises(TaskError, match="Did you mean 'model'"):
        own_task(loss="modle")
