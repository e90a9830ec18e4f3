import json

import torch

from surestep.record.run_writer import collect_environment
from tests import tiny


def test_environment_has_versions_devices_and_threads(tmp_path):
    found = collect_environment(tiny.FACTS, tmp_path)
    assert found["packages"]["torch"] == torch.__version__
    assert found["packages"]["surestep"] is not None
    assert (found["devices"], found["cpus"], found["threads"]) == (["cpu"], 2, 1)
    assert json.loads(json.dumps(found)) == found


def test_missing_package_has_no_version(tmp_path, monkeypatch):
    monkeypatch.setattr("surestep.record.run_writer._PACKAGES", ("no-such-package",))
    assert collect_environment(tiny.FACTS, tmp_path)["packages"] == {"no-such-package": None}


def test_no_environment_variable_is_saved(tmp_path, monkeypatch):
    monkeypatch.setenv("SECRET_TOKEN", "hunter2-not-for-others")
    run = tiny.fit(tmp_path / "run", max_steps=1)
    kept = [path for path in run.path.rglob("*") if path.is_file()]
    assert len(kept) > 5
    assert not [path for path in kept if b"hunter2" in path.read_bytes()]
