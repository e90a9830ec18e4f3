"""Your own loop reports the set options that only `fit()` acts on."""

import pytest

import surestep
from surestep.base.errors import RunError
from surestep.record.run import Run
from surestep.trainer.own_loop import describe_ignored
from tests import tiny
from tests.tiny import data

X, Y = data()
ALL = {
    "validation": {"every": "1 epoch", "on_start": True},
    "checkpoint": {"every": "2 steps"},
    "early_stop": {"patience": 3},
    "max_time": "60 minutes",
}
OFF = {"validation": {"every": None, "on_start": False}, "checkpoint": {"every": None}}


def notices(path):
    return [event["text"] for event in Run(path).events() if event["event"] == "notice"]


def test_own_loop_reports_once_what_only_fit_acts_on(tmp_path, capsys):
    with tiny.prepare(tmp_path, {"val": (X, Y)}, logging={"progress": "plain"}, **ALL) as session:
        assert "Trainer.fit()" not in capsys.readouterr().out
        next(session.steps())
        printed = capsys.readouterr()
        list(session.steps())
        session.train_step([(X[:8], Y[:8])])
    (text,) = notices(tmp_path)
    assert text in printed.out + printed.err
    assert text.startswith(
        "Your own loop ignores validation.every, validation.on_start, checkpoint.every, "
        "early_stop.patience: only Trainer.fit() acts on them. Call session.evaluate() "
        "and session.save() in the loop, or use Trainer.fit(). To stop early, leave the loop if "
        "session.state.best.since_best is 3 after session.evaluate(). "
    )
    assert "max_time ends a loop over session.steps() without saving" in text


def test_step_on_own_batches_reports_it_too(tmp_path):
    with tiny.prepare(tmp_path, checkpoint={"every": "1 epoch"}) as session:
        session.train_step([(X[:8], Y[:8])])
    assert notices(tmp_path) == [
        "Your own loop ignores checkpoint.every: only Trainer.fit() acts on it. Call "
        "session.save() in the loop, or use Trainer.fit()."
    ]


@pytest.mark.parametrize("options", [{}, OFF])
def test_options_that_are_off_or_not_set_are_not_reported(tmp_path, options):
    with tiny.prepare(tmp_path, {"val": (X, Y)}, **options) as session:
        list(session.steps())
    assert notices(tmp_path) == []


def test_fit_reports_nothing_since_it_acts_on_all(tmp_path):
    task, config = tiny.task(val=(X, Y)), tiny.config(**ALL)
    assert describe_ignored(config)
    run = surestep.Trainer(task, config, run=tmp_path).fit()
    assert notices(tmp_path) == []
    assert run.last.step == 6


def test_finished_run_reports_nothing(tmp_path):
    for _ in range(2):
        with tiny.prepare(tmp_path, checkpoint={"every": "1 epoch"}) as session:
            list(session.steps())
            if not session.finished:
                session.save()
    assert len(notices(tmp_path)) == 1


def test_script_whose_train_step_goes_beyond_the_last_step_runs_again(tmp_path):
    def run_script():
        """Run the loop of the README."""
        with tiny.prepare(tmp_path, {"val": (X, Y)}, epochs=2) as session:
            for result in session.steps():
                if result.step % 3 == 0:
                    session.evaluate()
                    session.save()
                    break
            for _ in session.steps():
                pass
            session.train_step([(X[:5], Y[:5]), (X[5:8], Y[5:8])])
            session.save()
            return session.state.progress.step

    assert [run_script() for _ in range(3)] == [7, 8, 9]
    with pytest.raises(RunError, match="it is at step 9 already"):
        tiny.prepare(tmp_path, {"val": (X, Y)}, epochs=1)
