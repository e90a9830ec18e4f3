import math
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import optuna
import pytest

from surestep.base.errors import ConfigError, RunError
from surestep.tuning.open import open_study, read_study
from surestep.tuning.rows import Observer
from surestep.tuning.settings import read_settings
from surestep.tuning.study import MOST_RETRIES
from tests.tuning.studies_on_disk import loss, make_settings, make_study, run_all

PYTHON = sys.executable  # not the one of `warm_python`
STORAGES = ("journal", "sqlite")


@pytest.fixture(params=STORAGES)
def storage(request, tmp_path):
    return None if request.param == "journal" else f"sqlite:///{tmp_path}/study.db"


def observer(grace_s=60.0):
    """Return an observer and its clock, a list with the time."""
    now = [0.0]
    return Observer(grace_s, clock=lambda: now[0]), now


def die(study, trial):
    """Let an observer find that the worker of a trial died."""
    watching, now = observer()
    study.stale_trials(watching)
    now[0] += 61
    return [study.retry(stale) for stale in study.stale_trials(watching) if stale == trial]


def test_each_trial_is_claimed_once_and_recorded(tmp_path, storage):
    study = make_study(tmp_path / "study", storage)
    claimed = run_all(study)
    assert [trial.number for trial in claimed] == list(range(12))
    assert [trial.run for trial in claimed] == [f"{number:04d}" for number in range(12)]
    rows = study.rows()
    assert [row.params for row in rows] == [trial.params for trial in claimed]
    for row in rows:
        assert row.evaluations == len(row.intermediate)
        if row.state == "finished":
            assert (row.values, row.seconds, row.reason) == ((loss(row.params),), 1.5, "")
            assert list(row.intermediate) == [1, 2, 3]
        else:
            assert (row.state, row.values) == ("pruned", None)
            assert row.reason == "worse than the median"
    assert {row.state for row in rows} == {"finished", "pruned"}
    assert read_study(tmp_path / "study").rows() == rows


@pytest.mark.parametrize("n_workers", [2, 6])
def test_threads_claim_exactly_the_whole_number(tmp_path, storage, n_workers):
    studies = [make_study(tmp_path / "study", storage, trials=12) for _ in range(n_workers)]
    start = threading.Barrier(n_workers)

    def work(study):
        start.wait()
        return [trial.number for trial in run_all(study)]

    with ThreadPoolExecutor(n_workers) as pool:
        numbers = [number for found in pool.map(work, studies) for number in found]
    assert sorted(numbers) == list(range(12))
    assert [row.number for row in studies[0].rows()] == list(range(12))


def test_study_records_every_option_of_its_methods(tmp_path):
    make_study(tmp_path, sampler="TPE", pruner="percentile:30")
    recorded = read_settings(tmp_path)
    assert recorded.sampler == "tpe:startup=10"
    assert recorded.pruner == "percentile:keep=30,startup=5,warmup=auto"
    make_study(tmp_path, sampler="tpe:10", pruner="percentile:keep=30")  # the same


def test_number_of_trials_may_grow_but_not_shrink(tmp_path):
    first = make_study(tmp_path, trials=3)
    assert len(run_all(first)) == 3
    second = make_study(tmp_path, trials=5)
    assert [trial.number for trial in run_all(first)] == [3, 4]  # a worker that already runs
    assert second.claim_trial() is None
    with pytest.raises(ConfigError, match=r"5 trials, and --trials 4 is less"):
        make_study(tmp_path, trials=4)
    assert read_settings(tmp_path).trials == 5


