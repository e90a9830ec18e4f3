import os
import shutil
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

import surestep
from surestep.base.errors import CheckpointError, StatusWriteError
from surestep.record.checkpoint import writer as saver
from surestep.record.checkpoint.discovery import list_checkpoints
from surestep.record.checkpoint.reader import read_info
from surestep.record.run import Run
from tests import tiny

SAVES = {"checkpoint": {"every": "1 step", "keep_last": 9}, "logging": {"every": "1 step"}}


def failing(monkeypatch, *steps):
    """Make the disk full at these steps."""
    write = saver.write_checkpoint

    def full(folder, snapshot, world):
        if snapshot.step in steps:
            raise CheckpointError(f"step {snapshot.step}: No space left on device.")
        return write(folder, snapshot, world)

    monkeypatch.setattr(saver, "write_checkpoint", full)


def saved(run: Path) -> list[int]:
    return [int(path.name[5:]) for path in list_checkpoints(run / "checkpoints")]


@pytest.mark.parametrize("asynchronous", [True, False])
def test_failed_save_is_reported_and_the_next_save_retries(tmp_path, monkeypatch, asynchronous):
    failing(monkeypatch, 2, 3)
    said = {**SAVES, "checkpoint": {**SAVES["checkpoint"], "async_save": asynchronous}}
    run = tiny.fit(tmp_path, **said)
    assert saved(tmp_path) == [1, 4, 5, 6]
    told = [event for event in run.events() if event["event"] == "notice"]
    assert [event["step"] for event in told] == [2, 3]
    assert "No space left on device. The run continues" in told[0]["text"]
    steps = [event["step"] for event in run.events() if event["event"] == "checkpoint"]
    assert steps == [1, 4, 5, 6]


