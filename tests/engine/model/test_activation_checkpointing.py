"""Hugging Face models' own activation checkpointing: the same numbers, and put back at the end."""

import warnings

import pytest
import torch

import surestep
from surestep.base.errors import ConfigError
from surestep.engine.model.activation_checkpointing import (
    model_checkpointing,
    uses_own_checkpointing,
)
from tests import tiny
from tests.laws.support.hugging_face_models import gpt2, masked
from tests.laws.support.tasks import session_of

OPTIONS = {"max_steps": 6, "batch_size": 10, "micro_batch_size": 4}


def trained(folder, dropout, **options):
    model = gpt2(dropout)()
    blocks = []  # how often a block is run: again in the backward, where it is recomputed
    model.transformer.h[0].mlp.register_forward_pre_hook(lambda *_: blocks.append(1))
    task = surestep.Task(model=model, loss="model", train=masked())
    with session_of(task, folder, **OPTIONS, **options) as session:
        blocks.clear()
        for _ in session.steps():
            pass
    return tiny.weights(model), len(blocks)


@pytest.mark.parametrize(("dropout", "limit"), [(0.0, 0.0), (0.3, 1e-6)])
def test_the_numbers_are_the_same(dropout, limit, tmp_path):
    """With dropout to the last digits: gradients that meet are then added in another order."""
    kept, once = trained(tmp_path / "off", dropout)
    recomputed, twice = trained(tmp_path / "on", dropout, activation_checkpointing="on")
    assert float((kept - recomputed).norm() / kept.norm()) <= limit
    assert twice == 2 * once


def test_the_cache_is_off_meanwhile_and_all_is_put_back():
    model = gpt2()()
    assert model.config.use_cache
    with warnings.catch_warnings(), model_checkpointing(model):
        assert not model.config.use_cache
        assert model.is_activation_checkpointing
    assert model.config.use_cache
    assert not model.is_activation_checkpointing


def test_an_older_model_is_asked_by_the_older_name():
    class Older(torch.nn.Linear):
        asked = None

        def gradient_checkpointing_enable(self, gradient_checkpointing_kwargs):
            self.asked = gradient_checkpointing_kwargs

        def gradient_checkpointing_disable(self):
            self.asked = None

    model = Older(1, 1)
    with model_checkpointing(model):
        assert model.asked["use_reentrant"] is False
    assert model.asked is None


def test_a_model_that_cannot_is_known():
    assert uses_own_checkpointing(gpt2()())
    assert not uses_own_checkpointing(tiny.model())
    unable = gpt2()()
    unable.supports_gradient_checkpointing = False
    assert not uses_own_checkpointing(unable)


def test_another_model_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="this one has none"):
        tiny.prepare(tmp_path / "run", activation_checkpointing="on")
