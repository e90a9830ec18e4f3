"""A worker deletes the checkpoints of trials that are not the best, beside other workers."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from surestep.tuning import worker as module
from surestep.tuning.process import Ended
from surestep.tuning.rows import ClaimedTrial
from surestep.tuning.worker import Worker, WorkerOptions, delete_checkpoints
from tests.tuning.studies import make_rows, make_study


def test_better_trial_of_another_worker_keeps_its_checkpoints(tmp_path, monkeypatch):
    """Each read of the trials finds one more, which is better than those before."""
    row, names = make_rows(1)[0], [f"{number:04d}" for number in range(9)]
    rows = [replace(row, number=n, run=name, values=(float(n),)) for n, name in enumerate(names)]
    shown = 1

    def read_more():
        nonlocal shown
        shown += 1
        return rows[:shown]

    study = make_study(rows)
    study.folder, study.rows, study.beat = tmp_path, read_more, lambda _: True
    for name in names:
        (tmp_path / "trials" / name / "checkpoints" / "step-00000001").mkdir(parents=True)
    worker = Worker(study, WorkerOptions(keep_best=True), SimpleNamespace(reason=""), print)
    monkeypatch.setattr(worker, "run_job", lambda *_, **__: Ended())
    monkeypatch.setattr(worker, "_record", lambda *_: True)
    worker._run_trial(ClaimedTrial(0, {}, "0000", 0, 0), None)
    left = sorted(path.parts[-3] for path in tmp_path.glob("trials/*/checkpoints/step-*"))
    assert left == names[shown - 1 :]


@pytest.mark.parametrize(
    ("options", "waited_s", "shown"),
    [
        (WorkerOptions(step_timeout_s=600), 600, "10 min 0 s (--step-timeout)"),
        (WorkerOptions(trial_timeout_s=90, step_timeout_s=600), 90, "1 min 30 s (--trial-timeout)"),
    ],
)
def test_trial_whose_run_a_process_keeps_that_hangs_fails_after_a_limit(
    tmp_path, monkeypatch, options, waited_s, shown
):
    """The process of a worker that died, which holds the lock of the interpreter."""
    now = [0.0]
    study = make_study([])
    study.folder = tmp_path
    (tmp_path / "0000").mkdir()
    (tmp_path / "0000" / "lock").write_text('{"host": "here", "pid": 12}')
    stops = SimpleNamespace(reason="", wait=lambda seconds: now.append(now.pop() + seconds))
    monkeypatch.setattr(module, "is_locked", lambda _: True)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    worker = Worker(study, options, stops, print)
    job = {"do": "train", "options": {}, "run": tmp_path / "0000"}
    ended = worker.run_job(job, SimpleNamespace(count_workers=lambda: 1, number=0))
    assert ended.is_overdue
    assert ended.reason == (
        f'waited for its run for {shown}, which {{"host": "here", "pid": 12}} uses'
    )
    assert waited_s < now[0] < waited_s + 1


def test_only_trials_that_ended_lose_their_checkpoints(tmp_path):
    states = ["finished", "finished", "pruned", "failed", "running", "waiting", "new"]
    row = make_rows(1)[0]
    rows = [replace(row, number=n, state=s, run=f"{n:04d}") for n, s in enumerate(states)]
    rows[-1] = replace(rows[-1], state="waiting", run=None)  # it has not begun
    for trial in rows[:-1]:
        (tmp_path / "trials" / trial.run / "checkpoints" / "step-00000001").mkdir(parents=True)
    study = make_study(rows)
    study.folder = tmp_path
    delete_checkpoints(study, rows, [1])
    left = sorted(path.parts[-3] for path in tmp_path.glob("trials/*/checkpoints/step-*"))
    assert left == ["0001", "0004", "0005"]  # the best, the running and the waiting one
