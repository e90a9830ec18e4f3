import json
import subprocess

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


def git(folder, *words):
    who = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True)


def test_environment_has_the_commit_and_whether_files_differ(tmp_path):
    git(tmp_path, "init")
    (tmp_path / "a").write_text("1")
    git(tmp_path, "add", "a")
    git(tmp_path, "commit", "-m", "a")
    found = collect_environment(tiny.FACTS, tmp_path)["git"]
    assert len(found["commit"]) == 40
    assert found["dirty"] is False
    (tmp_path / "a").write_text("2")
    assert collect_environment(tiny.FACTS, tmp_path)["git"]["dirty"] is True


def test_commit_is_unknown_before_the_first_one(tmp_path):
    git(tmp_path, "init")
    assert collect_environment(tiny.FACTS, tmp_path)["git"] is None


def test_commit_is_unknown_without_git(tmp_path, monkeypatch):
    assert collect_environment(tiny.FACTS, tmp_path)["git"] is None
    monkeypatch.setenv("PATH", "")
    assert collect_environment(tiny.FACTS, tmp_path)["git"] is None
