"""Metrics over a full set, and predictions, are the same on any number of ranks."""

import json

import pytest

from surestep.engine.metrics import row_buffer
from surestep.record.predictions import read_predictions
from tests.multi_rank.starter import start
from tests.multi_rank.torchrun import check_ended_well
from tests.multi_rank.whole_set_metrics import all_cases


@pytest.fixture(scope="module")
def one_folder(tmp_path_factory):
    return tmp_path_factory.mktemp("one")


@pytest.fixture(scope="module")
def one(one_folder):
    limit = row_buffer.LIMIT
    try:
        return all_cases(one_folder)
    finally:
        row_buffer.LIMIT = limit


@pytest.fixture(scope="module", params=[2, 4])
def ranks_folder(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    check_ended_well(start("launcher", folder, str(request.param), "whole_set_metrics"))
    return folder


@pytest.fixture(scope="module")
def ranks(ranks_folder):
    files = sorted(ranks_folder.glob("rank-*.json"))
    return [json.loads(each.read_text(encoding="utf-8")) for each in files]


@pytest.mark.parametrize("case", ["size 1", "size 10", "size 200", "on disk"])
def test_ranks_and_one_process_report_the_same(one, ranks, case):
    assert one["size 1"]["many/at_rows"] == 103
    for each in ranks:
        found, expected = dict(each[case]), dict(one["size 1"])
        for name in ("many", "few"):
            assert found.pop(f"{name}/at_targets") == expected.pop(f"{name}/at_targets")
        assert found == pytest.approx(expected, rel=1e-5)


def test_all_ranks_raise_what_the_function_raises(one, ranks):
    assert "fails on all 103 rows" in one["fails"]
    assert "ValueError: 103 samples" in one["fails"]
    assert [each["fails"] for each in ranks] == [one["fails"]] * len(ranks)


@pytest.mark.parametrize("kind", ["classes", "numbers"])
def test_ranks_collect_the_predictions_of_one_process(one, one_folder, ranks_folder, kind):
    (expected,), (found,) = (
        read_predictions(folder / kind)["evaluations"] for folder in (one_folder, ranks_folder)
    )
    assert [one["n_samples"] for one in expected["sets"]] == [103, 3]
    assert [one["kind"] for one in expected["sets"]] == [kind, kind]
    assert found == expected
