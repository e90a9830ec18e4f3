import logging
import math
import os
from contextlib import suppress
from types import SimpleNamespace

import pytest

from surestep.engine.state.state import Progress
from surestep.engine.step.log_point import LogPoint
from surestep.record.progress_display import (
    NullProgress,
    PlainProgress,
    TqdmProgress,
    format_numbers,
    open_progress,
)
from tests import tiny


def point(first=1, losses=(1.0, 2.0), norms=(3.0, 4.0), **more):
    usual = {
        **{"lr": [0.1] * len(losses), "logged": {}, "samples": 16, "items": 16.0},
        **{"seconds": 2.0, "data_wait_s": 0.5},
    }
    place = Progress(first)
    return LogPoint(first, 0, list(losses), list(norms), **{**usual, **more}, progress=place)


@pytest.mark.parametrize(
    ("name", "kind"), [("bar", TqdmProgress), ("plain", PlainProgress), ("quiet", NullProgress)]
)
def test_display_follows_the_plan(name, kind):
    progress = open_progress(tiny.plan(logging={"progress": name}).plan, start=0)
    assert type(progress) is kind
    progress.close()


def test_plain_display_ignores_a_pipe_without_a_reader():
    read, write = os.pipe()
    os.close(read)
    out = os.fdopen(write, "w")
    plain = PlainProgress(tiny.plan().plan, out=out)
    plain.print_line("one")
    plain.print_line("two")
    with suppress(BrokenPipeError):  # what was not written is flushed once more
        out.close()


def test_quiet_display_only_logs_messages(capsys, caplog):
    quiet = NullProgress()
    with caplog.at_level(logging.INFO, "surestep"):
        quiet.print_line("hello")
    quiet.on_log(None, point())
    quiet.close()
    assert capsys.readouterr().err == ""
    assert caplog.messages == ["hello"]


def test_plain_display_prints_a_line_and_then_waits(capsys):
    plain = PlainProgress(tiny.plan().plan, every_s=1000)
    plain.on_log(None, point(first=1))
    plain.on_log(None, point(first=3))
    assert capsys.readouterr().err.splitlines() == [
        "step 2/6  epoch 1  loss 1.5  lr 0.1  grad_norm 4  items/s 8"
    ]


@pytest.mark.parametrize(("every", "lines"), [("2 steps", 2), (None, 1)])
def test_plain_display_prints_every_log_point_of_a_set_interval(capsys, every, lines):
    logging = {} if every is None else {"logging": {"every": every}}
    plain = PlainProgress(tiny.plan(**logging).plan)
    plain.on_log(None, point(first=1))
    plain.on_log(None, point(first=3))
    assert len(capsys.readouterr().err.splitlines()) == lines


def test_plain_display_always_prints_the_last_step(capsys):
    plain = PlainProgress(tiny.plan().plan, every_s=1000)
    plain.on_log(None, point(first=1))
    plain.on_log(None, point(first=5))
    assert capsys.readouterr().err.splitlines()[-1].startswith("step 6/6")


def test_plain_display_marks_steps_after_the_planned_end(capsys):
    plain = PlainProgress(tiny.plan().plan)
    plain.on_log(None, point(first=plain.total))
    shown = capsys.readouterr().err
    assert shown.startswith(f"step {plain.total + 1}, after the {plain.total} of the run  loss 1.5")


def test_nothing_goes_to_stdout(tmp_path, capfd):
    for progress in ("bar", "plain", "quiet"):
        parts = {"val": tiny.data(4)}
        tiny.fit(tmp_path / progress, parts, logging={"progress": progress})
    assert capfd.readouterr().out == ""


def test_bar_starts_at_the_resumed_step_and_ends_at_the_last(capsys):
    bar = TqdmProgress(tiny.plan().plan, start=2, every_s=0)
    assert bar._bar.n == 2
    for _ in range(4):
        bar.on_step(None, None)
    bar.on_log(None, point())
    bar.print_line("a line")
    bar.close()
    assert bar._bar.n == 6
    shown = capsys.readouterr().err
    assert "6/6" in shown
    assert "a line\n" in shown


def test_closed_bar_shows_every_step(capsys):
    bar = TqdmProgress(tiny.plan().plan, start=0, every_s=1000)
    for _ in range(5):
        bar.on_step(None, None)
    bar.close()
    assert bar._bar.n == 5


def test_bar_after_a_rollback_counts_from_the_step_that_it_returned_to(capsys):
    bar = TqdmProgress(tiny.plan().plan, start=0, every_s=1000)
    for _ in range(5):  # too soon after the start to be shown
        bar.on_step(None, None)
    bar.on_rollback(SimpleNamespace(progress=SimpleNamespace(step=2)))
    assert bar._bar.n == 2
    for _ in range(4):
        bar.on_step(None, None)
    bar.close()
    assert bar._bar.n == 6
    assert "6/6" in capsys.readouterr().err


def test_unknown_number_is_shown_as_unknown():
    shown = format_numbers(point(losses=[None, None], norms=[None, None]))
    assert (shown["loss"], shown["grad_norm"]) == ("not known", "not known")
    assert format_numbers(point(losses=[None, 3.0, math.nan, 5.0]))["loss"] == "4"
    assert format_numbers(point(norms=[3.0, None], lr=[0.5, 0.25])) == {
        **{"loss": "1.5", "lr": "0.25", "grad_norm": "3", "items/s": "8"}
    }


def test_unknown_speed_is_not_shown_as_zero():
    assert format_numbers(point(seconds=0.0))["items/s"] == "not known"
