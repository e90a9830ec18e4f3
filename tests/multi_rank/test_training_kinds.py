"""Kinds of training on several ranks equal those in one process."""

import shutil

import pytest
import torch
from torch import nn

from tests.multi_rank.cases import data, trained
from tests.multi_rank.checks import distance, same
from tests.multi_rank.counting import counting
from tests.multi_rank.on_four import on_ranks
from tests.multi_rank.training_kinds import KINDS, resume_stream

TOLERANCE = {"lbfgs": 1e-12}  # in fp64, because the line search amplifies rounding
TURNS = ("WGAN-GP", "actor-critic")


@pytest.mark.parametrize(("ranks", "name"), on_ranks(KINDS), indirect=["ranks"])
def test_ranks_end_with_the_weights_of_one_process(one, ranks, name):
    for each in ranks:
        assert distance(one[name]["weights"], each[name]["weights"]) <= TOLERANCE.get(name, 1e-6)
        assert each[name]["place"] == one[name]["place"]
        assert same(ranks[0][name]["weights"], each[name]["weights"])


@pytest.mark.parametrize(("ranks", "name"), on_ranks(KINDS), indirect=["ranks"])
def test_losses_and_metrics_are_those_of_the_full_batch(one, ranks, name):
    for each in ranks:
        assert each[name]["losses"] == pytest.approx(one[name]["losses"], rel=1e-4)
        assert each[name]["metrics"] == pytest.approx(one[name]["metrics"], rel=1e-5)


@pytest.mark.parametrize(("ranks", "name"), on_ranks([*TURNS, "logs"]), indirect=["ranks"])
def test_logged_values_are_those_of_the_full_batch(one, ranks, name):
    alone, first = one[name]["told"], ranks[0][name]["told"]
    assert any(each["logged"] for each in alone)
    for a, b in zip(alone, first, strict=True):
        assert a["logged"].keys() == b["logged"].keys()
        for key, values in a["logged"].items():
            assert b["logged"][key] == pytest.approx(values, rel=1e-4, abs=1e-6)
        assert set(a) > {"loss", "grad_norm", "lr", "items", "samples"}
        for key in a.keys() - {"logged"}:
            assert b[key] == pytest.approx(a[key], rel=1e-4, abs=1e-6)


def test_all_ranks_log_and_save_by_the_clock_of_rank_0(two):
    logged = two[0]["clock"]["logged"]
    assert 3 < len(logged) < 10
    assert all(each["clock"]["logged"] == logged for each in two)


def test_all_ranks_roll_back_once(one, two):
    assert one["rollback"]["back"] == 1
    assert all(each["rollback"]["back"] == 1 for each in two)
    assert two[0]["rollback"]["saved"] == one["rollback"]["saved"]
    assert one["rollback"]["saved"][0] == 0  # before the first step


def test_all_ranks_of_a_fork_use_its_own_best_metric(one, two):
    assert all(each["branch"]["begun"] == 8 for each in [one, *two])


def test_stream_that_splits_itself_by_rank_is_rejected_on_all_ranks(two):
    for each in two:
        assert "data.first samples: " in each["split stream"]
        assert "split_by_node" in each["split stream"]


def test_ranks_that_step_different_optimizers_get_an_error(two):
    for each in two:
        assert "Decide by manual_step.index" in each["another step"]


def test_run_over_a_stream_resumes_with_the_same_ranks_bit_for_bit(ranks):
    for each in ranks:
        assert same(each["own state"]["weights"], each["own state, gone on"]["weights"])


def test_run_over_a_stream_resumes_with_a_different_number_of_ranks(one, ranks, launch, tmp_path):
    shutil.copytree(launch(len(ranks)) / "half of a stream", tmp_path / "half")
    found = resume_stream(tmp_path / "half")
    assert distance(one["own state"]["weights"], found["weights"]) <= 1e-6
    for each in ranks:
        there = each["stream begun by one"]
        assert distance(one["own state"]["weights"], there["weights"]) <= 1e-6
        assert there["losses"] == pytest.approx(one["own state"]["losses"][8:], rel=1e-4)


def test_metric_objects_are_exact_over_ranks(one, ranks):
    for each in ranks:
        for name, samples in (("many", 103), ("few", 3)):
            table = each["measured"]["tables"][name]
            assert table.sum() == samples
            assert torch.equal(table, one["measured"]["tables"][name])


def test_predictions_are_in_the_order_of_the_data_on_each_rank(one, ranks):
    for each in ranks:
        for name, samples in (("many", 103), ("few", 3)):
            rows = each["measured"]["predicted"][name]
            assert len(rows) == samples
            assert torch.allclose(rows, one["measured"]["predicted"][name], atol=1e-6)


@pytest.mark.parametrize(
    ("name", "words"),
    [("mean of means", "the state 'mean' of Averaged"), ("own metric", "is a Own")],
)
def test_metric_that_ranks_cannot_combine_is_rejected(two, name, words):
    for each in two:
        assert words in each[name]
        assert "returns (sum, count)" in each[name]


def test_all_ranks_evaluate_with_the_saved_statistics(two):
    for each in two:
        found = each["batch norm"]
        assert same(two[0]["batch norm"]["weights"], found["weights"])
        assert torch.equal(two[0]["batch norm"]["predicted"], found["predicted"])
        loss = nn.functional.cross_entropy(found["predicted"], data()[1])
        assert found["metrics"]["val/loss"] == pytest.approx(float(loss), rel=1e-6)


def test_ranks_that_change_attributes_differently_are_warned_by_name(two):
    """They differ after some steps; a list that the training changes is not saved."""
    text = "The steps change the attributes model.n differently on each rank."
    assert [text in shown for shown in two[0]["differing counters"]["warnings"]].count(True) == 1
    assert not two[1]["differing counters"]["warnings"]
    assert [
        "depend on model.means, which a step changes" in notice
        for notice in two[0]["differing counters"]["notices"]
    ].count(True) == 1


def test_attributes_of_two_ranks_are_resumed_in_one_process(one, launch, tmp_path):
    shutil.copytree(launch(2) / "half of counters", tmp_path / "half")
    found = trained(tmp_path / "half", counting())
    assert distance(one["counters"]["weights"], found["weights"]) <= 1e-6
