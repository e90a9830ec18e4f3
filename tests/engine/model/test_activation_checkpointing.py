"""Hugging Face models' own activation checkpointing: same results, restored at the end."""

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
    blocks = []  # one entry for each run of a block; the backward recomputes it
    model.transformer.h[0].mlp.register_forward_pre_hook(lambda *_: blocks.append(1))
    task = surestep.Task(model=model, loss="model", train=masked())
    with session_of(task, folder, **OPTIONS, **options) as session:
        blocks.clear()
        for _ in session.steps():
            pass
    return tiny.weights(model), len(blocks)


@pytest.mark.parametrize(("dropout", "limit"), [(0.0, 0.0), (0.3, 1e-6)])
def test_checkpointing_does_not_change_the_weights(dropout, limit, tmp_path):
    """With dropout only up to rounding: gradients are then added in a different order."""
    kept, once = trained(tmp_path / "off", dropout)
    recomputed, twice = trained(tmp_path / "on", dropout, activation_checkpointing="on")
    assert float((kept - recomputed).norm() / kept.norm()) <= limit
    assert twice == 2 * once


def test_cache_is_off_during_checkpointing_and_restored_after():
    model = gpt2()()
    assert model.config.use_cache
    with warnings.catch_warnings(), model_checkpointing(model):
        assert not model.config.use_cache
        assert model.is_activation_checkpointing
    assert model.config.use_cache
    assert not model.is_activation_checkpointing


def test_older_gradient_checkpointing_methods_are_used():
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


def test_model_without_checkpointing_support_is_detected():
    assert uses_own_checkpointing(gpt2()())
    assert not uses_own_checkpointing(tiny.model())
    unable = gpt2()()
    unable.supports_gradient_checkpointing = False
    assert not uses_own_checkpointing(unable)


def test_model_without_its_own_checkpointing_is_rejected(tmp_path):
    with pytest.raises(ConfigError, match="this one has none"):
        tiny.prepare(tmp_path / "run", activation_checkpointing="on")
