"""What reads a study that was received creates no file and no table, and connects to nothing."""

import json
import shutil
import socket
from contextlib import closing
from dataclasses import replace

import pytest

from surestep.base.errors import ConfigError, RunError
from surestep.base.typed_targets import was_typed
from surestep.tuning.open import open_study, read_study
from surestep.tuning.process import StopRequests, TrialProcess
from surestep.tuning.settings import read_settings
from tests.laws.test_law_8_reading import MARK, watching
from tests.tuning.studies_on_disk import make_settings, make_study


@pytest.fixture
def study(tmp_path):
    """Make a study with a journal; return its folder."""
    make_study(tmp_path / "study")
    return tmp_path / "study"


def set_storage(folder, url):
    path = folder / "study.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "storage": url}))


def test_no_code_in_a_study_is_run(study):
    make_study(study).claim_trial()
    for name in ("recipe.py", "formula.py", "optuna.py", "trials/0000/recipe.py"):
        (study / name).parent.mkdir(parents=True, exist_ok=True)
        (study / name).write_text(MARK)
    with watching(study) as seen:
        assert [row.number for row in read_study(study).rows()] == [0]
    assert seen == []
    assert not [*study.rglob("ran")]


def test_recorded_file_of_a_database_is_not_created(study, tmp_path):
    url = f"sqlite:///{tmp_path}/elsewhere.db"
    set_storage(study, url)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ConfigError, match=f"was not typed on .* pass --storage {url}"):
        read_study(study)
    with pytest.raises(RunError, match=r"elsewhere\.db is missing"):
        read_study(study, url)
    assert sorted(tmp_path.rglob("*")) == before


def test_recorded_server_is_not_connected_to(study):
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        set_storage(study, f"postgresql+psycopg://me@127.0.0.1:{server.getsockname()[1]}/db")
        with pytest.raises(ConfigError, match="was not typed on this machine"):
            read_study(study)
        server.setblocking(False)
        with pytest.raises(BlockingIOError):
            server.accept()


def test_typed_database_is_read_without_being_typed_again(tmp_path, state):
    url = f"sqlite:///{tmp_path}/study.db"
    rows = make_study(tmp_path / "study", url).rows()
    assert read_study(tmp_path / "study").rows() == rows
    shutil.rmtree(state)  # on another machine
    with pytest.raises(ConfigError, match="was not typed"):
        read_study(tmp_path / "study")
    assert read_study(tmp_path / "study", url).rows() == rows


def test_no_table_is_created_in_a_database_of_others(study, tmp_path):
    (tmp_path / "other.db").touch()
    url = f"sqlite:///{tmp_path}/other.db"
    set_storage(study, url)
    with pytest.raises(RunError, match="cannot be opened: no such table"):
        read_study(study, url)
    assert (tmp_path / "other.db").stat().st_size == 0


def test_journal_is_not_created(study):
    (study / "study.log").unlink()
    before = sorted(study.iterdir())
    with pytest.raises(RunError, match=r"study\.log is missing, so .* has no trials yet"):
        read_study(study)
    assert sorted(study.iterdir()) == before


def test_journal_without_the_study_has_no_trials(study):
    (study / "study.log").write_text("")
    with pytest.raises(RunError, match="has no trials yet"):
        read_study(study)
    assert (study / "study.log").read_text() == ""


def test_recorded_database_that_was_not_typed_is_not_continued(tmp_path, state):
    url = f"sqlite:///{tmp_path}/study.db"
    make_study(tmp_path / "typed", url)
    shutil.rmtree(state)  # on another machine
    settings = read_settings(tmp_path / "typed")
    with pytest.raises(ConfigError, match=r"was not typed on this machine.* To use it, pass"):
        open_study(tmp_path / "typed", settings)
    assert not state.exists()
    open_study(tmp_path / "typed", settings, url)
    open_study(tmp_path / "typed", settings)


def test_mirror_of_a_study_is_typed_with_the_command_that_starts_it(tmp_path):
    settings = replace(make_settings(), fixed={"checkpoint.mirror": "s3://bucket/search"})
    study = open_study(tmp_path / "study", settings)
    assert was_typed(study.settings.name, "s3://bucket/search")


@pytest.mark.parametrize("open_it", [read_study, make_study])
def test_journal_that_is_a_link_is_not_changed(study, tmp_path, open_it):
    other = tmp_path / "other.txt"
    other.write_text("a line\nthe last line")  # which has no end, as a torn line of a journal
    (study / "study.log").unlink()
    (study / "study.log").symlink_to(other)
    with pytest.raises(RunError, match="it is a link"):
        open_it(study)
    assert other.read_text() == "a line\nthe last line"


def test_log_of_a_trial_is_not_written_through_a_link(tmp_path, monkeypatch):
    (tmp_path / "other.txt").write_text("mine")
    log = tmp_path / "0000.log"
    log.symlink_to(tmp_path / "other.txt")
    monkeypatch.setattr(TrialProcess, "_start", lambda *_: pytest.fail("the trial has started"))
    with StopRequests() as stops:
        process = TrialProcess({}, log, 1, {}, answer=lambda _: False, stops=stops)
        with pytest.raises(OSError, match="symbolic links"):
            process.run()
    assert (tmp_path / "other.txt").read_text() == "mine"
