"""Studies on a PostgreSQL server."""

import json
from dataclasses import asdict

import pytest

from surestep.base.errors import ConfigError, RunError
from surestep.tuning.open import open_study, read_study
from tests.postgres import PASSWORD
from tests.tuning.claiming import run_workers
from tests.tuning.studies import make_study

TRIALS = 15


@pytest.fixture
def url(postgres):
    return postgres.create_database()


def open_new(folder, url, trials=TRIALS):
    settings = make_study([None] * trials, sampler="random").settings
    return open_study(folder, settings, url)


def test_workers_claim_exactly_the_trials_of_the_study(tmp_path, url):
    open_new(tmp_path / "study", url)
    claimed = run_workers(3, "claim", str(tmp_path / "study"), url)
    assert sorted(number for numbers in claimed for number in numbers) == list(range(TRIALS))
    rows = read_study(tmp_path / "study", url).rows()
    assert [row.number for row in rows] == list(range(TRIALS))
    assert {row.state for row in rows} == {"finished"}
    assert all(row.values == (row.params["optim.lr"],) for row in rows)


def test_trials_are_the_same_as_those_in_a_journal(tmp_path, url):
    """Where the trials are stored does not change what the sampler proposes."""
    database = open_new(tmp_path / "database", url, 5)
    journal = open_new(tmp_path / "journal", None, 5)
    for study in (database, journal):
        while (trial := study.claim_trial()) is not None:
            study.finish(trial, [trial.params["optim.lr"]], 1.0)
    assert database.rows() == journal.rows()


def test_one_of_several_workers_retries_a_trial(tmp_path, url):
    study = open_new(tmp_path / "study", url)
    trial = study.claim_trial()
    words = ("retry", str(tmp_path / "study"), url, json.dumps(asdict(trial)))
    assert sorted(run_workers(3, *words)) == [False, False, True]
    assert not study.finish(trial, [0.5])  # the worker that was taken for dead
    again = study.claim_trial()
    assert (again.number, again.params, again.retries) == (trial.number, trial.params, 1)
    assert study.claim_trial().number == 1


def test_password_is_in_no_file_and_is_needed_again(tmp_path, url):
    open_new(tmp_path / "study", url).claim_trial()
    assert PASSWORD in url
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) > 0
    assert [path for path in files if PASSWORD in path.read_text(errors="replace")] == []
    with pytest.raises(RunError, match="--storage") as error:
        read_study(tmp_path / "study")
    assert PASSWORD not in str(error.value)
    assert len(read_study(tmp_path / "study", url).rows()) == 1


def test_wrong_password_and_other_database_are_rejected(tmp_path, url, postgres):
    open_new(tmp_path / "study", url)
    wrong = url.replace(PASSWORD, "other-word")
    with pytest.raises(RunError, match="authentication failed") as error:
        read_study(tmp_path / "study", wrong)
    assert "other-word" not in str(error.value)
    other = postgres.create_database()
    with pytest.raises(ConfigError, match="--storage") as error:
        read_study(tmp_path / "study", other)
    assert PASSWORD not in str(error.value)


def test_study_without_a_server_is_an_error_that_names_it(tmp_path, url, postgres):
    gone = url.replace(f":{postgres.port}/", ":1/")
    with pytest.raises(RunError, match=r"127\.0\.0\.1:1/.* cannot be opened") as error:
        open_new(tmp_path / "study", gone)
    assert PASSWORD not in str(error.value)