def test_trial_of_a_dead_worker_is_resumed_with_its_values(tmp_path, storage):
    study = make_study(tmp_path / "study", storage)
    trial = study.claim_trial()
    study.beat(trial)
    other = make_study(tmp_path / "study", storage)
    assert die(other, trial) == [True]
    (row,) = other.rows()
    assert (row.state, row.reason, row.run) == ("waiting", "its worker died", "0000")
    resumed = other.claim_trial()
    assert (resumed.number, resumed.params, resumed.run) == (0, trial.params, "0000")
    assert resumed.retries == 1
    # The worker that was only slow learns it, whatever it does next.
    assert not study.beat(trial)
    assert not study.report(trial, 1, 0.0)
    assert not study.finish(trial, [0.0])
    assert not study.hand_back(trial, "stopped")
    other.finish(resumed, [2.0])
    (row,) = study.rows()
    assert (row.state, row.values, row.intermediate) == ("finished", (2.0,), {})


def test_trial_with_heartbeats_is_not_stale(tmp_path):
    study, (watching, now) = make_study(tmp_path), observer(grace_s=10)
    trial = study.claim_trial()
    for _ in range(5):
        assert study.stale_trials(watching) == []
        now[0] += 8
        assert study.beat(trial)
    assert study.stale_trials(watching) == []
    now[0] += 10
    assert study.stale_trials(watching) == []
    now[0] += 0.1
    assert study.stale_trials(watching) == [trial]


def test_trial_whose_worker_ended_on_this_machine_is_shown_as_waiting(tmp_path):
    study = make_study(tmp_path)
    study.claim_trial()
    assert study.rows()[0].state == "running"
    code = (
        "import sys\nfrom pathlib import Path\nfrom surestep.tuning.open import read_study\n"
        "read_study(Path(sys.argv[1])).claim_trial()"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)
    row = study.rows()[1]
    assert (row.state, row.reason, row.run) == ("waiting", "its worker died", "0001")


def test_worker_that_died_before_its_first_heartbeat_is_found(tmp_path):
    study = make_study(tmp_path)
    assert die(study, study.claim_trial()) == [True]


def test_retry_has_one_winner(tmp_path, storage):
    folder = tmp_path / "study"
    trial = make_study(folder, storage).claim_trial()
    workers = [make_study(folder, storage) for _ in range(4)]
    start = threading.Barrier(4)

    def work(study):
        start.wait()
        won = study.retry(trial)
        return won, study.claim_trial()

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(work, workers))
    assert sum(won for won, _ in found) == 1
    assert sorted(claimed.number for _, claimed in found) == [0, 1, 2, 3]
    assert next(c.retries for _, c in found if c.number == 0) == 1
    assert [row.state for row in workers[0].rows()] == ["running"] * 4


def test_trial_fails_when_its_worker_died_four_times_without_a_new_checkpoint(tmp_path):
    study = make_study(tmp_path)
    for retries in range(MOST_RETRIES + 1):
        trial = study.claim_trial()
        assert (trial.number, trial.retries) == (0, retries)
        assert die(study, trial) == [True]
    (row,) = study.rows()
    assert (row.state, row.reason) == (
        *("failed", "its worker died 4 times without a new checkpoint"),
    )
    assert study.claim_trial().number == 1


def test_trial_that_trains_between_the_deaths_of_its_workers_is_resumed(tmp_path):
    study = make_study(tmp_path)
    retries = []
    for death in range(3 * MOST_RETRIES):
        trial = study.claim_trial()
        assert trial.number == 0
        retries.append(trial.retries)
        if death % 3 == 2:  # the first checkpoint after two deaths without one
            (tmp_path / "trials" / "0000" / "checkpoints" / f"step-{death:08d}").mkdir(parents=True)
        assert die(study, trial) == [True]
    assert retries == [0, 1, 2] * 3
    assert study.rows()[0].state == "waiting"


def test_last_death_after_a_new_checkpoint_does_not_fail_the_trial(tmp_path):
    study = make_study(tmp_path)
    for _ in range(MOST_RETRIES):
        die(study, study.claim_trial())
    trial = study.claim_trial()
    (tmp_path / "trials" / "0000" / "checkpoints" / "step-00000009").mkdir(parents=True)
    assert die(study, trial) == [True]
    assert study.claim_trial().retries == 0


