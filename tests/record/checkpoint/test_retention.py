import math
import os
import shutil
import socket
from itertools import zip_longest
from pathlib import Path

import pytest

import surestep
from surestep.base.errors import RunError
from surestep.base.files import remove_stale, temp_name
from surestep.engine.value import Metrics
from surestep.record.checkpoint.discovery import list_checkpoints, scan_checkpoints
from surestep.record.checkpoint.reader import CheckpointInfo, read_info
from surestep.record.checkpoint.retention import (
    RetentionPolicy,
    best_first,
    delete,
    ends_of_cycles,
    explain_retention,
    prune,
    retention_reasons,
)
from surestep.record.io import write_json
from tests import tiny
from tests.record.checkpoint.on_disk import save_checkpoint
from tests.record.test_incident import written


def saved_with(folder, metrics, data=()):
    """Save checkpoints at steps 1, 2, ... with these metrics, of the samples with these digests."""
    state = tiny.state_of(steps=1)
    for step, (value, state.best.data) in enumerate(zip_longest(metrics, data), 1):
        state.progress = state.progress._replace(step=step)
        state.best.latest = {} if value is None else {"val/a": value}
        state.best.latest_step = step
        save_checkpoint(folder, state)


def steps(folder):
    return sorted(int(path.name[5:]) for path in folder.iterdir())


@pytest.mark.parametrize(
    ("metrics", "keep_last", "keep_best", "mode", "kept"),
    [
        ([1, 2, 3, 4, 5], 2, 0, "min", [4, 5]),
        ([1, 2, 3, 4, 5], 1, 1, "min", [1, 5]),
        ([1, 2, 3, 4, 5], 1, 2, "max", [4, 5]),
        ([3, 1, 2, 9, 9], 1, 2, "min", [2, 3, 5]),
        ([1, 1, 1, 1], 1, 1, "min", [1, 4]),
        ([math.nan, 5, math.nan, 7], 1, 1, "min", [2, 4]),
        ([math.nan, math.nan, math.nan], 1, 1, "max", [3]),
        ([None, 5, None, None], 1, 1, "min", [2, 4]),
        ([1, 2], 5, 5, "min", [1, 2]),
        ([math.inf, 1, 2, 0], 1, 1, "max", [3, 4]),
        ([-math.inf, 5, 7], 1, 1, "min", [2, 3]),
    ],
    ids=[
        *("last", "best", "best is last", "two best", "ties", "NaN", "only NaN", "unknown", "few"),
        *("infinity", "minus infinity"),
    ],
)
def test_last_and_best_checkpoints_are_preserved(
    tmp_path, metrics, keep_last, keep_best, mode, kept
):
    saved_with(tmp_path, metrics)
    deleted = prune(tmp_path, RetentionPolicy(keep_last, keep_best, "val/a", mode))
    assert steps(tmp_path) == kept
    assert len(deleted) == len(metrics) - len(kept)


@pytest.mark.parametrize(
    ("metrics", "keep_best", "kept"),
    [
        ([2, 3, 3, 1], 1, [1, 3, 4]),  # the newest is the best
        ([2, 1, 3, 4], 1, [2, 3, 4]),  # the newest is not the best
        ([4, 2, 3, 9, 1], 2, [2, 3, 4, 5]),
    ],
)
def test_best_before_the_newest_is_preserved_if_a_run_may_roll_back(
    tmp_path, metrics, keep_best, kept
):
    saved_with(tmp_path, metrics)
    prune(tmp_path, RetentionPolicy(2, keep_best, "val/a", "min", may_roll_back=True))
    assert steps(tmp_path) == kept


def info(step, value=None, **more):
    return CheckpointInfo(step, Metrics({} if value is None else {"val/a": value}), Path(), **more)


def test_only_values_of_the_same_samples_are_compared():
    found = [info(1, 1.0, data="other"), info(2, 2.0), info(3, 4.0, data="now")]
    found += [info(4, 3.0, data="now"), info(5, data="none")]

    def ranked(checkpoints, *data):
        return [each.step for each in best_first(checkpoints, "val/a", "min", *data)]

    assert ranked(found) == [2, 4, 3]  # of the second, written by an older version, it is not known
    assert ranked(found, "other") == [1, 2]
    assert ranked(found[:2]) == [1, 2]


