"""Schedules in attributes, which other code may step."""

import pytest

from tests.doctor.scripts import check_text

SCRIPT = """
import torch
from elsewhere import Base, StepSchedule, with_hooks

class Trainer:
    def __init__(self, model):
        self.model, self.callbacks = model, []
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 10)

    def train(self, loader, epochs):
        for epoch in range(epochs):
            for x, y in loader:
                self.optimizer.zero_grad()
                torch.nn.functional.mse_loss(self.model(x), y).backward()
                self.optimizer.step()
            print(epoch)

trainer = Trainer(torch.nn.Linear(4, 1))
trainer.train([(torch.randn(8, 4), torch.randn(8, 1))], 5)
"""
NEVER_STEPPED = {
    "not used": ("", ""),
    "read": ("print(epoch)", "print(self.scheduler.get_last_lr())"),
    "not called": ("print(epoch)", "self.scheduler.step"),
    "saved": ("print(epoch)", "torch.save({'scheduler': self.scheduler.state_dict()}, 'f')"),
    "class of Python": ("class Trainer:", "class Trainer(object):"),
    "another attribute": ("print(epoch)", "self.schedule.step()"),
    "typed": ("self.scheduler =", "self.scheduler: object ="),
}
MAY_BE_STEPPED = {
    "passed to a callback": ("print(epoch)", "[callback(self) for callback in self.callbacks]"),
    "base class": ("class Trainer:", "class Trainer(Base):"),
    "metaclass": ("class Trainer:", "class Trainer(metaclass=Base):"),
    "decorated class": ("class Trainer:", "@with_hooks\nclass Trainer:"),
    "method to override": (
        "    def train(self",
        "    def after_epoch(self):\n        pass\n\n    def train(self",
    ),
    "one loop": ("for epoch in range(epochs):", "if epoch := epochs:"),
    "another object": ("print(epoch)", "self.owner.scheduler.step()"),
    "dictionary": ("print(epoch)", "[value.step() for value in self.__dict__.values()]"),
    "made name": ("print(epoch)", "getattr(self.model, f'sched{epoch}').step()"),
    "position": ("print(epoch)", "self.scheduler.last_epoch = epoch"),
    "object given to an import": ("trainer.train", "StepSchedule(trainer)\ntrainer.train"),
    "object in a list": ("trainer.train", "StepSchedule([trainer])\ntrainer.train"),
    "local name in a hook": (
        "self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 10)",
        "scheduler = self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 10)\n"
        "        self.optimizer.register_step_post_hook(lambda *_: scheduler.step())",
    ),
    "list": ("print(epoch)", "self.all = [self.scheduler]"),
    "argument": ("print(epoch)", "StepSchedule(self.scheduler)"),
    "branch": ("        self.scheduler =", "        if model:\n            self.scheduler ="),
}


def check(old, new):
    assert old in SCRIPT
    return check_text(SCRIPT.replace(old, new, 1) if old else SCRIPT, "SS305")


@pytest.mark.parametrize("change", NEVER_STEPPED.values(), ids=NEVER_STEPPED)
def test_schedule_that_nothing_steps_is_reported(change):
    assert len(check(*change)) == 1


@pytest.mark.parametrize("change", MAY_BE_STEPPED.values(), ids=MAY_BE_STEPPED)
def test_schedule_that_other_code_may_step_is_not_reported(change):
    assert check(*change) == []
