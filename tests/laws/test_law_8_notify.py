"""Law 8: no file that comes with a run, a recipe or a study names a command that is run.

`--notify` runs a shell command, which only the user can type or write to their own settings. Every
key and every file in which a command could be expected has one here that writes a mark.
"""

import json
import os
import shutil
from collections.abc import Callable
from contextlib import chdir
from dataclasses import replace
from pathlib import Path

import pytest

from surestep.cli.main import main
from surestep.cli.notify import choose_command
from surestep.record.run import Run
from surestep.tuning.settings import record_settings
from tests.cli.conftest import RECIPE
from tests.cli.conftest import folder as folder
from tests.laws.test_law_8_reading import watching
from tests.tuning.studies_on_disk import make_settings

KEYS = ("notify", "--notify", "SURESTEP_NOTIFY", "cli.notify", "logging.notify")
PLACES = ((), ("config",), ("task",), ("decided",), ("recipe",), ("machine",), ("fixed",))


def write_keys(path: Path, value: object, places: tuple[tuple[str, ...], ...] = PLACES) -> None:
    """Write each key in each table that a JSON file has."""
    found = json.loads(path.read_text())
    for place in places:
        table = found
        for name in place:
            table = table.get(name) if isinstance(table, dict) else None
        if isinstance(table, dict):
            table.update(dict.fromkeys(KEYS, value))
    path.write_text(json.dumps(found))


def plant(folder: Path, command: str) -> None:
    """Write a file of settings, where a program could look for one."""
    text = f"notify = {json.dumps(command)}\n"
    for name in ("", ".", ".config", "config", "surestep", ".config/surestep", ".surestep"):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for file in ("config.toml", "surestep.toml", "notify.toml", "settings.toml"):
            (folder / name / file).write_text(text)


def check_settings_of_a_folder(fresh: Callable[[], Path]) -> None:
    """Check that no file in the working directory is taken for the user's settings."""
    place = fresh()
    plant(place, "true")
    with chdir(place):
        assert choose_command(None) == ""


@pytest.fixture
def received(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], str]:
    """Work in a folder with a recipe; return a function that makes a shell command of a mark."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CONFIG_HOME", ".config")  # not absolute, so it is in what was received
    command = f"touch {tmp_path}/ran"
    (tmp_path / "mine.py").write_text(f"notify = NOTIFY = {command!r}\n{RECIPE}")
    assert main(["train", "mine.py", "--run", "r"]) == 0
    return lambda folder: plant(folder, command) or command


def check_nothing_ran(words: list[str], folder: Path, *, code: int) -> None:
    with watching(folder) as seen:
        assert main(words) == code
    assert not [action for action in seen if "touch" in action]
    assert not (folder / "ran").exists()


@pytest.mark.parametrize(
    ("places", "code"),
    [
        (((), ("recipe",), ("machine",)), 0),
        ((("decided",),), 1),
        ((("config",), ("task",)), 2),
    ],
)
@pytest.mark.parametrize("target", ["r", "file://{here}/r"])
def test_run_folder_or_mirror_that_is_resumed_runs_no_command(
    tmp_path, received, places, code, target
):
    command = received(tmp_path / "r")
    plant(tmp_path, command)
    for name in ("config.json", "status.json", "plan.json", "environment.json"):
        write_keys(tmp_path / "r" / name, command, places)
    check_nothing_ran(["resume", target.format(here=tmp_path)], tmp_path, code=code)


def test_file_of_options_runs_no_command(tmp_path, received):
    command = received(tmp_path)
    for text in (f"notify = {command!r}", f"[logging]\nnotify = {command!r}", f"task.notify = {1}"):
        (tmp_path / "run.toml").write_text(text)
        words = ["train", "mine.py", "--run", "s", "--config", "run.toml"]
        check_nothing_ran(words, tmp_path, code=2)
    write_keys(tmp_path / "r/config.json", command, ((), ("decided",), ("recipe",)))
    words = ["train", "mine.py", "--run", "s", "--config", "r/config.json"]
    check_nothing_ran(words, tmp_path, code=0)
    assert Run(tmp_path / "s").status["status"] == "finished"


@pytest.mark.parametrize("home", ["", ".", ".config"])
def test_working_directory_has_no_settings(folder, monkeypatch, home):
    monkeypatch.setenv("XDG_CONFIG_HOME", home)
    monkeypatch.setenv("HOME", "." if home else str(folder / "nowhere"))
    check_settings_of_a_folder(lambda: folder)


def test_study_that_is_resumed_runs_no_command(tmp_path, received, monkeypatch):
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("surestep.tuning.search.run_search", interrupt)
    recipe = {"name": "mine", "path": str(tmp_path / "mine.py"), "sha256": "0" * 64}
    settings = replace(make_settings(recipe=recipe, space={"optim.lr": [1, 2]}), fixed={})
    record_settings(tmp_path / "study", settings)
    command = received(tmp_path / "study")
    check_nothing_ran(["search", "--resume", "study"], tmp_path, code=130)
    write_keys(tmp_path / "study/study.json", command, ((), ("recipe",)))
    check_nothing_ran(["search", "--resume", "study"], tmp_path, code=130)


def test_command_of_the_users_own_settings_is_run(tmp_path, received, monkeypatch):
    """The checks above can fail."""
    received(tmp_path)
    shutil.copytree(tmp_path / "surestep", tmp_path / "home/.config/surestep")
    (tmp_path / "home/.config/surestep/config.toml").write_text(f"notify = 'touch {tmp_path}/ran'")
    monkeypatch.setenv("XDG_CONFIG_HOME", "")
    assert main(["resume", "r"]) == 0
    assert (tmp_path / "ran").exists()
    os.unlink(tmp_path / "ran")
    with pytest.raises(AssertionError), watching(tmp_path) as seen:
        check_nothing_ran(["resume", "r"], tmp_path, code=0)
    assert any("touch" in action for action in seen)
