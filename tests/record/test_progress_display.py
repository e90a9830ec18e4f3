import logging
import math
import os
import pty
import re
import sys
import termios
from contextlib import suppress
from functools import partial
from types import SimpleNamespace

import pytest
from tqdm.auto import tqdm

from surestep.engine.state.state import Progress
from surestep.engine.step.log_point import LogPoint
from surestep.record import progress_display
from surestep.record.progress_display import (
    LossTrend,
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


@pytest.mark.parametrize(
    ("losses", "shown"),
    [
        ([3.0], ""),  # one value has no trend
        ([2.0, 2.0], "▅▅"),
        ([9.0, 2.0, 5.5, 0.0], "█▃▅▁"),
        ([1e-3, 1e-2, 1e-1, 1.0, 1e-4], "▃▅▆█▁"),  # logarithmic, as all are above 0
        ([float(loss) for loss in range(12)], "▁▂▂▃▄▄▅▅▆▇▇█"),
        # From the 13th on, a character is the mean of two, from the 25th on of four.
        ([0.0, 7.0] * 7, "▅▅▅▅▅▅▅"),
        ([0.0] * 12 + [7.0] * 12 + [3.5], "▁▁▁███▅"),
        ([1e308, -1e308, 1e308], ""),  # the difference is infinite
        ([1.0, *[1e308] * 13], ""),  # the sum is
    ],
)
def test_trend_has_the_means_of_all_losses(losses, shown):
    trend = LossTrend()
    for loss in losses:
        trend.add(loss)
    assert str(trend) == shown


def read_terminal(number):
    """Return what was printed to a terminal whose other end is closed."""
    parts = []
    with suppress(OSError):
        while part := os.read(number, 65536):
            parts.append(part)
    return b"".join(parts).decode()


@pytest.fixture
def train(monkeypatch):
    """Show three log points on a terminal; return its lines."""

    def show(columns, encoding="utf-8"):
        own, other = pty.openpty()
        termios.tcsetwinsize(other, (24, columns + 1))  # tqdm leaves the last one empty
        with os.fdopen(other, "w", encoding=encoding) as terminal, monkeypatch.context() as patch:
            patch.setattr(sys, "stderr", terminal)
            show_losses()
        shown = read_terminal(own)
        os.close(own)
        return re.split(r"[\r\n]+", shown.strip())

    return show


def show_losses():
    bar = TqdmProgress(tiny.plan().plan, start=0, every_s=0)
    for loss in (3.0, 2.0, 1.0):
        bar.on_log(None, point(losses=[loss, loss]))
        bar.on_step(None, None)
    bar.close()


def test_bar_has_the_trend_of_the_loss_where_it_fits(train):
    shown = {}
    for columns in (20, 50, 75, 86, 107, 109, 110, 113, 120, 140, 189):
        lines = train(columns)
        assert max(map(len, lines)) <= columns
        shown[columns] = "loss=1 █▅▁" in lines[-1]
        if shown[columns]:  # there is still a bar, and nothing is cut off
            assert len(re.search(r"\|(.*)\|", lines[-1])[1]) >= 10
            assert lines[-1].endswith("]")
        assert ("grad_norm=4, items/s=8" in lines[-1]) is (columns >= 110)
    assert [shown[columns] for columns in (50, 86, 107, 113, 140)] == [
        *(False, True, True, True, True)
    ]


def test_trend_is_for_terminals_that_can_show_it(train, capsys):
    assert "█▅▁" in train(150)[-1]
    ascii_only = "".join(train(150, encoding="ascii"))
    assert ascii_only.isascii()
    assert "loss=1, lr=0.1" in ascii_only
    show_losses()
    assert not set("█▅▁") & set(re.sub(r"\|.*\|", "", capsys.readouterr().err))


def test_trend_has_no_colors_and_leaves_out_losses_that_are_not_finite(train, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    assert not re.search(r"\x1b\[[0-9;]*m", "".join(train(150)))
    bar = TqdmProgress(tiny.plan().plan, start=0)
    for losses in ([1.0], [math.nan], [None], [2.0]):
        bar.on_log(None, point(losses=losses, norms=[1.0]))
    bar.close()
    assert str(bar.trend) == "▁█"


def test_bar_that_tqdm_disables_shows_nothing(monkeypatch, capsys):
    """The environment variable TQDM_DISABLE does so."""
    monkeypatch.setattr(progress_display, "tqdm", partial(tqdm, disable=True))
    bar = TqdmProgress(tiny.plan().plan, start=0, every_s=0)
    bar.on_step(None, None)
    bar.on_log(None, point())
    bar.on_rollback(SimpleNamespace(progress=SimpleNamespace(step=2)))
    with bar.show_transfer("mirror") as show:
        show(1, 2)
    bar.print_line("a line")
    bar.close()
    assert capsys.readouterr().err == "a line\n"
