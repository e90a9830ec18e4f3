"""The hooks change nothing: not the result, not torch, and not even if a rule fails."""

import contextlib
import random

import numpy as np
import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.optim import lr_scheduler
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

from surestep.doctor.rule import load_rules
from surestep.doctor.rules import ss212_dead_activations
from surestep.doctor.watch.events import Events
from surestep.doctor.watch.forwards import Forwards
from surestep.doctor.watch.functions import FUNCTIONS
from surestep.doctor.watch.hooks import Monitor
from surestep.doctor.watch.listeners import Listeners
from surestep.doctor.watch.watch import WatchSession
from surestep.doctor.watcher import Watcher


def train(steps=30):
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(steps):
        x = torch.randn(8, 4)
        loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    drawn = torch.tensor([*torch.rand(3), np.random.rand(), random.random()])
    return [parameter.detach().clone() for parameter in model.parameters()], drawn


def functions_of_torch():
    """Return everything that is wrapped while all functions are heard."""
    everything = Everything()
    everything.FUNCTIONS = tuple(FUNCTIONS)
    listeners = Listeners({"SS000": everything}, {})
    wrapped = Events(listeners, Forwards(listeners)).list_wrappers()
    return [(owner, name, vars(owner).get(name)) for owner, name, _ in wrapped]


class Everything(Watcher):
    """Counts the calls of each method."""

    FUNCTIONS = ("mse_loss", "softmax")

    def __init__(self):
        self.calls = {}

    def count(self, name, *_):
        self.calls[name] = self.calls.get(name, 0) + 1

    def on_call(self, run, call):
        self.count(call.name)


for method in vars(Watcher):
    if method.startswith(("on_", "after_")) and method != "on_call":
        setattr(Everything, method, lambda self, run, *_, method=method: self.count(method))


def count_calls(function, **options):
    counts = Everything()
    monitor = Monitor({"SS000": counts}, **options)
    with monitor.installed():
        function()
    assert monitor.listeners.failures == {}
    assert monitor.listeners.guard.stopped_at is None
    return counts.calls


class Failing(Watcher):
    """Raises an error at the third step."""

    def on_step(self, run, optimizer):
        if run.step == 2:
            raise RuntimeError("no")


def test_watched_training_is_bitwise_the_same_and_torch_is_restored():
    expected, drawn = train()
    before, results = functions_of_torch(), []
    watch = WatchSession(load_rules())
    watch.run(lambda: results.append(train()))
    ((found, drawn_when_watched),) = results
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))
    assert torch.equal(drawn, drawn_when_watched)
    assert functions_of_torch() == before
    assert watch.report().findings == []


def test_rules_are_called_for_each_part_of_a_step():
    calls = count_calls(lambda: train(30))
    once_per_step = (
        *("on_zero_grad", "on_backward", "after_backward", "on_clip", "on_step", "after_step"),
        "mse_loss",
    )
    assert {name: calls[name] for name in once_per_step} == dict.fromkeys(once_per_step, 30)
    assert calls["on_forward"] == calls["after_forward"] == 20 * 4, "20 steps, four modules each"
    assert calls["on_model"] == calls["on_optimizer"] == 1


def test_all_losses_of_one_backward_pass_are_given():
    given = []

    class Losses(Watcher):
        def on_backward(self, run, losses, keeps_graph):
            given.append(len(losses))

    with Monitor({"SS000": Losses()}).installed():
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        outputs = [model(torch.ones(2, 4)).mean() for _ in range(3)]
        torch.autograd.backward(outputs)
        model(torch.ones(2, 4)).mean().backward()
        optimizer.step()
    assert given == [3, 1]


def test_only_the_first_steps_are_watched_if_that_is_asked():
    calls = count_calls(lambda: train(30), most_steps=5)
    assert calls["on_step"] == calls["on_backward"] == 5


