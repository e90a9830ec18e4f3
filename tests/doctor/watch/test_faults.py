"""An error of watch itself never ends a script: it runs on unwatched, and watch says so once."""

import json
import runpy
import signal
import sys
from contextlib import contextmanager, suppress

import pytest
import torch
from torch import nn

from surestep.cli import watch as command
from surestep.cli import watched as watched_script
from surestep.doctor import private
from surestep.doctor.rule import load_rules
from surestep.doctor.watch import (
    events,
    forwards,
    hooks,
    listeners,
    processes,
    watch,
    wrap,
)
from surestep.doctor.watch.report import Report, merge_reports
from surestep.doctor.watch.watch import WatchSession
from tests.forked import fork

SCRIPT = """
import sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.randn(24, 4), torch.randn(24, 1))
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
for _ in range(2):
    for x, y in DataLoader(data, batch_size=4):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        model.state_dict()
    schedule.step()
print([parameter.tolist() for parameter in model.parameters()], torch.rand(1).item())
"""


class Fault(Exception):
    """An error inside of watch."""


def fail(*_, **__):
    raise Fault("no\nmore")


def fail_late(original):
    """Return a function that fails from its 20th call on."""
    calls = []

    def function(*args, **options):
        calls.append(1)
        return original(*args, **options) if len(calls) < 20 else fail()

    return function


def fail_for(method):
    """Return `Listeners.call` that fails for a method of the rules, outside of them."""
    original = listeners.Listeners.call

    def call(self, name, *args):
        return fail() if name == method and self.run.step else original(self, name, *args)

    return call


@contextmanager
def fail_at_exit(*args):
    """Restore a function, and fail then."""
    with wrap.replaced(*args):
        yield
    fail()


CALL = (listeners.Listeners, "call")
# What fails, and at which step the watching ends then; None if no rule decides it.
PLACES = {
    "traced": (wrap, "is_traced", fail_late(wrap.is_traced), None),
    "wrapper": (*CALL, fail_for("mse_loss"), 1),
    "before": (*CALL, fail_for("on_schedule_step"), 6),
    "after": (*CALL, fail_for("after_state"), 1),
    "deaf": (listeners.Listeners, "hear_function", fail, 0),
    "backward": (*CALL, fail_for("on_backward"), 1),
    "after_backward": (*CALL, fail_for("after_backward"), 1),
    "clip": (*CALL, fail_for("on_clip"), 1),
    "next": (*CALL, fail_for("on_batch"), 1),
    "last": (*CALL, fail_for("after_loader"), 6),
    "forward": (*CALL, fail_for("on_forward"), 1),
    "after_forward": (forwards, "_hide_sparse", fail_late(forwards._hide_sparse), None),
    "step": (*CALL, fail_for("on_step"), 1),
    "after_step": (*CALL, fail_for("after_step"), 1),
    "modes": (private, "DisableTorchFunction", fail, 0),
    "setup": (private, "list_device_constructors", fail, 0),
    "wrappers": (events.Events, "_wrap_state", fail, 0),
    "monitor": (hooks, "Events", fail, 0),
    "folder": (watched_script, "make_temp_folder", fail, 0),
    "processes": (processes, "watched_processes", fail, 0),
    "end": (events.Events, "end_loaders", fail, 12),
    "restore": (hooks, "replaced", fail_at_exit, 12),
    "report": (watch, "drop_suppressed", fail, 12),
    "merge": (watched_script.WatchedScript, "_read_started", fail, 12),
    "show": (command, "_print_findings", fail, 12),
}


