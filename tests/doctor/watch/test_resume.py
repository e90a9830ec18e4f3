"""A resume that leaves something out, or that repeats or skips an epoch, is reported."""

import pytest
import torch
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader

from surestep.doctor.rule import load_rules
from surestep.doctor.watch.watch import WatchSession
from tests.doctor.examples import FOLDER


@pytest.fixture(autouse=True)
def seed():
    """With some weights, a scaled gradient overflows, and the scaler skips a step."""
    torch.manual_seed(0)


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
    watch = WatchSession([rule for rule in load_rules() if rule.code == "SS308"])
    watch.run(function)
    report = watch.report()
    assert (report.failures, report.stopped_at) == ({}, None)
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


class Resumed:
    """Trains by epochs, and resumes from what it saved; options plant what is different."""

    def __init__(self, folder, **options):
        self.folder = folder
        self.batches, self.save_in_epoch = options.pop("batches", 3), options.pop("inside", False)
        self.saves, self.loads = options.pop("saves", 1), options.pop("loads", 0)
        self.parts = options.pop("parts", ("model", "optimizer"))
        self.extra, self.every = options.pop("extra", {}), options.pop("every", 1)
        self.make = options.pop("make", lambda parameters: torch.optim.Adam(parameters))
        assert not options

    def leave(self, epoch):
        """Save a checkpoint as an earlier run would."""
        self.model, self.optimizer = torch.nn.Linear(4, 1), None
        self.optimizer = self.make(self.model.parameters())
        self.save(epoch)

    def save(self, epoch):
        parts = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        torch.save({**parts, "epoch": epoch, **self.extra}, self.folder / "last.pt")

    def fit(self, epochs, *, start=None):
        self.model = torch.nn.Linear(4, 1)
        self.optimizer = self.make(self.model.parameters())
        path = self.folder / "last.pt"
        first = 0
        if path.exists():
            saved = torch.load(path, weights_only=True)
            for name in self.parts:
                getattr(self, name).load_state_dict(saved[name])
            first = saved["epoch"] + self.loads
        loader = DataLoader(torch.ones(8 * self.batches, 4), batch_size=8)
        for epoch in range(first if start is None else start, epochs):
            for x in loader:
                self.optimizer.zero_grad()
                self.model(x).pow(2).mean().backward()
                self.optimizer.step()
                if self.save_in_epoch:
                    self.save(epoch)
            if (epoch + 1) % self.every == 0:
                self.save(epoch + self.saves)


def find_resumed(code, function):
    watch = WatchSession([rule for rule in load_rules() if rule.code == code])
    watch.run(function)
    report = watch.report()
    assert (report.failures, report.stopped_at) == ({}, None)
    return [finding.evidence for finding in report.findings]


def resume_from(folder, epoch, **options):
    """Return a function that resumes from the checkpoint of an earlier run."""
    training = Resumed(folder, **options)
    training.leave(epoch)
    return lambda: training.fit(epoch + 4)


def test_optimizer_that_is_not_restored_is_reported(tmp_path):
    (found,) = find_resumed("SS801", resume_from(tmp_path, 5, parts=["model"]))
    assert (found["name"], found["number"], found["new"]) == ("epoch", 5, "Adam")


def test_optimizer_that_is_restored_is_not_reported(tmp_path):
    assert find_resumed("SS801", resume_from(tmp_path, 5)) == []


def test_optimizer_without_state_is_not_reported(tmp_path):
    options = {"parts": ["model"], "make": lambda p: torch.optim.SGD(p, lr=0.1)}
    assert find_resumed("SS801", resume_from(tmp_path, 5, **options)) == []


def test_scaler_that_is_restored_is_not_reported():
    text = (FOLDER / "ss801" / "bad_scaler.py").read_text()
    load = "optimizer.load_state_dict("
    restored = text.replace(load, f"scaler.load_state_dict(scaler.state_dict()); {load}")
    assert restored != text
    assert len(find_resumed("SS801", lambda: exec(text, {}))) == 1
    assert find_resumed("SS801", lambda: exec(restored, {})) == []


def test_second_phase_with_another_model_and_learning_rate_is_not_reported(tmp_path):
    def make(parameters):
        return torch.optim.Adam(parameters, lr=lr)

    training = Resumed(tmp_path, parts=["model"], make=make)
    lr = 1e-2

    def train_two_phases(factor):
        nonlocal lr
        training.fit(3)
        lr *= factor
        training.fit(6)
        (tmp_path / "last.pt").unlink()

    assert find_resumed("SS801", lambda: train_two_phases(0.1)) == []
    assert len(find_resumed("SS801", lambda: train_two_phases(1))) == 1


@pytest.mark.parametrize("epoch", [1, 2])
def test_resume_after_few_epochs_is_reported(tmp_path, epoch):
    (found,) = find_resumed("SS801", resume_from(tmp_path, epoch, parts=["model"]))
    assert found["number"] == epoch


