import shutil

import pytest

import surestep
from surestep.base.errors import CheckpointError, ConfigError, RunError
from surestep.record.checkpoint_ref import find_checkpoint, split_name
from surestep.record.runs import list_runs
from tests import tiny


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run with checkpoints at steps 3, 6 and 9; step 3 is the best."""
    rest = iter([0.5, 0.9, 0.2, 0.3])
    x, y = tiny.data()
    parts = {
        "val": (x[:1], y[:1]),
        "metrics": {"score": surestep.whole_set(lambda outputs, targets: next(rest))},
    }
    options = {"epochs": 3, "validation": {"metric": "score", "mode": "max"}}
    options["checkpoint"] = {"every": "1 epoch"}
    return tiny.fit(tmp_path_factory.mktemp("runs") / "r", parts, **options)


@pytest.mark.parametrize(
    ("which", "step"), [("@best", 3), ("@last", 9), ("@6", 6), ("@0000000006", 6), ("", 3)]
)
def test_checkpoint_is_found_by_run_and_step(run, which, step):
    found = find_checkpoint(f"{run.path}{which}")
    assert (found.saved.step, found.saved.path.name) == (step, f"step-{step:08d}")
    assert found.run == run


def test_run_folder_alone_means_its_best_checkpoint(run):
    assert find_checkpoint(str(run.path)).saved == run.best


def test_checkpoint_is_found_by_its_folder(run):
    found = find_checkpoint(str(run.last.path))
    assert (found.saved, found.run.path.samefile(run.path)) == (run.last, True)


def test_copied_checkpoint_belongs_to_no_run(run, tmp_path):
    shutil.copytree(run.last.path, tmp_path / "copy")
    found = find_checkpoint(str(tmp_path / "copy"))
    assert (found.saved.step, found.run) == (9, None)


@pytest.mark.parametrize("name", ["r@home", "r@6"])
def test_run_name_may_contain_an_at_sign(run, tmp_path, name):
    (tmp_path / name).symlink_to(run.path)
    assert split_name(str(tmp_path / name)) == (tmp_path / name, None)
    assert find_checkpoint(f"{tmp_path / name}@last").saved.step == 9


def test_missing_checkpoint_is_reported_with_the_existing_ones(run, tmp_path):
    with pytest.raises(CheckpointError, match=r"no checkpoint of step 7\. It has: 3, 6, 9\."):
        find_checkpoint(f"{run.path}@7")
    with pytest.raises(
        ConfigError, match=r"'.*@bset' does not name a checkpoint.*Did you mean 'best'"
    ):
        find_checkpoint(f"{run.path}@bset")
    with pytest.raises(ConfigError, match="'@5' does not name a checkpoint"):
        find_checkpoint("@5")
    with pytest.raises(RunError, match=r"There is no .*gone"):
        find_checkpoint(str(tmp_path / "gone@last"))
    with pytest.raises(RunError, match="is not a run folder or a checkpoint"):
        find_checkpoint(str(tmp_path))
    for name in ("status.json", "events.jsonl"):  # of a run that lost its config.json
        (tmp_path / name).write_bytes((run.path / name).read_bytes())
    with pytest.raises(RunError, match=r"it has no config\.json"):
        find_checkpoint(str(tmp_path))
    (listed,) = list_runs(tmp_path)
    assert listed.state == "unreadable"
    assert "it has no config.json" in listed.problem
