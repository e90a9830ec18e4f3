"""Predictions and perplexity of a model that computes its own loss."""

import math

import numpy as np
import pytest
import torch
from torch import nn

import surestep
from tests import tiny
from tests.laws.support.hugging_face_models import TOKENS, WORDS, gpt2, masked


def perplexity(logits, labels):
    return nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()).exp()


def test_causal_model_predicts_logits_with_perplexity_exp_of_the_loss(tmp_path):
    data = masked()
    parts = {
        **{"model": gpt2(dropout=0.1), "loss": "model", "train": data, "val": data},
        **{"metrics": {"perplexity": surestep.whole_set(perplexity)}},
        "test": {"input_ids": data["input_ids"]},
    }
    with tiny.prepare(tmp_path, parts, max_steps=1, validation={"batch_size": 7}) as session:
        found = session.evaluate()
        assert found["val/perplexity"] == pytest.approx(math.exp(found["val/loss"]), rel=1e-5)
        said = session.predict("test")
        unsure = session.predict("test", mc_dropout=3)
        with torch.no_grad():
            logits = session.model.eval()(input_ids=data["input_ids"]).logits.numpy()
    assert list(said.arrays) == ["index", "output"]
    assert said["output"].shape == (len(logits), TOKENS, WORDS)
    np.testing.assert_allclose(said["output"], logits, rtol=1e-4, atol=1e-5)
    assert (unsure["spread"] > 0).any()
