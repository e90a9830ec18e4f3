"""Norms and histograms by layer of several ranks equal those of one process."""

import pytest

from surestep.record.run import Run
from tests.multi_rank.layer_records import STRATEGIES, train
from tests.multi_rank.starter import start
from tests.multi_rank.torchrun import check_ended_well


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    folder = tmp_path_factory.mktemp("one") / "run"
    train(folder)
    return folder


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    check_ended_well(start("launcher", folder, "2", "layer_records"))
    return folder


def events(folder, kind):
    return [event for event in Run(folder).events() if event["event"] == kind]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_norms_by_layer_equal_those_of_one_process(one, ranks, strategy):
    expected = [event["layers"] for event in events(one, "steps")]
    found = [event["layers"] for event in events(ranks / strategy, "steps")]
    assert [each["step"] for each in found] == [each["step"] for each in expected] == [4, 6, 8, 12]
    for mine, theirs in zip(found, expected, strict=True):
        for kind in ("grad_norm", "weight_norm", "update_norm"):
            assert mine[kind] == pytest.approx(theirs[kind], rel=1e-9)
        assert mine["grad_norm"].keys() == {"0", "2"}


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_histograms_equal_those_of_one_process(one, ranks, strategy):
    expected, found = events(one, "histograms"), events(ranks / strategy, "histograms")
    assert [event["step"] for event in found] == [4, 8, 12]
    for mine, theirs in zip(found, expected, strict=True):
        for kind in ("weights", "gradients"):
            for layer, histogram in theirs[kind].items():
                assert mine[kind][layer]["counts"] == histogram["counts"]
                for name in ("min", "max", "sum", "sum_squares"):
                    assert mine[kind][layer][name] == pytest.approx(histogram[name], rel=1e-9)
