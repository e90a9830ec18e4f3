import gc
import os
import signal
import time

import pytest
import torch
from torch.utils.data import Dataset

import surestep
from surestep.base.errors import Preempted
from surestep.engine.data import workers
from surestep.record.run import Run
from surestep.record.run_writer import RunWriter
from tests import tiny

NAMES = {
    signal.SIGINT: "Ctrl-C",
    **{each: each.name for each in (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)},
}
RAISED = dict.fromkeys(NAMES, Preempted) | {signal.SIGINT: KeyboardInterrupt}

SEEN = {"logging": {"progress": "plain"}}


def at(moment, *numbers, step=2):
    """Return a callback that raises signals in one hook."""

    def raise_them(self, state, *_):
        if state.progress.step == step:
            for number in numbers:
                signal.raise_signal(number)

    return type("At", (surestep.Callback,), {moment: raise_them})()


def fit(folder, *callbacks, parts=None, allow=(), **said):
    task = tiny.task(val=tiny.data(8, seed=1), **(parts or {}))
    config = tiny.config(**said)
    return surestep.Trainer(task, config, run=folder, callbacks=callbacks, allow=allow).fit()


def finish_and_compare(folder, whole, **said):
    """Resume to the end; the result equals that of an uninterrupted run."""
    run, other = fit(folder, **said), fit(whole, **said)
    assert run.status["status"] == "finished"
    assert run.last.metrics == other.last.metrics
    assert run.status["step"] == other.status["step"]
    measured = [
        sorted((e["step"], str(e["metrics"])) for e in r.events() if e["event"] == "evaluation")
        for r in (run, other)
    ]
    assert measured[0] == measured[1]


@pytest.mark.parametrize("number", NAMES)
def test_signal_stops_after_the_step_and_the_run_can_be_resumed(tmp_path, number):
    before = [signal.getsignal(each) for each in NAMES]
    with pytest.raises(RAISED[number]):
        fit(tmp_path / "r", at("on_backward", number, step=1))
    assert [signal.getsignal(each) for each in NAMES] == before
    status = Run(tmp_path / "r").status
    assert (status["status"], status["reason"], status["resumable"]) == (
        *("stopped", NAMES[number]),
        True,
    )
    assert Run(tmp_path / "r").last.step == status["step"] == 2
    finish_and_compare(tmp_path / "r", tmp_path / "whole")


@pytest.mark.parametrize("moment", ["on_start", "on_step", "on_evaluate"])
def test_signal_in_any_hook_loses_no_step(tmp_path, moment):
    with pytest.raises(Preempted):
        fit(tmp_path / "r", at(moment, signal.SIGTERM, step=0 if moment == "on_start" else 3))
    finish_and_compare(tmp_path / "r", tmp_path / "whole")


class StopsItsMeasuring(torch.nn.Linear):
    """Receives a signal in the first batch of the first evaluation."""

    steps = measured = 0

    def forward(self, x):
        if self.training:
            type(self).steps += 1
        elif self.steps >= 3:
            if not self.measured:
                signal.raise_signal(signal.SIGTERM)
            type(self).measured += 1
        return super().forward(x)


def test_interrupted_evaluation_runs_first_after_resume(tmp_path):
    StopsItsMeasuring.steps = StopsItsMeasuring.measured = 0
    said = {"validation": {"batch_size": 1}, "early_stop": {"patience": 1}}

    def parts(kind):
        torch.manual_seed(3)
        return {"model": kind(4, 3)}

    with pytest.raises(Preempted):
        fit(tmp_path / "r", parts=parts(StopsItsMeasuring), **said)
    assert StopsItsMeasuring.measured == 1
    assert Run(tmp_path / "r").last.step == 3
    said["allow"] = ("modules",)
    runs = [fit(tmp_path / name, parts=parts(torch.nn.Linear), **said) for name in ("r", "whole")]
    assert runs[0].last.metrics == runs[1].last.metrics
    assert [r.status["reason"] for r in runs] == [runs[1].status["reason"]] * 2
    steps = [[e["step"] for e in r.events() if e["event"] == "evaluation"] for r in runs]
    assert steps[0] == steps[1]


def test_more_signals_are_ignored_and_ctrl_c_stops_immediately(tmp_path, capsys):
    several = (signal.SIGUSR1, signal.SIGTERM, signal.SIGTERM)
    with pytest.raises(Preempted, match="SIGUSR1"):
        fit(tmp_path / "r", at("on_step", *several))
    assert Run(tmp_path / "r").last.step == 2
    with pytest.raises(KeyboardInterrupt):
        fit(tmp_path / "s", at("on_step", signal.SIGTERM, signal.SIGINT), **SEEN)
    status = Run(tmp_path / "s").status
    assert (status["status"], status["resumable"]) == ("stopped", False)  # nothing is saved
    assert Run(tmp_path / "s").find_checkpoint("last") is None
    assert "Stopped at once after step 2; no checkpoint was written yet." in capsys.readouterr().err