AFTER = ("end", "restore", "report", "merge", "show")


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    path = tmp_path_factory.mktemp("alone") / "script.py"
    path.write_text(SCRIPT)

    def run():
        runpy.run_path(str(path), run_name="__main__")

    return fork(path.parent, (), run).stdout


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Return a function that runs the script under watch: its status, output and JSON."""

    def run_script(*options, end=""):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
        (tmp_path / "script.py").write_text(SCRIPT + end)
        status = command.run(["--json", "found.json", *options, "script.py"])
        printed = capsys.readouterr()
        return status, printed.out, printed.err, json.loads((tmp_path / "found.json").read_text())

    return run_script


def test_script_is_watched_to_its_end_without_a_fault(run, alone):
    status, out, err, found = run("--fail-on", "error")
    assert (status, out, found["watching"]) == (0, alone, "complete"), err
    assert "stopped" not in err


@pytest.mark.parametrize("place", PLACES)
def test_script_runs_on_after_a_fault(monkeypatch, run, alone, place):
    owner, name, fault, step = PLACES[place]
    monkeypatch.setattr(owner, name, fault)
    original = nn.functional.mse_loss
    status, out, err, found = run("--fail-on", "error")
    assert (status, out) == (1, alone), err
    at = int(found["watching"].removeprefix("stopped at step "))
    assert step in (None, at)
    first = next(line for line in err.splitlines() if "surestep watch stopped" in line)
    assert first.startswith(f"surestep watch stopped watching at step {at}: Fault: no (")
    assert first.endswith(").") if place in AFTER else first.endswith("). The script runs on.")
    assert err.count("surestep watch stopped") == 1
    assert "nothing found in" not in err
    assert nn.functional.mse_loss is original


class NoText(Exception):
    """An error whose text cannot be read."""

    def __str__(self):
        raise ValueError("no text")


def fail_without_text(*_, **__):
    raise NoText


@pytest.fixture
def restored_hooks():
    """Remove the hooks of all modules that a test leaves."""
    found = {name: value for name, value in vars(nn.modules.module).items() if "hooks" in name}
    found = {name: value.copy() for name, value in found.items() if isinstance(value, dict)}
    yield
    for name, value in found.items():
        hooks = getattr(nn.modules.module, name)
        hooks.clear()
        hooks.update(value)


@pytest.mark.usefixtures("restored_hooks")
def test_fault_in_stopping_the_watching_does_not_end_the_script(monkeypatch, run, alone):
    monkeypatch.setattr(listeners.Listeners, "stop", fail)
    monkeypatch.setattr(*CALL, fail_for("on_step"))
    status, out, err, found = run("--fail-on", "error")
    assert (status, out, found["watching"]) == (1, alone, "stopped at step 1"), err
    assert err.count("surestep watch stopped watching at step 1: Fault: no (") == 1


def test_fault_without_a_text_is_reported(monkeypatch, run, alone):
    monkeypatch.setattr(private, "DisableTorchFunction", fail_without_text)
    status, out, err, found = run("--fail-on", "error")
    assert (status, out, found["watching"]) == (1, alone, "stopped at step 0"), err
    assert "stopped watching at step 0: NoText (doctor/watch/listeners.py, line " in err


def test_rule_whose_error_has_no_text_is_disabled(monkeypatch, run, alone):
    rule = next(rule for rule in load_rules() if rule.code == "SS101")
    monkeypatch.setattr(rule.watcher, "on_step", fail_without_text)
    status, out, err, found = run("--fail-on", "error")
    assert (status, out, found["watching"]) == (1, alone, "complete"), err
    assert found["disabled"] == {"SS101": "NoText"}
    assert "SS101 is disabled by an error in it: NoText\n" in err


def test_line_of_the_fault_is_in_the_message(monkeypatch, run):
    monkeypatch.setattr(wrap.private, "is_fx_tracing", None)
    _, _, err, _ = run()
    assert "TypeError: 'NoneType' object is not callable (doctor/watch/wrap.py, line " in err


@pytest.mark.parametrize(
    ("end", "options", "status"),
    [
        ("", [], 0),
        ("", ["--fail-on", "warning"], 1),
        ("sys.exit(7)", ["--fail-on", "error"], 7),
        ("raise ValueError('mine')", [], 1),
        ("raise KeyboardInterrupt", [], 130),
    ],
)
def test_exit_status_is_that_of_the_script(monkeypatch, run, alone, end, options, status):
    monkeypatch.setattr(*CALL, fail_for("on_step"))
    found, out, err, _ = run("--select", "SS101", *options, end=end)
    assert (found, out) == (status, alone)
    assert ("ValueError: mine" in err) == ("mine" in end)
    assert "surestep watch: nothing found until step 1, when watching stopped.\n" in err


def test_script_runs_if_watch_cannot_be_imported(monkeypatch, run, alone):
    monkeypatch.setitem(sys.modules, "surestep.doctor.watch.watch", None)
    status, out, err, found = run("--fail-on", "error")
    assert (status, out, found["watching"]) == (1, alone, "stopped at step 0")
    assert "stopped before the first step, so nothing was watched." in err


def test_ctrl_c_that_an_import_loses_ends_watch_before_the_script(monkeypatch, run, capsys):
    class LosesSignals:
        def find_spec(self, name, *_):
            if name == processes.__name__:
                with suppress(KeyboardInterrupt):
                    signal.raise_signal(signal.SIGINT)

    monkeypatch.delitem(sys.modules, processes.__name__)
    monkeypatch.delattr(sys.modules["surestep.doctor.watch"], "processes")
    monkeypatch.setattr(sys, "meta_path", [LosesSignals(), *sys.meta_path])
    with pytest.raises(KeyboardInterrupt):
        run()
    assert capsys.readouterr().out == ""


def test_rule_that_fails_does_not_stop_the_watching(monkeypatch, run, alone):
    rule = next(rule for rule in load_rules() if rule.code == "SS101")
    monkeypatch.setattr(rule.watcher, "on_step", fail)
    status, out, err, found = run("--fail-on", "error")
    assert (status, out, found["watching"]) == (1, alone, "complete")
    assert found["disabled"] == {"SS101": "Fault: no"}
    assert "SS101 is disabled by an error in it: Fault: no\n" in err
    assert run("--fail-on", "never")[0] == 0


def test_rule_that_fails_for_several_ranks_together_is_reported(monkeypatch):
    rule = next(rule for rule in load_rules() if rule.code == "SS904")
    monkeypatch.setattr(rule.watcher, "observe_ranks", fail)
    reports = {rank: Report([], 9, {}, facts={"SS904": [1]}) for rank in range(2)}
    assert WatchSession(load_rules()).merge(reports).failures == {"SS904": "Fault: no"}


STRANGE = """
class Strange:
    def __getattr__(self, name):
        raise ValueError(name)

