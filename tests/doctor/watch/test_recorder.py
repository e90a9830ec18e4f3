"""What happens to the gradients between two steps is recorded in its order."""

import torch
from torch import nn

from surestep.doctor.runtime.windows import WindowWatcher
from surestep.doctor.watch.hooks import Monitor


class Kinds(WindowWatcher):
    """Remembers the events of each whole window."""

    def __init__(self):
        super().__init__()
        self.windows = []

    def judge(self, run, optimizer, window, tally):
        self.windows.append([event.kind for event in window.events])
        self.lines = [event.location.line for event in window.events]


def record(train):
    kinds = Kinds()
    monitor = Monitor({"SS000": kinds})
    with monitor.installed():
        train()
    assert monitor.listeners.failures == {}
    return kinds


def make(layers=1):
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(layers)))
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def test_usual_step_is_recorded_in_its_order():
    def train():
        model, optimizer = make()
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.ones(2, 4)).mean().backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()

    found = record(train)
    assert found.windows == [["zero", "backward", "clip"]] * 2
    assert all(line > 0 for line in found.lines)


def test_events_of_a_window_that_never_ends_are_bounded():
    def train():
        model, optimizer = make()
        for _ in range(2):
            for _ in range(200):
                model(torch.ones(2, 4)).mean().backward()
            optimizer.step()

    assert [len(window) for window in record(train).windows] == [128, 128]


def test_optimizers_whose_gradients_are_recorded_are_bounded():
    monitor, made = Monitor({"SS000": Kinds()}), []
    with monitor.installed():
        made += [make()[1] for _ in range(30)]
        assert len(monitor.run.histories) == 16
    del made


def test_what_the_script_writes_itself_is_noticed():
    def train():
        model, optimizer = make()
        model(torch.ones(2, 4)).mean().backward()
        optimizer.zero_grad()
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        model(torch.ones(2, 4)).mean().backward()
        for parameter in model.parameters():
            parameter.grad /= 4
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    assert record(train).windows == [["backward", "zero", "write"], ["backward", "write", "clip"]]


def test_unscaling_and_steps_of_a_scaler_are_no_writes_of_the_script():
    def train():
        model, optimizer = make()
        scaler = torch.amp.GradScaler("cpu")
        for _ in range(2):
            scaler.scale(model(torch.ones(2, 4)).mean()).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()

    usual = ["backward", "unscale", "clip"]
    assert record(train).windows == [usual, ["zero", *usual]]


def test_backward_pass_of_another_model_and_a_closure_are_distinguished():
    def train():
        model, optimizer = make()
        other, _ = make()
        model(torch.ones(2, 4)).mean().backward()
        other(torch.ones(2, 4)).mean().backward()
        optimizer.step()

        def closure():
            optimizer.zero_grad()
            loss = model(torch.ones(2, 4)).mean()
            loss.backward()
            return loss

        optimizer.step(closure)

    assert record(train).windows == [["backward", "other"]]


def test_window_after_the_first_steps_counts_only_if_all_of_it_is_sampled():
    def train():
        model, optimizer = make()
        for _ in range(60):
            model(torch.ones(2, 4)).mean().backward()
            optimizer.step()

    assert record(train).windows == [["backward"]] * 21, "20 steps, and the 51st"