def test_stopped_trial_is_resumed_first_and_does_not_count_as_dead(tmp_path):
    study = make_study(tmp_path)
    first, second = study.claim_trial(), study.claim_trial()
    for _ in range(MOST_RETRIES + 2):
        study.report(first, 1, 0.5)
        assert study.hand_back(first, "stopped by Ctrl-C")
        assert study.rows()[0].reason == "stopped by Ctrl-C"
        again = study.claim_trial()
        assert (again.number, again.params, again.retries) == (0, first.params, 0)
        first = again
    study.finish(second, [1.0])
    assert study.claim_trial().number == 2


def test_time_of_a_trial_is_that_of_all_its_processes(tmp_path):
    study = make_study(tmp_path)
    trial = study.claim_trial()
    assert study.hand_back(trial, "stopped by timeout", 3.0)
    assert study.rows()[0].seconds == 3.0
    trial = study.claim_trial()
    assert trial.seconds == 3.0
    assert die(study, trial) == [True]  # after a time that is not known
    trial = study.claim_trial()
    assert trial.seconds == 3.0
    study.finish(trial, [1.0], trial.seconds + 2.0)
    assert study.rows()[0].seconds == 5.0


def test_worker_killed_while_it_claims_loses_no_trial(tmp_path, monkeypatch):
    study = make_study(tmp_path)
    with monkeypatch.context() as patch:

        def interrupt(*_):
            raise KeyboardInterrupt

        patch.setattr("surestep.tuning.study.make_sampler", interrupt)
        with pytest.raises(KeyboardInterrupt):
            study.claim_trial()
    (row,) = study.rows()
    assert (row.state, row.params) == ("running", {})
    watching, now = observer()
    study.stale_trials(watching)
    now[0] += 61
    (stale,) = study.stale_trials(watching)
    assert study.retry(stale)
    assert [trial.number for trial in run_all(study)] == list(range(12))


@pytest.mark.parametrize(
    ("pruner", "sampler"),
    [
        ("halving:factor=2", "random"),
        ("hyperband:factor=2,max=4", "tpe"),
        ("median:warmup=0", "cmaes"),
    ],
)
def test_resumed_trial_counts_once_for_pruner_and_sampler(pruner, sampler, tmp_path):
    """A trial that stops after each evaluation reports all of them again when it is resumed."""

    def search(name, stops):
        study = make_study(tmp_path / name, pruner=pruner, sampler=sampler, trials=24, name="same")
        params, answers = [], []
        while (trial := study.claim_trial()) is not None:
            params.append(trial.params)
            value = float(trial.number * 7 % 24)
            for last in range(1, 5):
                if stops and last > 1:
                    study.hand_back(trial, "stopped")
                    trial = study.claim_trial()
                first = 1 if stops else last
                prunes = [study.report(trial, at, value + at) for at in range(first, last + 1)]
                answers.append(prunes[-1])
                if prunes[-1]:
                    study.prune(trial, "")
                    break
            else:
                study.finish(trial, [value])
        return params, answers

    plain = search("plain", stops=False)
    assert set(plain[1]) == {True, False}
    assert search("stopped", stops=True) == plain


def test_duplicate_of_two_workers_does_not_count(tmp_path, storage):
    study = make_study(tmp_path / "study", storage, trials=4)
    for _ in range(3):
        study._add_attempt(1, None)
    assert sorted(trial.number for trial in run_all(study)) == [0, 1, 2, 3]
    assert len(study.rows()) == 4
    assert len(study._study.trials) == 4


def test_trials_of_another_program_are_ignored(tmp_path):
    study = make_study(tmp_path, trials=3)
    study._study.add_trial(optuna.trial.create_trial(state=optuna.trial.TrialState.FAIL))
    assert [trial.number for trial in run_all(study)] == [0, 1, 2]
    assert [row.number for row in study.rows()] == [0, 1, 2]