def test_first_steps_of_each_optimizer_are_sampled():
    sampled = []

    class Steps(Watcher):
        def on_step(self, run, optimizer):
            sampled.append((run.is_sampled, run.sampled_since))

    with Monitor({"SS000": Steps()}).installed():
        train(30)
        train(30)
    assert [step for step, (is_sampled, _) in enumerate(sampled) if is_sampled] == [
        *range(20),
        *range(30, 50),
        50,
    ]
    assert {since for is_sampled, since in sampled[30:51] if is_sampled} == {31}


def test_steps_of_a_long_run_are_sampled_less_often():
    sampled = []

    class Steps(Watcher):
        SAMPLED = ("on_step",)

        def on_step(self, run, optimizer):
            sampled.append(run.step)

    with Monitor({"SS000": Steps()}).installed():
        train(1300)
    assert sampled == [*range(20), *range(50, 1000, 50), 1000, 1200]


def test_methods_for_sampled_steps_are_called_in_no_other_step():
    heard = {name: [] for name in ("on_step", "on_backward", "on_call")}

    class Some(Watcher):
        FUNCTIONS = ("mse_loss",)
        SAMPLED = ("on_backward", "on_call")

        def on_step(self, run, optimizer):
            heard["on_step"].append(run.step)

        def on_backward(self, run, losses, keeps_graph):
            heard["on_backward"].append(run.step)

        def on_call(self, run, call):
            heard["on_call"].append(run.step)

    with Monitor({"SS000": Some()}).installed():
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(25):
            nn.functional.mse_loss(model(torch.ones(2, 4)), torch.ones(2, 1)).backward()
            optimizer.step()
    assert heard["on_step"] == [*range(25)]
    assert heard["on_backward"] == heard["on_call"] == [*range(20)]


def test_optimizer_that_is_made_after_the_watched_steps_sees_no_forward_pass():
    def train_twice():
        train(5)
        train(1)
        assert not nn.modules.module._global_forward_pre_hooks

    calls = count_calls(train_twice, most_steps=5)
    assert calls["after_step"] == 5


def test_run_is_whole_if_it_was_watched_to_an_end_without_an_error():
    def is_whole(function, **options):
        monitor = Monitor({"SS000": Everything()}, **options)
        with contextlib.suppress(RuntimeError), monitor.installed():
            function()
        return monitor.run.is_whole

    def stop():
        raise RuntimeError("no memory")

    assert is_whole(train)
    assert not is_whole(train, most_steps=5)
    assert not is_whole(stop)


def test_forward_passes_are_seen_when_the_mode_changes():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))

    def evaluate_late():
        train(49)
        model.eval()
        for _ in range(9):
            model(torch.ones(1, 2))

    calls = count_calls(evaluate_late)
    assert calls["on_mode"] == 1, "not of the layers"
    assert calls["on_model"] == 2
    assert calls["on_forward"] == 20 * 4 + 5 * 3, "five passes of three modules"


def test_optimizer_is_told_when_it_is_made():
    assert count_calls(lambda: train(3))["on_new_optimizer"] == 1


def test_model_is_told_each_time_it_is_compiled():
    told = []

    class Listener(Watcher):
        def on_compile(self, run, model, options):
            told.append((model, options))

    model = nn.Linear(2, 2)
    with Monitor({"SS000": Listener()}).installed():
        torch.compile(model, backend="eager")
        torch.compile(backend="eager")(model)
        model.compile(backend="aot_eager")
    assert told[0] == (model, {"backend": "eager"})
    assert [(made is model, options["backend"]) for made, options in told] == [
        (True, "eager"),
        (True, "eager"),
        (True, "aot_eager"),
    ]


def test_call_tells_which_arguments_were_given():
    heard = []

    class Listener(Watcher):
        FUNCTIONS = ("dropout",)

        def on_call(self, run, call):
            heard.append((set(call.given), call["training"], call["p"]))

    with Monitor({"SS000": Listener()}).installed():
        nn.functional.dropout(torch.ones(2), p=0.1)
        nn.functional.dropout(torch.ones(2), 0.2, True)
    assert heard == [({"input", "p"}, True, 0.1), ({"input", "p", "training"}, True, 0.2)]


