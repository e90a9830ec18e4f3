"""Outputs that a method of a model computes, and measures known by their names."""

import pytest

from tests.doctor.scripts import check_text

TRAINER = """\
import torch

class Trainer:
    def __init__(self, ranker, evaluator, loader, valid_loader):
        self.ranker, self.evaluator = ranker, evaluator
        self.loader, self.valid_loader = loader, valid_loader
        self.optimizer = torch.optim.Adam(ranker.parameters())

    def fit(self):
        for epoch in range(9):
            self.ranker.train()
            for batch in self.loader:
                self.optimizer.zero_grad()
                self.ranker.calculate_loss(batch).backward()
                self.optimizer.step()
            self.validate()

    def validate(self):
        {before}
        for batch in self.valid_loader:
            scores = self.ranker.{method}(batch)
            {measure}
"""


def find(code, before="self.ranker.eval()", **parts):
    parts = {"method": "predict", "measure": "self.evaluator.collect(scores, batch.labels)"} | parts
    text = TRAINER
    for name, part in {"before": before, **parts}.items():
        text = text.replace(f"{{{name}}}", part)
    return [found.line for found in check_text(text, code)]


@pytest.mark.parametrize("method", ["predict", "forward", "inference"])
def test_method_of_a_model_computes_its_output(method):
    assert find("SS403", method=method) == [21]
    assert find("SS403", "torch.set_grad_enabled(False)", method=method) == []


@pytest.mark.parametrize("method", ["parameters", "state_dict", "explain"])
def test_other_methods_compute_none(method):
    assert find("SS403", method=method) == []


@pytest.mark.parametrize(
    "measure",
    ["dice_coeff(scores, batch.mask)", "metrics.update(scores, batch.y)", "accuracy(scores, y)"],
)
def test_measure_is_known_by_its_name(measure):
    assert find("SS403", measure=measure) == [21]


@pytest.mark.parametrize(
    "measure", ["show(scores, batch.labels)", "accuracy(scores)", "accuracy(scores, scores.T)"]
)
def test_call_without_a_target_measures_nothing(measure):
    assert find("SS403", measure=measure) == []
