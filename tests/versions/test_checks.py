"""The checks that run with each release of torch, without installing one."""

from pathlib import Path

import pytest

from tests.versions import __main__ as versions
from tests.versions.checks import CheckError, Place, run_move
from tests.versions.moved import STEPS, continue_run


@pytest.fixture(autouse=True)
def run_here(monkeypatch):
    def run(self, *words):
        assert words[:2] == ("-m", "tests.versions.moved")
        return f"{continue_run(Path(words[2]), int(words[3]))}\n"

    monkeypatch.setattr(Place, "run", run)


def test_first_release_has_no_row_above_and_the_others_resume_its_run(tmp_path):
    places = [Place(Path("python"), tmp_path, tmp_path, row=row) for row in range(3)]
    assert [run_move(place) for place in places] == ["-", None, None]
    newest = max(path.name for path in tmp_path.glob("moved/checkpoints/step-*"))
    assert int(newest.removeprefix("step-")) == 3 * STEPS


def test_release_without_a_checkpoint_of_the_row_above_fails(tmp_path):
    run_move(Place(Path("python"), tmp_path, tmp_path))
    for row in (0, 2):
        with pytest.raises(CheckError, match="newest checkpoint is that of step 4"):
            run_move(Place(Path("python"), tmp_path, tmp_path, row=row))


def test_row_of_the_first_release_says_that_nothing_was_resumed(monkeypatch, tmp_path):
    checks = {"move": run_move}
    monkeypatch.setattr(versions, "CHECKS", checks)
    rows = [versions.check_release(Path("python"), tmp_path, row) for row in range(2)]
    assert rows == [{"move": "-"}, {"move": "yes"}]