def test_loader_tells_its_batches_and_its_end():
    def read():
        loader = DataLoader(TensorDataset(torch.ones(10)), batch_size=3)
        for _ in range(2):
            for _batch in loader:
                pass
        next(iter(loader))

    calls = count_calls(read)
    assert (calls["on_loader"], calls["on_batch"], calls["after_loader"]) == (3, 9, 2)


def test_schedule_tells_its_steps_and_not_those_while_it_is_made():
    def step():
        optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)
        parts = [lr_scheduler.ConstantLR(optimizer), lr_scheduler.StepLR(optimizer, 3)]
        schedules = [
            lr_scheduler.SequentialLR(optimizer, parts, [2]),
            lr_scheduler.OneCycleLR(optimizer, 1.0, 10),
        ]
        plateau = lr_scheduler.ReduceLROnPlateau(optimizer)
        for _ in range(4):
            optimizer.step()
            plateau.step(1.0)
            for schedule in schedules:
                schedule.step()

    calls = count_calls(step)
    assert calls["on_schedule"] == 5
    assert calls["on_schedule_step"] == 3 * 4, "the parts of a sequence are not seen"


def test_states_are_told_once_for_a_whole_model(tmp_path):
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    optimizer = torch.optim.SGD(model.parameters())

    def save_and_load():
        torch.save(model.state_dict(), tmp_path / "model.pt")
        model.load_state_dict(torch.load(tmp_path / "model.pt"))
        optimizer.load_state_dict(optimizer.state_dict())

    calls = count_calls(save_and_load)
    assert {name: calls[name] for name in ("after_state", "on_load_state")} == {
        "after_state": 2,
        "on_load_state": 2,
    }
    assert calls["on_save"] == calls["after_load"] == 1


def test_scaler_tells_what_it_does_unless_it_is_disabled():
    def train_scaled(enabled):
        model = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters())
        scaler = torch.amp.GradScaler("cpu", enabled=enabled)
        scaler.scale(model(torch.ones(1, 2)).sum()).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()

    names = ("on_scale", "on_unscale", "on_scaler_step", "on_scaler_update")
    calls = count_calls(lambda: train_scaled(True))
    assert {name: calls[name] for name in names} == dict.fromkeys(names, 1)
    assert not names & count_calls(lambda: train_scaled(False)).keys()


def test_function_that_calls_another_of_its_name_is_told_once():
    x = torch.ones(2, 2)
    functions = (nn.functional.softmax, torch.softmax, torch.Tensor.softmax)
    heard = []

    class Listener(Watcher):
        FUNCTIONS = ("softmax",)

        def on_call(self, run, call):
            heard.append((call["dim"], call["input"] is x, call.result.shape))

    with Monitor({"SS000": Listener()}).installed():
        torch.softmax(x, dim=1)
        x.softmax(-1)
        nn.functional.softmax(x, 0)
    assert heard == [(1, True, (2, 2)), (-1, True, (2, 2)), (0, True, (2, 2))]
    assert functions == (nn.functional.softmax, torch.softmax, torch.Tensor.softmax)


def test_wrong_call_raises_the_error_of_torch():
    def message(function):
        with pytest.raises(TypeError) as caught:
            function()
        return str(caught.value)

    calls = (
        *(nn.utils.clip_grad_norm_, nn.Linear(1, 1).load_state_dict, torch.autograd.backward),
        *(nn.functional.mse_loss, torch.save),
    )
    expected = [message(call) for call in calls]
    with Monitor({"SS000": Everything()}).installed():
        watched = (
            *(nn.utils.clip_grad_norm_, nn.Linear(1, 1).load_state_dict, torch.autograd.backward),
            *(nn.functional.mse_loss, torch.save),
        )
        assert [message(call) for call in watched] == expected


