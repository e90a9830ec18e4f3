"""Which steps in eval mode an evaluation left behind, and which may be meant."""

import pytest
import torch
from torch import nn

from surestep.doctor.rules import ss401_trains_in_eval_mode as rule
from surestep.doctor.watch.hooks import Monitor


def count_mistakes(script):
    """Return the number of steps that are reported.

    Args:
        script: "E" evaluates in eval mode, "T" switches to train mode, "s" takes a step.
    """
    watcher = rule.TrainsInEvalModeWatcher()
    monitor = Monitor({"SS401": watcher})
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.eval()

    def evaluate():
        model.eval()
        with torch.no_grad():
            model(torch.ones(8, 4))

    def step():
        optimizer.zero_grad()
        model(torch.ones(8, 4)).pow(2).mean().backward()
        optimizer.step()

    with monitor.installed():
        for letter in script:
            {"E": evaluate, "T": model.train, "s": step}[letter]()
    assert monitor.listeners.failures == {}
    return sum(found.evidence["eval_steps"] for found in watcher.observe(monitor.run))


@pytest.mark.parametrize(
    ("script", "mistakes"),
    [
        ("EsssEsss", 6),  # two evaluations show that the mode is theirs
        ("Esssss", 0),  # one may be a first look at a model that is trained in eval mode
        ("sssss", 0),
        ("TssEsss", 3),
        ("TssEss", 0),  # too few
        ("EsTsEss", 0),  # the first one is of before the training
        ("EssTss", 0),
    ],
)
def test_steps_after_an_evaluation_are_counted_if_others_show_that_they_are_not_meant(
    script, mistakes
):
    assert count_mistakes(script) == mistakes