def test_first_checkpoint_of_the_end_of_a_cycle_counts():
    found = [info(1), info(3, cycle=1), info(4, cycle=1), info(5), info(6, cycle=2)]
    assert [each.step for each in ends_of_cycles(found)] == [3, 6]


def test_deleted_checkpoint_loses_its_name_before_its_files(tmp_path, monkeypatch):
    saved_with(tmp_path, [1])
    monkeypatch.setattr(shutil, "rmtree", lambda path, **_: None)  # as if killed
    delete(list_checkpoints(tmp_path))
    assert list_checkpoints(tmp_path) == []
    assert [path.name[:4] for path in tmp_path.iterdir()] == [".del"]


def test_only_the_last_are_preserved_without_a_metric(tmp_path):
    saved_with(tmp_path, [1, 2, 3])
    prune(tmp_path, RetentionPolicy(1, 1, None, "min"))
    assert steps(tmp_path) == [3]


def saved_at(folder, state, step, keep_every):
    """Save a step and prune, as a run does."""
    state.progress = state.progress._replace(step=step, steps_taken=step, items=8.0 * step)
    save_checkpoint(folder, state)
    prune(folder, RetentionPolicy(1, 0, None, "min", keep_every=keep_every))


@pytest.mark.parametrize(
    ("saves", "keep_every", "kept"),
    [
        (range(5, 41, 5), 10, [10, 20, 30, 40]),
        ([4, 8, 12, 16, 20, 24], 10, [12, 20, 24]),
        ([0, 7, 35, 36], 10, [35, 36]),
        ([1, 2, 3], 100, [3]),
        ([1, 2, 3, 4], 4 / 3, [2, 3, 4]),
        ([3, 6, 9], 0.5, [3, 6, 9]),
    ],
    ids=["on them", "after them", "leaping", "none yet", "thirds", "each"],
)
def test_first_save_at_or_after_a_multiple_is_preserved(tmp_path, saves, keep_every, kept):
    state = tiny.state_of(steps=1)
    for step in saves:
        saved_at(tmp_path, state, step, keep_every)
    assert steps(tmp_path) == kept


def test_checkpoint_that_an_incident_needs_is_preserved(tmp_path):
    folder = tmp_path / "checkpoints"
    saved_with(folder, [1, 2, 3, 4])
    written(tmp_path, step=3, checkpoint="step-00000002")
    policy = RetentionPolicy(1, 0, None, "min")
    assert [path.name[-1] for path in prune(folder, policy)] == ["1", "3"]
    reasons = retention_reasons(scan_checkpoints(folder).good, policy)
    assert {path.name[-1]: why for path, why in reasons.items()} == {
        **{"2": ["incident"], "4": ["last"]}
    }


def test_damaged_checkpoint_is_not_the_best(tmp_path):
    saved_with(tmp_path, [1, 2, 3])
    (tmp_path / "step-00000001" / "state.json").write_text("{")
    found = scan_checkpoints(tmp_path)
    assert [checkpoint.step for checkpoint in best_first(found.good, "val/a", "min")] == [2, 3]
    assert [checkpoint.step for checkpoint in found.damaged] == [1]


def test_damaged_checkpoint_is_preserved_and_not_counted(tmp_path):
    saved_with(tmp_path, [1, 2, 3, 4])
    (tmp_path / "step-00000004" / "model.safetensors").unlink()
    prune(tmp_path, RetentionPolicy(2, 0, None, "min"))
    assert steps(tmp_path) == [2, 3, 4]


def gone(name, host=None):
    """Return the name of a temporary file of a dead process."""
    pid = os.fork()
    if not pid:
        os._exit(0)
    os.waitpid(pid, 0)
    return f"{name}-at-{host or socket.gethostname()}-{pid}"


def test_temporary_files_of_a_dead_process_are_removed(tmp_path):
    saved_with(tmp_path, [1])
    for name in (gone(".tmp-step-00000002"), gone(".del-step-00000000")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "state.json").write_text("{")
    remove_stale(tmp_path)
    assert steps(tmp_path) == [1]
    remove_stale(tmp_path / "none")


def test_process_killed_between_the_renames_of_a_step_leaves_the_step(tmp_path):
    saved_with(tmp_path, [1])
    (tmp_path / "step-00000001").rename(tmp_path / gone(".old-step-00000001"))
    remove_stale(tmp_path)
    assert steps(tmp_path) == [1]