def test_save_without_memory_for_a_thread_is_written_at_once(tmp_path, monkeypatch, capsys):
    def start(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    checkpoint = {**SAVES["checkpoint"], "async_save": True}
    run = tiny.fit(tmp_path, checkpoint=checkpoint, logging={"progress": "plain"})
    assert saved(tmp_path) == [1, 2, 3, 4, 5, 6]
    (notice,) = [event for event in run.events() if event["event"] == "notice"]
    assert (notice["step"], notice["text"]) == (
        1,
        "Checkpoints are written between two steps from step 1 on, since their thread could not "
        "be started: can't start new thread. Training waits for them.",
    )
    assert capsys.readouterr().err.count(notice["text"]) == 1


class Saves(surestep.Callback):
    """Keeps the step and the metrics of each checkpoint."""

    def __init__(self):
        self.found = []

    def on_save(self, state, checkpoint):
        self.found.append((checkpoint.step, checkpoint.metrics))


@pytest.mark.parametrize("asynchronous", [True, False])
def test_checkpoint_after_a_failed_save_has_its_own_metrics(tmp_path, monkeypatch, asynchronous):
    failing(monkeypatch, 2, 3)
    saving = {"every": "1 step", "async_save": asynchronous}
    config = tiny.config(max_steps=6, validation={"every": "1 step"}, checkpoint=saving)
    saves, task = Saves(), tiny.task(val=tiny.data(8, seed=1))
    run = surestep.Trainer(task, config, run=tmp_path, callbacks=[saves]).fit()
    events = [event for event in run.events() if event["event"] == "evaluation"]
    evaluated = {event["step"]: event["metrics"] for event in events}
    assert {step for step, _ in saves.found} == {1, 4, 5, 6}
    assert all(metrics == evaluated[step] for step, metrics in saves.found)


def test_checkpoint_of_a_step_that_was_not_evaluated_has_no_metrics(tmp_path):
    options = {"max_steps": 4, "validation": {"every": "2 steps"}}
    config = tiny.config(**options, checkpoint={"every": "1 step", "keep_last": 9})
    saves, task = Saves(), tiny.task(val=tiny.data(8, seed=1))
    run = surestep.Trainer(task, config, run=tmp_path, callbacks=[saves]).fit()
    assert [(step, bool(metrics)) for step, metrics in saves.found] == [
        *((1, False), (2, True), (3, False), (4, True))
    ]
    found = [read_info(path) for path in list_checkpoints(run.checkpoints)]
    assert [(each.step, each.metrics) for each in found] == saves.found


def test_save_waits_for_the_one_before_and_reports_both(tmp_path, monkeypatch):
    write, saves = saver.write_checkpoint, Saves()

    def slow(*arguments):
        time.sleep(0.05)
        return write(*arguments)

    monkeypatch.setattr(saver, "write_checkpoint", slow)
    options = {"max_steps": 3, "logging": {"every": "9 steps"}}
    config = tiny.config(**options, checkpoint={"keep_last": 9, "async_save": True})
    with surestep.prepare(tiny.task(), config, run=tmp_path, callbacks=[saves]) as session:
        steps = session.steps()
        next(steps)
        session.saving.save_async()
        next(steps)
        assert session.save().name == "step-00000002"
        assert [step for step, _ in saves.found] == [1, 2]
        next(steps)
        session.saving.save_async()
    assert [step for step, _ in saves.found] == saved(tmp_path) == [1, 2, 3]
    events, recorded = [], 0
    for event in session.run.events():
        if event["event"] == "steps":  # which are written before a checkpoint that has them
            recorded += len(event["loss"])
        elif event["event"] == "checkpoint":
            events.append((event["step"], recorded >= event["step"]))
            assert event["seconds"] - event["blocked_s"] >= 0.04  # training went on meanwhile
    assert events == [(1, True), (2, True), (3, True)]


def test_ctrl_c_right_after_a_save_began_keeps_its_result(tmp_path, monkeypatch):
    saves, task, config = Saves(), tiny.task(val=tiny.data(8, seed=1)), tiny.config(max_steps=6)
    session = surestep.prepare(task, config, run=tmp_path, callbacks=[saves])
    recorder = session.saving._recorder
    save = recorder.save

    def interrupt(*args):
        save(*args)
        raise KeyboardInterrupt

    monkeypatch.setattr(recorder, "save", interrupt)

    def measure_and_save():
        with session:
            next(session.steps())
            metrics.update(session.evaluate())
            session.saving.save_async()

    metrics = {}
    with pytest.raises(KeyboardInterrupt):
        measure_and_save()
    assert saves.found == [(1, metrics)]


def test_failure_of_the_saving_thread_is_reported_at_the_next_log_point(tmp_path, monkeypatch):
    begun, told = threading.Event(), {}

    def full(folder, snapshot, world):
        begun.wait(60)
        raise CheckpointError("No space left on device.")

    monkeypatch.setattr(saver, "write_checkpoint", full)
    said = {"checkpoint": {"async_save": True}, "logging": {"every": "3 steps"}}
    with tiny.prepare(tmp_path, max_steps=6, **said) as session:
        for result in session.steps():
            if result.step == 1:
                session.saving.save_async()
                begun.set()
                for thread in [t for t in threading.enumerate() if t.name == "surestep-save"]:
                    thread.join()
            notices = [e for e in session.run.events() if e["event"] == "notice"]
            told[result.step] = [each["step"] for each in notices]
    assert told == {1: [], 2: [], 3: [1], 4: [1], 5: [1], 6: [1]}


def test_step_whose_save_failed_is_saved_by_the_next(tmp_path, monkeypatch):
    with tiny.prepare(tmp_path) as session:
        next(session.steps())
        with monkeypatch.context() as full:
            failing(full, 1)
            with pytest.raises(CheckpointError, match="No space left"):
                session.save()
        assert not session.saving.is_current
        for _ in range(2):
            assert session.saving.ensure_saved().exists()
        assert saved(tmp_path) == [1]
        events = [event["event"] for event in session.run.events()]
        assert events.count("checkpoint") == 1


def test_failed_final_save_raises(tmp_path, monkeypatch):
    failing(monkeypatch, 6)
    with pytest.raises(CheckpointError, match="step 6: No space left"):
        tiny.fit(tmp_path, **SAVES)
    assert saved(tmp_path) == [1, 2, 3, 4, 5]
    assert Run(tmp_path).status["status"] == "failed"
    monkeypatch.undo()
    assert tiny.fit(tmp_path, **SAVES).status["status"] == "finished"


@pytest.mark.parametrize("again", [True, False])
def test_end_event_that_cannot_be_written_loses_nothing_else(tmp_path, monkeypatch, again):
    """The disk is full once, or still full when the end event is written again."""
    replace, full = Path.replace, []

    def filling(self, target):
        if target.name == "status.json" and list_checkpoints(tmp_path / "checkpoints"):
            full.append(target)
            if again or len(full) == 1:
                raise OSError(28, os.strerror(28))
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", filling)
    with pytest.raises(StatusWriteError) as caught:
        tiny.fit(tmp_path, **SAVES)
    newest = tmp_path / "checkpoints" / "step-00000006"
    assert str(caught.value) == (
        f"{tmp_path / 'status.json'} could not be written: No space left on device. The run "
        f"finished at step 6, and its newest checkpoint is {newest}; only its end is not "
        "recorded. Make the folder writable again (free space if the disk is full), and run the "
        "same command again: it resumes from that checkpoint."
    )
    assert Run(tmp_path).status["status"] == "running"
    before = [each["event"] for each in Run(tmp_path).events()]
    monkeypatch.undo()
    run = tiny.fit(tmp_path, **SAVES)
    assert (run.status["status"], run.status["step"]) == ("finished", 6)
    after = [each["event"] for each in run.events()][len(before) :]
    assert "steps" not in after
    assert after[-1] == "end"


def test_save_error_that_is_not_a_disk_error_ends_the_run(tmp_path, monkeypatch):
    write, first = saver.write_checkpoint, [True]

    def broken(folder, snapshot, world):
        if first:
            first.clear()
            raise ZeroDivisionError
        return write(folder, snapshot, world)

    monkeypatch.setattr(saver, "write_checkpoint", broken)
    said = {**SAVES, "checkpoint": {**SAVES["checkpoint"], "async_save": False}}
    with pytest.raises(ZeroDivisionError):
        tiny.fit(tmp_path, **said)
    assert Run(tmp_path).status["step"] == 1


def test_end_without_a_checkpoint_reports_a_start_from_scratch(tmp_path, monkeypatch):
    run = tmp_path / "r"
    with tiny.prepare(run) as session:
        next(session.steps())
        with monkeypatch.context() as patch:
            patch.setattr(Path, "replace", lambda self, target: os.stat(tmp_path / "none"))
            with pytest.raises(
                StatusWriteError, match=r"it has no checkpoint; .* again: it starts from scratch\."
            ):
                session.end("failed")


def test_end_in_a_missing_folder_names_what_the_run_resumes_from(tmp_path):
    run = tmp_path / "r"
    with tiny.prepare(run) as session:
        next(session.steps())
        session.save()
        run.rename(tmp_path / "away")
        with pytest.raises(
            StatusWriteError, match=r"its folder is gone; .* resumes from its newest checkpoint"
        ):
            session.end("failed")


@pytest.fixture
def mounted(tmp_path):
    """Mount a separate small disk, if this process may."""
    disk = tmp_path / "disk"
    disk.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", str(disk)]
    may = os.geteuid() == 0 and shutil.which("mount")
    if not (may and subprocess.run(words, capture_output=True).returncode == 0):
        if os.environ.get("CI") == "true":
            pytest.fail("this machine may not mount a tmpfs")
        pytest.skip("needs the right to mount a tmpfs")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], capture_output=True)