@pytest.mark.parametrize(("start", "saves"), [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_training_that_begins_at_the_first_epoch_is_not_reported(tmp_path, start, saves):
    for epoch in range(start + saves, 6):  # what such a script may have saved
        training = Resumed(tmp_path, parts=["model"], saves=saves)
        training.leave(epoch)
        for code in ("SS801", "SS805"):
            assert find_resumed(code, lambda training=training: training.fit(6, start=start)) == []


def test_optimizer_that_is_made_for_every_epoch_is_not_reported(tmp_path):
    training = Resumed(tmp_path, parts=["model"])
    training.leave(5)

    def train_epochs():
        for epoch in range(6, 10):
            training.fit(epoch)

    assert find_resumed("SS801", train_epochs) == []


def test_optimizer_of_a_later_phase_is_not_reported(tmp_path):
    training = Resumed(tmp_path)
    training.leave(5)

    def train_two_phases():
        training.fit(8)
        model = training.model
        model.load_state_dict(torch.load(tmp_path / "last.pt", weights_only=True)["model"])
        training.optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
        for epoch in range(8, 11):
            for x in DataLoader(torch.ones(24, 4), batch_size=8):
                training.optimizer.zero_grad()
                model(x).pow(2).mean().backward()
                training.optimizer.step()
            training.save(epoch + 1)

    assert find_resumed("SS801", train_two_phases) == []


@pytest.mark.parametrize(("saves", "loads", "first"), [(0, 0, 5), (1, 1, 7)])
def test_epoch_that_is_repeated_or_skipped_is_reported(tmp_path, saves, loads, first):
    (found,) = find_resumed("SS805", resume_from(tmp_path, 5, saves=saves, loads=loads))
    assert (found["loaded"], found["saved"]) == (5, first)


@pytest.mark.parametrize(("saves", "loads"), [(1, 0), (0, 1)])
def test_epochs_that_continue_are_not_reported(tmp_path, saves, loads):
    assert find_resumed("SS805", resume_from(tmp_path, 5, saves=saves, loads=loads)) == []


@pytest.mark.parametrize("options", [{"inside": True}, {"every": 2}, {"extra": {"batch": 0}}])
def test_checkpoint_that_may_be_from_within_an_epoch_is_not_reported(tmp_path, options):
    assert find_resumed("SS805", resume_from(tmp_path, 5, saves=0, **options)) == []


def test_epoch_that_is_repeated_in_the_same_process_is_reported(tmp_path):
    training = Resumed(tmp_path, saves=0)

    def start_twice():
        training.fit(2)
        training.fit(4)

    (found,) = find_resumed("SS805", start_twice)
    assert (found["loaded"], found["saved"]) == (1, 1)


def test_training_that_begins_again_in_the_same_process_is_not_reported(tmp_path):
    training = Resumed(tmp_path, saves=0, parts=["model"])

    def train_twice():
        training.fit(3)
        training.fit(3, start=0)

    for code in ("SS801", "SS805"):
        assert find_resumed(code, train_twice) == []


def test_optimizer_of_a_checkpoint_of_other_steps_may_be_new(tmp_path):
    """Its numbers do not continue those that were loaded."""
    training = Resumed(tmp_path, parts=["model"])
    training.leave(5)
    assert find_resumed("SS801", lambda: training.fit(40, start=30)) == []


def test_epoch_of_a_file_of_another_kind_is_not_compared(tmp_path):
    """A pretrained model may have been saved by a script that counts in another way."""
    training = Resumed(tmp_path, saves=0)
    training.leave(5)
    saved = torch.load(tmp_path / "last.pt", weights_only=True)
    torch.save({**saved, "vocabulary": 7}, tmp_path / "last.pt")
    assert find_resumed("SS805", lambda: training.fit(9)) == []


def test_scaler_with_a_scale_of_its_own_is_not_reported(tmp_path):
    """It may start at the scale that the checkpoint had."""
    training = Resumed(tmp_path)
    training.leave(5)

    def fit(scale):
        scaler = torch.amp.GradScaler("cpu", init_scale=scale)
        saved = torch.load(tmp_path / "last.pt", weights_only=True)
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.Adam(model.parameters())
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        training.model, training.optimizer = model, optimizer
        for epoch in range(saved["epoch"], saved["epoch"] + 3):
            for x in DataLoader(torch.ones(24, 4), batch_size=8):
                optimizer.zero_grad()
                scaler.scale(model(x).pow(2).mean()).backward()
                scaler.step(optimizer)
                scaler.update()
            training.save(epoch + 1)

    assert find_resumed("SS801", lambda: fit(1024.0)) == []
    training.leave(5)
    assert len(find_resumed("SS801", lambda: fit(65536.0))) == 1


@pytest.mark.parametrize("name", ["scaler", "loss_scale"])
def test_scaler_that_may_start_at_a_saved_scale_is_not_reported(tmp_path, name):
    training = Resumed(tmp_path, extra={name: 65536.0})
    training.leave(5)

    def fit():
        saved = torch.load(tmp_path / "last.pt", weights_only=True)
        scaler = torch.amp.GradScaler("cpu", init_scale=saved[name])
        training.model = torch.nn.Linear(4, 1)
        training.optimizer = torch.optim.Adam(training.model.parameters())
        training.model.load_state_dict(saved["model"])
        training.optimizer.load_state_dict(saved["optimizer"])
        for epoch in range(saved["epoch"], saved["epoch"] + 3):
            for x in DataLoader(torch.ones(24, 4), batch_size=8):
                training.optimizer.zero_grad()
                scaler.scale(training.model(x).pow(2).mean()).backward()
                scaler.step(training.optimizer)
                scaler.update()
            training.save(epoch + 1)

    assert len(find_resumed("SS801", fit)) == (name == "scaler")
