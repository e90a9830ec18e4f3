import pytest

import surestep
from surestep.base.errors import RunError
from surestep.record.checkpoint.discovery import list_checkpoints
from surestep.record.checkpoint.retention import explain_retention
from surestep.record.checkpoint.state_json import read_info
from surestep.record.io import write_json
from tests import tiny


def kept(run):
    found = [read_info(path) for path in list_checkpoints(run.checkpoints)]
    return {
        path.name[-1]: why for path, why in explain_retention(run.path, run.monitor, found).items()
    }


def test_the_last_n_and_the_best_k_of_the_plan(tmp_path):
    rest = iter([0.5, 0.9, 0.8, 0.2, 0.1])
    x, y = tiny.data()
    parts = {
        "val": (x[:1], y[:1]),
        "metrics": {"score": surestep.whole_set(lambda o, t: next(rest))},
    }
    validation = {"metric": "score", "mode": "max"}
    keep = {"keep_last": 1, "keep_best": 2}
    run = tiny.fit(tmp_path, parts, epochs=3, validation=validation, checkpoint=keep)
    assert kept(run) == {"3": ["best"], "6": ["best 2"], "9": ["last"]}


def test_the_ends_of_cycles(tmp_path):
    schedule = {"name": "cosine_restarts", "cycles": 3, "save_cycles": True}
    run = tiny.fit(tmp_path, schedule=schedule)
    assert kept(run) == {"2": ["cycle 1"], "4": ["last 2", "cycle 2"], "6": ["last", "cycle 3"]}


@pytest.mark.parametrize("keep_every", ["2 epochs", "6 steps"])
def test_milestones(tmp_path, keep_every):
    said = {"keep_last": 1, "keep_best": 0, "keep_every": keep_every}
    run = tiny.fit(tmp_path, epochs=5, checkpoint=said)
    assert kept(run) == {"6": ["milestone"], "2": ["milestone"], "5": ["last"]}
    assert [path.name[-2:] for path in list_checkpoints(run.checkpoints)] == ["06", "12", "15"]


@pytest.mark.parametrize("plan", [3, [3], [{"option": "checkpoint.keep_last", "value": "x"}]])
def test_a_plan_that_is_none_is_told(tmp_path, plan):
    run = tiny.fit(tmp_path)
    write_json(tmp_path / "plan.json", plan)
    with pytest.raises(RunError, match="cannot be read"):
        kept(run)
