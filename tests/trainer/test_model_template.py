"""A model is built again with the weights of a checkpoint, apart from the one that trains."""

import pytest
import torch
from torch import nn

import surestep
from surestep.base.errors import CheckpointError
from surestep.trainer.model_template import ModelTemplate

X = torch.randn(16, 4, generator=torch.Generator().manual_seed(0))


class Tied(nn.Module):
    """Two names for one parameter, and a buffer that no checkpoint has."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)
        self.last.weight = self.first.weight
        self.register_buffer("scale", torch.tensor(3.0), persistent=False)

    def forward(self, x):
        return self.last(self.first(x)) * self.scale


def train(model, folder, **options):
    task = surestep.Task(model, "mse", (X, X), val=(X, X))
    options = {"max_steps": 4, "batch_size": 8, "logging.progress": "quiet", **options}
    return surestep.Trainer(task, surestep.Config.from_options(options), run=folder).fit()


def test_model_of_the_best_checkpoint_is_built_without_the_trained_one(tmp_path):
    model = Tied()
    template = ModelTemplate(model)
    run = train(model, tmp_path)
    built = template.load(run)
    run.load_model(model, which="best")
    assert torch.equal(built(X), model(X))
    assert built.last.weight is built.first.weight
    assert not built.training
    assert {p.data_ptr() for p in built.parameters()}.isdisjoint(
        p.data_ptr() for p in model.parameters()
    )


def test_template_takes_no_memory_for_parameters():
    template = ModelTemplate(Tied())
    assert all(parameter.is_meta for parameter in template._modules.parameters())


def test_checkpoint_without_frozen_parameters_is_rejected(tmp_path):
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[0].requires_grad_(False)
    template = ModelTemplate(model)
    run = train(model, tmp_path, **{"checkpoint.weights": "trained"})
    with pytest.raises(CheckpointError, match="frozen"):
        template.load(run)


def test_model_that_cannot_be_copied_fails_only_when_it_is_built(tmp_path):
    model = nn.Linear(4, 4)
    model.generator = (number for number in range(3))
    template = ModelTemplate(model)
    with pytest.raises(CheckpointError, match="cannot be copied: TypeError"):
        template.load(train(nn.Linear(4, 4), tmp_path))
