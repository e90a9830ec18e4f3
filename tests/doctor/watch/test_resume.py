"""A schedule that starts again beside a restored optimizer is reported, and no other one."""

import pytest
import torch
from torch.optim.lr_scheduler import StepLR

from surestep.doctor.rule import load_rules
from surestep.doctor.watch.watch import Watch


class Training:
    """A model with its optimizer and its schedule."""

    def __init__(self):
        self.model = torch.nn.Linear(4, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.schedule = StepLR(self.optimizer, step_size=1, gamma=0.5)

    def fit(self, epochs=4):
        for _ in range(epochs):
            self.optimizer.zero_grad()
            self.model(torch.ones(8, 4)).mean().backward()
            self.optimizer.step()
            self.schedule.step()


def resume(*, with_schedule=False, fast_forward=0):
    first, second = Training(), Training()
    first.fit()
    second.optimizer.load_state_dict(first.optimizer.state_dict())
    if with_schedule:
        second.schedule.load_state_dict(first.schedule.state_dict())
    for _ in range(fast_forward):
        second.schedule.step()
    second.fit()


def find(function):
    watch = Watch([rule for rule in load_rules() if rule.code == "SS308"])
    watch.run(function)
    report = watch.report()
    assert report.failures == {}
    return report.findings


def test_schedule_that_is_not_restored_is_reported():
    (found,) = find(resume)
    assert found.message.startswith("StepLR began at its first step")
    assert found.evidence["since_step"] == 5


@pytest.mark.parametrize("options", [{"with_schedule": True}, {"fast_forward": 4}])
@pytest.mark.filterwarnings("ignore:Detected call of")
def test_schedule_that_is_restored_is_not_reported(options):
    assert find(lambda: resume(**options)) == []


def test_optimizer_that_is_restored_to_its_first_learning_rate_is_not_reported():
    def search_for_learning_rate():
        training = Training()
        state = training.optimizer.state_dict()
        training.optimizer.load_state_dict(state)
        training.fit()

    assert find(search_for_learning_rate) == []


def test_optimizer_that_gets_its_own_state_is_not_reported():
    def load_own_state():
        training = Training()
        training.schedule = torch.optim.lr_scheduler.LinearLR(training.optimizer, 0.1)
        training.optimizer.load_state_dict(training.optimizer.state_dict())
        training.fit()

    assert find(load_own_state) == []