def test_nan_fails_the_trial_and_infinity_does_not(tmp_path, storage):
    study = make_study(tmp_path / "study", storage)
    for value in (math.nan, math.inf):
        trial = study.claim_trial()
        assert study.report(trial, 1, value) in (True, False)
        assert study.finish(trial, [value], seconds=2.0)
    failed, finished = study.rows()
    assert (failed.state, failed.reason) == ("failed", "val/loss is NaN")
    assert (finished.state, finished.values) == ("finished", (math.inf,))
    assert study.claim_trial().number == 2


def test_failed_trial_keeps_its_reason_and_is_not_repeated(tmp_path):
    study = make_study(tmp_path)
    trial = study.claim_trial()
    assert study.fail(trial, "NonFiniteError: loss is nan", seconds=3.0)
    (row,) = study.rows()
    assert (row.state, row.reason) == ("failed", "NonFiniteError: loss is nan")
    assert row.seconds == 3.0
    assert study.claim_trial().number == 1


def test_point_that_was_tried_is_answered_from_its_record(tmp_path):
    space = {"b": "int(1, 2)", "name": ["x", "y"]}
    study = make_study(tmp_path / "study", space=space, sampler="random", trials=20)
    trained, answered = {}, []
    while (trial := study.claim_trial()) is not None:
        point = tuple(trial.params.values())
        if study.answer(trial):
            answered.append(trial.number)
            assert point in trained
            continue
        assert point not in trained
        trained[point] = trial.number
        for at in (1, 2):
            study.report(trial, at, trial.number + 1 / at)
        if trial.number % 2:
            study.prune(trial, "pruned by the search after step 6")
        else:
            study.finish(trial, [float(trial.number)], seconds=2.0)
    rows = study.rows()
    assert len(rows) == len(trained) + len(answered) == 20
    assert {rows[number].state for number in answered} == {"finished", "pruned"}
    for number in answered:
        row = rows[number]
        first = rows[trained[tuple(row.params.values())]]
        assert (row.state, row.values, row.intermediate) == (
            *(first.state, first.values, first.intermediate),
        )
        assert (row.same_as, row.run, row.seconds, row.evaluations) == (first.number, None, 0.0, 0)
        assert row.reason.startswith(f"same values as trial {first.number}")
    assert read_study(tmp_path / "study").rows() == rows


def test_point_whose_trial_failed_or_is_not_over_is_trained(tmp_path):
    study = make_study(tmp_path, space={"name": ["x", "y"]}, sampler="random", trials=9)
    for _ in range(4):
        trial = study.claim_trial()
        assert not study.answer(trial)
        study.fail(trial, "out of memory")
    running = study.claim_trial()
    assert not study.answer(study.claim_trial())
    study.hand_back(running, "stopped by Ctrl-C")
    assert not study.answer(study.claim_trial())


def test_study_that_does_not_exist_is_explained(tmp_path):
    with pytest.raises(RunError, match=r"There is no study in .*study\.json is missing"):
        read_study(tmp_path)


def test_lost_journal_is_not_started_again(tmp_path):
    study = make_study(tmp_path)
    run_all(study)
    (tmp_path / "trials" / "0000").mkdir(parents=True)
    (tmp_path / "study.log").unlink()
    for opened in (lambda: read_study(tmp_path), lambda: make_study(tmp_path)):
        with pytest.raises(RunError, match=r"study\.log is missing, and .*trials has runs"):
            opened()


def test_journal_that_lost_its_trials_is_not_continued(tmp_path):
    study = make_study(tmp_path)
    journal = tmp_path / "study.log"
    start = journal.read_bytes()
    run_all(study)
    (tmp_path / "trials" / "0001").mkdir(parents=True)
    for kept in (b"", start, start + b'{"op'):
        journal.write_bytes(kept)
        with pytest.raises(RunError, match=r"study\.log has no record of trial 0001, and .*trials"):
            read_study(tmp_path)
        assert journal.read_bytes() == kept
        with pytest.raises(RunError, match=r"study\.log has no record of trial 0001, and .*trials"):
            make_study(tmp_path)
        assert start.startswith(journal.read_bytes())


