"""Law 4 for diagnosis: it repeats a step and changes nothing."""

import math
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import nn

import surestep
from surestep.engine.diagnose.diagnose import diagnose
from tests.engine.diagnose.broken import BAD, data, model, place_of
from tests.laws.support.tasks import assert_same, session_of, snapshot

Folder = Callable[[], Path]


class Drawing(nn.Module):
    """Draws, counts in a buffer, and has statistics; a diagnosis must restore all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))
        self.drop, self.norm = nn.Dropout(0.5), nn.BatchNorm1d(4)

    def forward(self, value):
        self.calls.add_(1)
        np.random.rand(), random.random()
        return self.drop(self.norm(value))


def check_untouched(folder: Folder) -> None:
    """Diagnose a step, and compare all state with that before."""
    task = surestep.Task(model(Drawing()), nn.CrossEntropyLoss(), data(math.nan))
    options = {"epochs": 1, "batch_size": 8, "seed": 3, "precision": "fp16"}
    with session_of(task, folder(), **options) as session:
        next(session.steps())
        batch, place = place_of(session, BAD)
        session.state.progress = session.state.progress._replace(**place._asdict())
        session.model.eval()
        before = snapshot(session)
        grads = {n: None if p.grad is None else p.grad.clone() for n, p in named(session)}
        generators = torch.get_rng_state(), np.random.get_state()[1], random.getstate()
        found = diagnose(session.loop.context, batch, index=None)
        assert found.reproduced
        assert_same(before, snapshot(session))
        assert not any(module.training for module in session.model.modules())
        for name, parameter in named(session):
            kept = grads[name]
            assert kept is None or torch.equal(parameter.grad, kept), name
        assert torch.equal(torch.get_rng_state(), generators[0])
        assert (np.random.get_state()[1] == generators[1]).all()
        assert random.getstate() == generators[2]


def named(session):
    return list(session.model.named_parameters())


def test_diagnosis_changes_nothing(folder):
    check_untouched(folder)