def test_files_of_an_interrupted_deletion_do_not_block_the_next(tmp_path):
    saved_with(tmp_path, [1, 2])
    left = temp_name(tmp_path / "step-00000001", "del")
    left.mkdir()
    (left / "state.json").write_text("{")
    prune(tmp_path, RetentionPolicy(1, 0, None, "min"))
    assert steps(tmp_path) == [2]


def test_checkpoint_with_a_subfolder_is_deleted(tmp_path):
    saved_with(tmp_path, [1, 2])
    (tmp_path / "step-00000001" / "notes").mkdir()
    (tmp_path / "step-00000001" / "notes" / "mine.txt").write_text("mine")
    prune(tmp_path, RetentionPolicy(1, 0, None, "min"))
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000002"]


def test_temporary_files_of_live_processes_and_other_hosts_stay(tmp_path):
    living = f".tmp-step-00000002-at-{socket.gethostname()}-{os.getppid()}"
    other, old = gone(".tmp-step-00000003", "other-host"), gone(".del-step-00000004", "other-host")
    for name in (living, other, old):
        (tmp_path / name).mkdir()
    os.utime(tmp_path / old, (0, 0))
    (tmp_path / gone(".tmp-status.json")).write_text("{")
    (tmp_path / ".tmp-of-the-user").write_text("mine")
    remove_stale(tmp_path)
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {living, other, ".tmp-of-the-user"}


def kept(run):
    found = [read_info(path) for path in list_checkpoints(run.checkpoints)]
    return {
        path.name[-1]: why for path, why in explain_retention(run.path, run.monitor, found).items()
    }


def test_plan_preserves_the_last_n_and_the_best_k(tmp_path):
    rest = iter([0.5, 0.9, 0.8, 0.2, 0.1])
    x, y = tiny.data()
    parts = {
        "val": (x[:1], y[:1]),
        "metrics": {"score": surestep.whole_set(lambda outputs, targets: next(rest))},
    }
    validation = {"metric": "score", "mode": "max"}
    keep = {"keep_last": 1, "keep_best": 2}
    run = tiny.fit(tmp_path, parts, epochs=3, validation=validation, checkpoint=keep)
    assert kept(run) == {"3": ["best"], "6": ["best 2"], "9": ["last"]}


def test_ends_of_cycles_are_preserved(tmp_path):
    schedule = {"name": "cosine_restarts", "cycles": 3, "save_cycles": True}
    run = tiny.fit(tmp_path, schedule=schedule)
    assert kept(run) == {"2": ["cycle 1"], "4": ["last 2", "cycle 2"], "6": ["last", "cycle 3"]}


@pytest.mark.parametrize("keep_every", ["2 epochs", "6 steps"])
def test_milestones_are_preserved(tmp_path, keep_every):
    options = {"keep_last": 1, "keep_best": 0, "keep_every": keep_every}
    run = tiny.fit(tmp_path, epochs=5, checkpoint=options)
    assert kept(run) == {"6": ["milestone"], "2": ["milestone"], "5": ["last"]}
    assert [path.name[-2:] for path in list_checkpoints(run.checkpoints)] == ["06", "12", "15"]


@pytest.mark.parametrize("on_spike", ["warn", "rollback"])
def test_best_before_is_explained_if_the_run_may_roll_back(tmp_path, on_spike):
    saved_with(tmp_path / "not needed", [1, 3, 2])
    saved_with(tmp_path, [2, 3, 1])
    write_json(tmp_path / "plan.json", [{"option": "on_spike", "value": on_spike}])
    found = explain_retention(tmp_path, ("val/a", "min"), scan_checkpoints(tmp_path).good)
    before = {1: ["best before"]} if on_spike == "rollback" else {}
    assert {int(path.name[5:]): why for path, why in found.items()} == {
        **before,
        3: ["best", "last"],
    }
    policy = RetentionPolicy(1, 1, "val/a", "min", may_roll_back=True)
    found = retention_reasons(scan_checkpoints(tmp_path / "not needed").good, policy)
    assert {int(path.name[5:]): why for path, why in found.items()} == {1: ["best"], 3: ["last"]}


@pytest.mark.parametrize("plan", [3, [3], [{"option": "checkpoint.keep_last", "value": "x"}]])
def test_invalid_plan_is_rejected(tmp_path, plan):
    run = tiny.fit(tmp_path)
    write_json(tmp_path / "plan.json", plan)
    with pytest.raises(RunError, match="cannot be read"):
        kept(run)