class Output(Strange):
    def __init__(self, value):
        self.value = value

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def forward(self, x, *rest):
        return Output(self.layer(x))

model = Model()
far = nn.Linear(4, 2, device="meta")
optimizer = torch.optim.SGD([*model.parameters(), *far.parameters()], lr=0.01)
for _ in range(2):
    for x, y in DataLoader(data, batch_size=4, shuffle=True):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x, Strange()).value, y).backward()
        for parameter in far.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
"""


def test_attributes_that_raise_errors_and_parameters_without_values_disable_no_rule(run):
    _, _, err, found = run(end=STRANGE)
    assert found["disabled"] == {}, err


def test_started_process_runs_on_and_reports_where_watching_stopped(monkeypatch, tmp_path):
    monkeypatch.setattr(*CALL, fail_for("on_step"))
    namespace, codes = {}, ("SS101", "SS904")
    started = processes.WatchedFunction(lambda _: exec(SCRIPT, namespace), codes, None, tmp_path)
    started(1)
    found = processes.read_reports(tmp_path)[1]
    assert (found.stopped_at, found.facts) == (1, {})
    assert len(namespace["model"]) == 3


def test_first_stop_of_several_ranks_is_reported():
    reports = {rank: Report([], 9, {}, stopped_at=at) for rank, at in enumerate((None, 7, 4))}
    assert merge_reports(reports).stopped_at == 4
    assert merge_reports({0: reports[0]}).stopped_at is None
    assert Report.from_json(json.loads(json.dumps(reports[1].to_json()))) == reports[1]


def test_wrong_call_that_the_script_handles_does_not_stop_the_watching():
    def call_wrongly():
        for call in (torch.save, nn.Linear(1, 1).load_state_dict, torch.autograd.backward):
            with pytest.raises(TypeError):
                call()

    watching = WatchSession(load_rules())
    watching.run(call_wrongly)
    assert watching.report().stopped_at is None
