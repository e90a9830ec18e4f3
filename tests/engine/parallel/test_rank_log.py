import io
import sys
from contextlib import redirect_stderr

import pytest

import surestep
from surestep.base.errors import RunError
from surestep.engine.distributed.communicator import Communicator
from surestep.engine.distributed.rank_logging import TeeStream, print_all, rank_log
from tests import tiny

ALL = {"logging": {"ranks": "all"}}
SECOND = Communicator(rank=1, size=2)


class Fails(surestep.Callback):
    def on_step(self, state, result):
        raise ValueError("by hand")


class Full(io.StringIO):
    def write(self, text):
        raise OSError(28, "No space left on device")


def wrote(folder, rank=0):
    return (folder / "log" / f"rank-{rank:05d}.txt").read_text()


def test_an_error_stands_in_the_file_with_its_traceback(tmp_path):
    before = sys.stderr, sys.stdout
    with pytest.raises(ValueError, match="by hand"):
        surestep.Trainer(tiny.task(), tiny.config(**ALL), run=tmp_path, callbacks=[Fails()]).fit()
    assert (sys.stderr, sys.stdout) == before
    assert 'raise ValueError("by hand")' in wrote(tmp_path)


def test_an_error_that_was_there_before_is_not_told(tmp_path):
    try:
        raise ValueError("earlier")
    except ValueError:
        tiny.fit(tmp_path, **ALL)
    assert "earlier" not in wrote(tmp_path)


def test_a_quiet_run_shows_nothing_and_writes_its_lines(tmp_path, capsys):
    tiny.fit(tmp_path, **ALL)
    assert capsys.readouterr().err == ""
    assert "step 6/6  epoch 2  loss" in wrote(tmp_path)


def test_the_bar_is_shown_and_the_file_has_lines(tmp_path, capsys):
    tiny.fit(tmp_path, logging={"progress": "bar", "ranks": "all"})
    assert "6/6 [" in capsys.readouterr().err
    assert "6/6 [" not in wrote(tmp_path)
    assert "step 6/6  epoch 2  loss" in wrote(tmp_path)


def test_a_run_that_goes_on_appends(tmp_path):
    tiny.fit(tmp_path, **ALL)
    tiny.fit(tmp_path, **ALL)
    assert wrote(tmp_path).count("--- rank 0 of 1, ") == 2


def test_a_rank_that_is_not_the_first_prints_only_what_nobody_may_miss(tmp_path, capsys):
    with rank_log(tmp_path, SECOND, on=True):
        print("said", file=sys.stderr)
        print("answered")
        print_all("a rank hangs")
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("", "a rank hangs\n")
    assert wrote(tmp_path, 1).endswith("\nsaid\nanswered\na rank hangs\n")


def test_a_log_that_cannot_be_written_prints_instead():
    terminal = io.StringIO()
    with redirect_stderr(TeeStream(Full(), terminal, shows=False)):
        print("said", file=sys.stderr)
    assert terminal.getvalue() == (
        "A rank's log cannot be written: No space left on device.\nsaid\n"
    )


def test_a_file_in_the_way_of_the_folder_is_told(tmp_path):
    (tmp_path / "log").write_text("mine")
    with pytest.raises(RunError, match=r"log cannot be written: File exists\."):
        tiny.fit(tmp_path, **ALL)