def steps_with(run, act, **said):
    """Train and call `act` on the disk after step 3."""
    with tiny.prepare(run, **said) as session:
        for result in session.steps():
            session.saving.save_async()
            session.saving.collect(wait=True)
            if result.step in act:
                act[result.step]()


def test_full_disk_loses_only_the_saves_made_while_it_is_full(mounted):
    run, big = mounted / "r", mounted / "big"

    def fill():
        with big.open("wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(b"x" * 512)

    steps_with(run, {3: fill, 5: big.unlink}, **SAVES)
    assert saved(run) == [1, 2, 3, 6]
    events = list(Run(run).events())
    assert sum(len(e["loss"]) for e in events if e["event"] == "steps") == 6
    notices = [e for e in events if e["event"] == "notice" and "full" in e["text"]]
    assert notices[0]["step"] == 4


def test_temporarily_read_only_folder_loses_only_the_saves_of_that_time(mounted):
    run = mounted / "r"

    def mount(*words):
        subprocess.run(["mount", *words], check=True)

    def lock():
        mount("--bind", str(run), str(run))
        mount("-o", "remount,bind,ro", str(run))

    def unlock():
        subprocess.run(["umount", "-l", str(run)], check=True)

    steps_with(run, {3: lock, 4: unlock}, **SAVES)
    assert saved(run) == [1, 2, 3, 5, 6]


def test_run_whose_mount_vanishes_can_be_resumed(mounted):
    run = mounted / "r"

    def vanish():
        subprocess.run(["umount", "-l", str(mounted)], check=True)

    session = tiny.prepare(run, **SAVES)
    for result in session.steps():
        if result.step == 3:
            vanish()
        session.saving.save_async()
        session.saving.collect(wait=True)
    assert session.state.progress.step == 6
    with pytest.raises(
        StatusWriteError, match=r"The run finished at step 6, and its folder is gone"
    ):
        session.close()
    assert list(mounted.iterdir()) == []
