import pytest

from surestep.base.errors import RunError
from surestep.tuning.finish import Winner
from surestep.tuning.search import SearchResult
from tests.tuning.studies import ACCURACY, make_rows, make_study

TWO = (*ACCURACY, ("seconds", "min"))


def result(rows=(), winner=None, objectives=ACCURACY):
    study = make_study(list(rows), objectives=objectives)
    return SearchResult(study, tuple(rows), winner, "", None, None)


def test_best_trial_is_the_winner():
    winner = Winner(1, {"optim.lr": 0.01}, {"val/accuracy": 0.9}, None)
    assert result(make_rows(3), winner).best is winner


def test_search_without_a_finished_trial_has_no_best():
    failed = [row for row in make_rows(12) if row.state == "failed"]
    with pytest.raises(RunError, match=r"because none finished: failed\. Run the same call again"):
        result(failed).best  # noqa: B018
    with pytest.raises(RunError, match="because none finished: none was started"):
        result().best  # noqa: B018


def test_search_with_several_objectives_has_no_best():
    with pytest.raises(RunError, match=r"has several objectives.* Use \.trials"):
        result(make_rows(3), objectives=TWO).best  # noqa: B018
    assert "best: none" in repr(result(make_rows(3), objectives=TWO))
