"""`surestep plot`, and `--follow` of it and of `surestep runs`."""

import math
import sys
from types import SimpleNamespace

import pytest

from surestep.cli import follow
from surestep.record.run import Run
from tests.cli.test_diagnose import evaluation, trained, write_events  # noqa: F401

LOSSES = [2.0 / (step + 1) for step in range(200)]


@pytest.fixture
def run(trained):  # noqa: F811
    """A run of 200 steps, with a spike of one step, and two evaluations."""
    losses = [*LOSSES[:123], 50.0, *LOSSES[124:]]
    write_events(trained, losses, after=[evaluation(100, 0.5), evaluation(200, 0.25)])
    return trained


def drawn(surestep, *words):
    answer = surestep("plot", *words)
    assert answer.code == 0, answer.err
    return [line.strip() for line in answer.out.splitlines()]  # without the frame


def test_charts_have_the_numbers_of_the_run(run, surestep):
    lines = drawn(surestep)  # the newest run
    assert [line for line in lines if line.isalpha()] == ["loss", "lr"]
    assert "⣀⡠ train/loss: 0.01 at step 200, lowest 0.01 at 200, highest 50 at 124" in lines
    assert "o val/loss: 0.25 at step 200, lowest 0.25 at 200, highest 0.5 at 100" in lines
    assert "⣀⡠ lr: 0.001 at step 200, lowest 0.001 at 1, highest 0.001 at 1" in lines
    (top,) = [line for line in lines if line.startswith("50 ")]
    assert any("\u2801" <= mark <= "\u28ff" for mark in top)  # the spike
    (constant,) = [line for line in lines if line.startswith("0.001 ")]
    assert len(constant) > 60


def test_one_step_and_one_value_have_true_axes(run, surestep):
    write_events(run, [0.16])
    lines = drawn(surestep, "runs/good", "--height", 6)
    assert [line.split()[0] for line in lines if line[:2] == "0."] == ["0.16", "0.001"]
    assert [line for line in lines if line.isdigit()] == ["1", "1"]


def test_values_of_a_logarithmic_axis_are_above_zero(run, surestep):
    write_events(run, [100.0, 0.0, -1.0, 1.0, math.nan, math.inf])
    lines = drawn(surestep, "runs/good", "--log", "--of", "train/loss")
    text = "\n".join(lines)
    assert "2 values not finite, 2 values not above 0" in text
    assert "lowest -1 at 3, highest 100 at 1" in text
    ticks = [line.split()[0] for line in lines if line[:1].isdigit()]
    assert ticks == ["100", "31.62", "10", "3.162", "1", "1"]  # and the first step


def test_runs_are_drawn_over_one_another(run, surestep, folder):
    write_events(run, [1.0, 2.0])
    (folder / "other").mkdir()
    for name in ("config.json", "status.json", "events.jsonl"):
        (folder / "other" / name).write_bytes((run / name).read_bytes())
    write_events(folder / "other", [3.0, 4.0, 5.0])
    lines = drawn(surestep, "runs/good", "other", "--of", "train/loss", "--width", 60)
    assert lines[0] == "train/loss"
    assert "runs/good train/loss: 2 at step 2" in lines[1]
    assert "other train/loss: 5 at step 3" in lines[2]
    assert all(len(line) <= 60 for line in lines[3:])


def test_many_metrics_are_named_and_not_drawn(run, surestep):
    metrics = {f"val/m{number:02}": 1.0 for number in range(20)}
    write_events(run, [1.0], after=[{**evaluation(1, 0.5), "metrics": metrics}])
    text = "\n".join(drawn(surestep, "runs/good", "--height", 6))
    assert "10 more charts: --of " in text


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--of", "val/los"], 2, "No run has a column 'val/los'. Did you mean 'val/loss'"),
        (["--width", 10], 2, "A chart of 10 x 16 is too small. Pass --width 40 or more"),
        (["--follow"], 2, "the output is none. Leave it out."),
        (["runs/gone"], 1, "There is no run folder runs/gone"),
    ],
)
def test_wrong_words_are_explained(run, surestep, words, code, message):
    answer = surestep("plot", "runs/good", *words)
    assert answer.code == code
    assert message in answer.err


def test_run_without_steps_is_explained(run, surestep):
    write_events(run, [])
    answer = surestep("plot", "runs/good")
    assert (answer.code, answer.out) == (1, "")
    assert "runs/good has no steps and no evaluations yet." in answer.err


@pytest.fixture
def terminal(monkeypatch):
    """A terminal, and a list of what is to happen instead of each pause."""
    events = []
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    clock = SimpleNamespace(sleep=lambda _: events.pop(0)(), perf_counter=lambda: 0.0)
    monkeypatch.setattr(follow, "time", clock)
    return events


def test_follow_draws_what_is_recorded_until_the_run_ends(terminal):
    shown, state = [], {"stamp": 1, "over": False}
    terminal += [
        lambda: None,  # nothing new: not drawn again
        lambda: state.update(stamp=2),
        lambda: state.update(stamp=3, over=True),
    ]
    follow.follow(
        lambda: shown.append(state["stamp"]) or "", lambda: state["stamp"], lambda: state["over"]
    )
    assert shown == [1, 2, 3]
    assert terminal == []


def test_ctrl_c_ends_following(terminal):
    def interrupt():
        raise KeyboardInterrupt

    terminal.append(interrupt)
    follow.follow(lambda: "", lambda: 1, lambda: False)


def test_following_a_finished_run_draws_it_once(run, surestep, monkeypatch, terminal):
    assert Run(run).status["status"] == "finished"
    monkeypatch.setattr("surestep.cli.plot.sys", SimpleNamespace(stdout=Terminal()))
    monkeypatch.setattr("surestep.cli.follow.sys", SimpleNamespace(stdout=Terminal()))
    answer = surestep("plot", "runs/good", "--follow", "--width", 60)
    assert answer.code == 0, answer.err
    assert answer.out.count("train/loss") == 1
    assert "\x1b[38;5;33m" in answer.out
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[38;5;" not in surestep("plot", "runs/good", "--width", 60).out


class Terminal:
    """A terminal of 80 columns."""

    def isatty(self):
        return True


def test_follow_of_runs_excludes_other_forms(run, surestep):
    answer = surestep("runs", "--follow", "--json")
    assert "--delete, --follow, --csv and --json exclude each other" in answer.err
    assert "the output is none" in surestep("runs", "--follow").err