def test_repeated_forward_passes_of_activation_checkpointing_are_marked():
    seen = []

    class Listener(Watcher):
        def on_forward(self, run, module, inputs):
            seen.append(run.in_backward)

    layer, x = nn.Linear(2, 2), torch.ones(1, 2)
    with Monitor({"SS000": Listener()}).installed():
        checkpoint(layer, x, use_reentrant=False).sum().backward()
    assert seen == [False, True]


def test_compiled_model_trains_bitwise_the_same_and_is_compiled_once():
    def train_compiled():
        torch.manual_seed(0)
        torch._dynamo.reset()
        model = nn.Sequential(nn.Linear(4, 8), nn.Softmax(1), nn.Linear(8, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        counter = CompileCounterWithBackend("aot_eager")
        compiled = torch.compile(model, backend=counter)
        for _ in range(60):
            optimizer.zero_grad()
            nn.functional.mse_loss(compiled(torch.randn(8, 4)), torch.zeros(8, 1)).backward()
            optimizer.step()
        return [parameter.detach().clone() for parameter in model.parameters()], counter

    expected, counted = train_compiled()
    results = []
    calls = count_calls(lambda: results.append(train_compiled()))
    ((found, counted_when_watched),) = results
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))
    assert (counted_when_watched.frame_count, counted_when_watched.op_count) == (
        counted.frame_count,
        counted.op_count,
    )
    assert calls["mse_loss"] == 60


def test_rule_that_fails_is_turned_off_and_the_others_continue():
    counts = Everything()
    monitor = Monitor({"SS000": counts, "SS999": Failing()})
    expected, _ = train()
    with monitor.installed():
        found, _ = train()
    assert monitor.listeners.failures == {"SS999": "RuntimeError: no"}
    assert counts.calls["on_step"] == 30
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))


def test_rule_that_fails_at_the_end_does_not_hide_what_the_others_found():
    rules = [rule for rule in load_rules() if rule.code in ("SS101", "SS103")]
    watch = WatchSession(rules)

    def fail(run):
        raise RuntimeError("no")

    watch._watchers["SS103"].observe = fail

    def grow():
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(8):
            model(torch.ones(2, 4)).mean().backward()
            optimizer.step()

    watch.run(grow)
    report = watch.report()
    assert [finding.rule for finding in report.findings] == ["SS101"]
    assert report.failures == {"SS103": "RuntimeError: no"}


def test_steps_after_the_watched_ones_are_not_counted():
    watch = WatchSession(load_rules(), 5)
    watch.run(train)
    assert watch.report().steps == 5


def test_torch_is_restored_after_an_error_of_the_script():
    before = functions_of_torch()
    with pytest.raises(ValueError, match="bad"):
        WatchSession(load_rules()).run(lambda: int("bad"))
    assert functions_of_torch() == before


def test_rule_that_fails_in_a_later_step_is_called_no_more():
    calls = []

    class Fails(Watcher):
        def on_step(self, run, optimizer):
            calls.append(run.step)
            if run.step == 30:
                raise ValueError("a bug")

    monitor = Monitor({"SS000": Fails()})
    with monitor.installed():
        train(60)
    assert calls == [*range(31)]
    assert monitor.listeners.failures == {"SS000": "ValueError: a bug"}


def test_output_that_the_script_clears_is_not_taken_for_a_dead_layer():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.activation = nn.Linear(4, 16), nn.ReLU()

        def forward(self, x):
            hidden = self.first(x)
            return self.activation(hidden.zero_() if self.training else hidden) + hidden.mean()

    watcher = ss212_dead_activations.DeadActivationsWatcher()
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    monitor = Monitor({"SS212": watcher})
    with monitor.installed():
        for _ in range(20):
            model(torch.rand(8, 4)).mean().backward()
            optimizer.step()
    assert list(watcher.observe(monitor.run)) == []
