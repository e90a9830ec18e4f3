"""What `python -m benchmarks.pruners` answers to words that it cannot search with."""

import json
from dataclasses import asdict

import pytest
from benchmarks import small_tasks

from surestep.base.errors import ConfigError
from tests.needs import needs

needs("optuna")
needs("sklearn")


@pytest.fixture
def pruners(monkeypatch):
    """Return the module of the benchmark, whose searches take no time."""
    from benchmarks import pruners

    monkeypatch.setattr(pruners, "search", lambda settings, trials: (0.5, 8, 0))
    for module, name in (
        (pruners.gc, "freeze"),
        (pruners.torch, "set_num_threads"),
        (pruners.optuna.logging, "set_verbosity"),
    ):
        monkeypatch.setattr(module, name, lambda *_: None)  # other tests have this process too
    return pruners


@pytest.fixture
def reject(pruners, tmp_path, capsys):
    """Return the error of the command."""

    def call(*words):
        with pytest.raises(SystemExit) as stopped:
            pruners.main(["--results", str(tmp_path / "results"), *words])
        assert stopped.value.code == 2
        out, err = capsys.readouterr()
        assert out == ""
        return err

    return call


@pytest.mark.parametrize("option", ["--seeds", "--trials"])
@pytest.mark.parametrize("count", ["0", "-2"])
def test_no_seeds_or_trials_are_an_error(reject, option, count):
    assert f"{option} {count}: pass 1 or more" in reject(option, count)


def test_unknown_task_is_an_error_with_the_names(reject):
    assert "no task is named mail. Known: digits, convolutions" in reject("digits", "mail")
    with pytest.raises(ConfigError, match="'mail' is none of: digits, convolutions"):
        small_tasks.task("mail")


def test_results_with_another_number_of_trials_are_an_error(pruners, reject, tmp_path, capsys):
    pruners.main(["--results", str(tmp_path / "results"), "--trials", "3", "--seeds", "1"])
    before = (tmp_path / "results").read_bytes()
    assert "| `none` |" in capsys.readouterr().out
    error = reject("--trials", "40", "--seeds", "1")
    assert "has searches of 3 trials, not of 40: pass --trials 3 to continue them" in error
    assert (tmp_path / "results").read_bytes() == before


def test_results_of_an_older_version_are_an_error(pruners, reject, tmp_path):
    old = asdict(pruners.Outcome("digits", 0, 3, "none", 0.5, 8, 0))
    del old["trials"]
    (tmp_path / "results").write_text(json.dumps(old) + "\n")
    assert "has no results of this version: pass another --results" in reject()


def test_table_has_only_the_tasks_and_seeds_that_were_asked_for(pruners, tmp_path, capsys):
    results = tmp_path / "results"
    lossy = pruners.Outcome("cancer", 0, 3, "median", 5.0, 8, 0)
    plain = pruners.Outcome("cancer", 0, 3, "none", 0.5, 8, 0)
    results.write_text("".join(json.dumps(asdict(one)) + "\n" for one in (plain, lossy)))
    words = ["--results", str(results), "--trials", "3", "--seeds", "1"]
    pruners.main([*words, "digits"])
    assert "10.000 times" not in capsys.readouterr().out
    pruners.main([*words, "digits", "cancer"])
    assert "10.000 times" in capsys.readouterr().out