def test_other_storage_than_recorded_is_rejected(tmp_path):
    make_study(tmp_path / "study", f"sqlite:///{tmp_path}/one.db")
    with pytest.raises(ConfigError, match=r"stores its trials in sqlite:.*one\.db, and --storage"):
        read_study(tmp_path / "study", f"sqlite:///{tmp_path}/two.db")
    with pytest.raises(ConfigError, match=r"storage is 'sqlite:.*one\.db' in .*, and now not set"):
        make_study(tmp_path / "study")


def test_study_whose_storage_cannot_be_opened_is_not_recorded(tmp_path):
    for url in (f"sqlite:///{tmp_path}/missing/one.db", "sqlite:////dev/null/two.db"):
        with pytest.raises(RunError, match="cannot be opened"):
            make_study(tmp_path / "study", url)
    study = make_study(tmp_path / "study", trials=3, sampler="random")  # the corrected command
    assert len(run_all(study)) == 3
    (tmp_path / "study" / "study.log").rename(tmp_path / "study.log")
    (tmp_path / "study" / "study.log").symlink_to("elsewhere")
    with pytest.raises(RunError, match="cannot be opened"):
        make_study(tmp_path / "study", trials=3, sampler="random")
    assert (tmp_path / "study" / "study.json").exists()  # it was there before


def test_password_is_not_written(tmp_path, monkeypatch):
    opened = []
    monkeypatch.setattr(
        "surestep.tuning.open.open_storage",
        lambda _, url: opened.append(url) or optuna.storages.InMemoryStorage(),
    )
    url = "postgresql://me:sec%40ret@host/db?sslpassword=s3"
    study = make_study(tmp_path, url)
    assert opened == [url]
    assert study.settings.storage == "postgresql://me@host/db"
    text = (tmp_path / "study.json").read_text(encoding="utf-8")
    assert "sec" not in text
    assert "s3" not in text


def test_trials_are_claimed_without_torch(tmp_path):
    """A worker starts fast, and has no memory of a GPU; only the sampler gp imports torch."""
    code = (
        "import sys\nfrom pathlib import Path\nfrom tests.tuning.studies_on_disk import *\n"
        "assert len(run_all(make_study(Path(sys.argv[1]), trials=2))) == 2\n"
        "assert not {'torch', 'scipy', 'matplotlib'} & sys.modules.keys()"
    )
    subprocess.run([PYTHON, "-c", code, str(tmp_path)], check=True)


def run_workers(folder, storage, when, *writes):
    """Run processes, see `study_worker`; return what they print: the trials that they ended."""
    code = "from tests.tuning.study_worker import main; main()"
    words = [str(folder), storage or "", when, *map(str, writes)]
    command = [sys.executable, "-c", code, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return [int(line) for line in done.stdout.splitlines()]


@pytest.mark.slow("launches several processes")
def test_processes_claim_exactly_the_whole_number(tmp_path, storage):
    folder = tmp_path / "study"
    numbers = run_workers(folder, storage, "together", 0, 0, 0, 0)
    assert sorted(numbers) == list(range(20))
    assert [row.number for row in read_study(folder).rows()] == list(range(20))


@pytest.mark.slow("kills processes")
def test_killed_workers_lose_no_trial(tmp_path, storage):
    """Workers are killed at any of their writes; another one resumes their trials."""
    folder, writes = tmp_path / "study", (1, 2, 3, 4, 5, 6, 7, 8, 9, 10)
    ended = run_workers(folder, storage, "after", *writes)
    study = open_study(folder, make_settings(trials=20), storage)
    unfinished = {row.number for row in study.rows() if row.state in ("running", "waiting")}
    assert unfinished
    assert not unfinished & set(ended)
    watching, now = observer()
    study.stale_trials(watching)
    now[0] += 61
    for stale in study.stale_trials(watching):
        assert study.retry(stale)
    run_all(study)
    rows = study.rows()
    assert [row.number for row in rows] == list(range(20))
    assert {row.state for row in rows} <= {"finished", "pruned"}
