import errno
import fcntl
import json

import pytest
import torch
from torch import nn

from surestep.base.errors import Preempted, RunError, TaskError
from surestep.record.run_writer import RunWriter, describe_error_end
from tests import tiny


def test_run_folder_has_the_expected_files(tmp_path):
    run = tiny.fit(tmp_path, {"val": tiny.data(3)})
    assert sorted(path.name for path in run.path.iterdir()) == [
        *("checkpoints", "config.json", "data_findings.json", "environment.json", "events.jsonl"),
        *("lock", "plan.json", "signature.json", "status.json"),
    ]


def test_events_are_in_the_order_of_the_run(tmp_path):
    run = tiny.fit(tmp_path, {"val": tiny.data(3)}, epochs=1)
    events = list(run.events())
    assert [event["event"] for event in events] == [
        *("format", "steps", "evaluation", "checkpoint", "end")
    ]
    assert (events[1]["first"], len(events[1]["loss"]), events[1]["epoch"]) == (1, 3, 0)
    assert events[3]["path"] == "checkpoints/step-00000003"
    counts = ("items", "samples", "grad_norm", "lr")
    items, samples, norms, rates = (events[1][name] for name in counts)
    assert (items, samples, len(norms), rates) == (20, 20, 3, [1e-3] * 3)
    assert events[1]["progress"] == {
        **{"step": 3, "steps_taken": 3, "epoch": 1, "position": 0, "items": 20.0}
    }


@pytest.mark.parametrize(
    ("error", "end"),
    [
        (KeyboardInterrupt(), ("stopped", "Ctrl-C")),
        (SystemExit(3), ("stopped", "SystemExit")),
        (Preempted("Stopped by SIGTERM.", reason="SIGTERM"), ("stopped", "SIGTERM")),
        (ValueError("no"), ("failed", "ValueError: no")),
    ],
)
def test_error_that_ends_a_run_is_told_from_a_stop(error, end):
    assert describe_error_end(error) == end


def test_metric_that_decides_the_best_is_recorded_while_the_run_goes_on(tmp_path):
    with tiny.prepare(tmp_path, {"val": tiny.data(3)}) as session:
        next(session.steps())
        status = json.loads((tmp_path / "status.json").read_text())
        assert status["status"] == "running"
        assert status["monitor"] == ["val/loss", "min"]


def test_file_as_run_folder_is_rejected(tmp_path):
    (tmp_path / "run").write_text("mine")
    with pytest.raises(RunError, match="cannot be a run folder: File exists"):
        tiny.prepare(tmp_path / "run")
    assert (tmp_path / "run").read_text() == "mine"


def test_failed_start_leaves_no_folder(tmp_path):
    with pytest.raises(TaskError):
        tiny.prepare(tmp_path / "run", {"model": nn.Linear(9, 9)})
    assert not (tmp_path / "run").exists()


def test_failed_start_preserves_existing_files(tmp_path):
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(TaskError):
        tiny.prepare(tmp_path, {"model": nn.Linear(9, 9)})
    assert (tmp_path / "thesis.tex").exists()


def read_files(run):
    found = (path for path in run.rglob("*") if path.is_file() and path.name != "lock")
    return {path: path.read_bytes() for path in found}


def test_failed_resume_leaves_the_run_unchanged(tmp_path):
    tiny.fit(tmp_path, max_steps=2)
    before = read_files(tmp_path)
    with pytest.raises(RunError, match="different config"):
        tiny.prepare(tmp_path, max_steps=2, seed=3)
    assert read_files(tmp_path) == before


@pytest.mark.parametrize("lost", [[], ["events.jsonl"], ["checkpoints"]])
def test_run_that_lost_its_config_is_not_trained_again_over_its_records(tmp_path, lost):
    run = tiny.fit(tmp_path, max_steps=2).path
    for name in ("config.json", *lost):
        (run / name).rename(run.with_name(f"{run.name}-{name}"))
    before = read_files(run)
    for _ in range(2):  # the first releases the folder
        with pytest.raises(RunError, match=r"config\.json is missing, .* a run up to step 2"):
            tiny.fit(run, max_steps=2)
    assert read_files(run) == before


def test_closed_run_is_not_locked(tmp_path):
    tiny.fit(tmp_path)
    RunWriter(tmp_path).close()


def half_done_elsewhere(run):
    """Create the folders of a host that was killed between two renames of a checkpoint."""
    (run / "config.json").touch()
    for name in (".old-step-00000002", ".tmp-step-00000002"):
        (run / "checkpoints" / f"{name}-at-other-host-7").mkdir(parents=True)


def held(run):
    """Lock the run folder; return the names of its checkpoint folders."""
    recorder = RunWriter(run)
    try:
        return sorted(path.name for path in recorder.checkpoints.iterdir())
    finally:
        recorder.close()


def test_lock_owner_restores_a_half_renamed_checkpoint_of_another_host(tmp_path):
    half_done_elsewhere(tmp_path)
    assert held(tmp_path) == ["step-00000002"]


def test_without_locks_the_files_of_another_host_stay(tmp_path, monkeypatch):
    def no_locks(file, how):
        raise OSError(errno.ENOLCK, "No locks available")

    half_done_elsewhere(tmp_path)
    monkeypatch.setattr(fcntl, "lockf", no_locks)
    assert [name[:5] for name in held(tmp_path)] == [".old-", ".tmp-"]


def test_full_disk_at_the_end_still_releases_the_lock(tmp_path):
    session = tiny.prepare(tmp_path)
    writer = session._recorder._events
    writer._file.close()
    writer._file = open("/dev/full", "wb", buffering=0)  # noqa: SIM115
    try:
        with pytest.raises(RunError, match="No space left"):
            session.close()
        RunWriter(tmp_path).close()
    finally:
        session._recorder._lock.release()


def test_checkpoints_do_not_share_memory_with_the_model(tmp_path):
    with tiny.prepare(tmp_path) as session:
        next(session.steps())
        session.save()
        kept = tiny.weights(session.model)
        list(session.steps())
        model = tiny.model(seed=5)
        session.run.load_model(model, "last")
        assert torch.equal(tiny.weights(model), kept)