def test_sigterm_under_torchrun_is_reported_with_its_cause(tmp_path, monkeypatch, capsys):
    said = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "a", "MASTER_PORT": "1"}
    for name, value in {**said, "TORCHELASTIC_RUN_ID": "x"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(Preempted):
        fit(tmp_path, at("on_step", signal.SIGTERM), **SEEN)
    assert "SIGTERM (torchrun sends it to all ranks if a process has died): stopping" in (
        capsys.readouterr().err
    )


def test_second_ctrl_c_names_the_saved_checkpoint(tmp_path, capsys):
    with pytest.raises(KeyboardInterrupt):
        fit(tmp_path, at("on_step", signal.SIGINT, signal.SIGINT, step=5), **SEEN)
    path = Run(tmp_path).last.path
    assert f"Stopped at once after step 5; the newest checkpoint is {path}." in (
        capsys.readouterr().err
    )


def test_ctrl_c_again_after_the_last_save_names_that_save(tmp_path, monkeypatch, capsys):
    own = RunWriter.event

    def impatient(self, kind, **fields):
        if kind == "checkpoint" and fields["step"] == 5:
            signal.raise_signal(signal.SIGINT)
        own(self, kind, **fields)

    monkeypatch.setattr(RunWriter, "event", impatient)
    with pytest.raises(KeyboardInterrupt):
        fit(tmp_path, at("on_step", signal.SIGINT, step=5), **SEEN)
    newest = tmp_path / "checkpoints" / "step-00000005"
    assert f"after step 5; the newest checkpoint is {newest}." in capsys.readouterr().err
    assert Run(tmp_path).status["reason"] == "Ctrl-C, then Ctrl-C: this step was saved"


def test_signal_after_the_last_step_leaves_a_finished_run(tmp_path):
    class Late(surestep.Callback):
        def on_evaluate(self, state, metrics):
            if state.progress.step == 6:
                signal.raise_signal(signal.SIGTERM)

    with pytest.raises(Preempted):
        fit(tmp_path, Late())
    assert fit(tmp_path).status["status"] == "finished"


def test_custom_signal_handler_is_preserved(tmp_path):
    came = []
    before = signal.signal(signal.SIGUSR1, lambda *_: came.append(1))
    try:
        run = fit(tmp_path, at("on_step", signal.SIGUSR1))
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert (run.status["status"], came) == ("finished", [1])


@pytest.mark.parametrize("number", NAMES)
def test_ignored_signal_stays_ignored(tmp_path, number):
    before = signal.signal(number, signal.SIG_IGN)
    try:
        with open_session(tmp_path / "r"):
            signal.raise_signal(number)
        run = fit(tmp_path / "r", at("on_step", number))
        assert signal.getsignal(number) is signal.SIG_IGN
    finally:
        signal.signal(number, before)
    assert run.status["status"] == "finished"


class Signalled(Dataset):
    """Each worker receives the signals sent to the full job."""

    def __len__(self):
        return 16

    def __getitem__(self, index):
        for number in NAMES:
            os.kill(os.getpid(), number)
        return torch.zeros(4), 0


def test_data_workers_leave_signals_to_the_main_process(tmp_path):
    run = tiny.fit(tmp_path, {"train": Signalled()}, data={"num_workers": 2})
    assert run.status["status"] == "finished"


def test_hanging_worker_is_terminated_by_sigterm(monkeypatch):
    monkeypatch.setattr(workers, "GRACE_S", 0.01)
    pid = os.fork()
    if pid == 0:
        workers.begin_worker()
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)
        os._exit(9)
    assert os.waitpid(pid, 0)[1] == 0


def open_session(folder, *callbacks):
    return surestep.prepare(tiny.task(), tiny.config(), run=folder, callbacks=callbacks)


@pytest.mark.parametrize("number", RAISED)
def test_signal_before_the_first_step_of_your_own_loop_is_recorded(tmp_path, number):
    before = [signal.getsignal(each) for each in NAMES]
    with pytest.raises(RAISED[number]) as raised, open_session(tmp_path):
        signal.raise_signal(number)
    assert [signal.getsignal(each) for each in NAMES] == before
    status = Run(tmp_path).status
    assert (status["status"], status["resumable"]) == ("stopped", False)
    if number != signal.SIGINT:
        assert status["reason"] == number.name
        assert f"Stopped by {number.name} before the first step; " in str(raised.value)
        assert f"Run the script again with run='{tmp_path}' to resume." in str(raised.value)


@pytest.mark.parametrize("own", [False, True])
def test_signal_in_your_own_loop_is_raised_after_the_step(tmp_path, own):
    taken = []

    def train():
        with open_session(tmp_path, at("on_backward", signal.SIGTERM, step=2)) as session:
            if own:
                for _ in range(9):
                    session.train_step([tiny.data(4)])
            for _ in session.steps():
                taken.append(session.state.progress.step)

    with pytest.raises(Preempted, match="Stopped by SIGTERM after step 3; "):
        train()
    assert taken == ([] if own else [1, 2])
    assert Run(tmp_path).status["reason"] == "SIGTERM"
    assert finished_equals(tmp_path)


def finished_equals(folder):
    with open_session(folder) as session:
        return len(list(session.steps())) == 6


def test_signal_after_your_own_loop_has_finished_is_reported_so(tmp_path):
    def train():
        with open_session(tmp_path) as session:
            list(session.steps())
            session.end("finished")
            signal.raise_signal(signal.SIGHUP)

    with pytest.raises(Preempted, match="was finished when SIGHUP arrived"):
        train()
    assert Run(tmp_path).status["status"] == "finished"


def test_signal_that_was_caught_in_prepare_stops_it(tmp_path):
    class Catching(torch.nn.Linear):
        def forward(self, x):
            try:
                signal.raise_signal(signal.SIGTERM)
            except Exception:
                raise ValueError("a library has its own error") from None

    before = [signal.getsignal(each) for each in NAMES]
    task = tiny.task(model=Catching(4, 3))
    with pytest.raises(Preempted, match="Stopped by SIGTERM before the first step"):
        surestep.prepare(task, tiny.config(), run=tmp_path / "r")
    assert [signal.getsignal(each) for each in NAMES] == before


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_session_that_nothing_refers_to_leaves_signals_alone(tmp_path):
    before = [signal.getsignal(each) for each in NAMES]
    session = open_session(tmp_path)
    assert signal.getsignal(signal.SIGTERM) is not before[1]
    del session
    gc.collect()
    assert [signal.getsignal(each) for each in NAMES] == before
