"""Law 1 if a rank has no items in the first batch: the run equals one process."""

from pathlib import Path

import pytest

from tests.multi_rank.checks import check_copies, check_losses, check_weights
from tests.multi_rank.first_batches import CASES, IN_TRAINING, ON_RANKS, REFUSED, skipped
from tests.multi_rank.starter import start
from tests.multi_rank.torchrun import check_ended_well, results_of


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """Return the results of two ranks, all cases in one launch."""
    folder: Path = tmp_path_factory.mktemp("ranks")
    check_ended_well(start("launcher", folder, "2", "first_batches"))
    return results_of(folder, 2)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    folder = tmp_path_factory.mktemp("one")
    return {name: case(folder / name) for name, case in CASES.items()}


@pytest.mark.parametrize("name", ON_RANKS)
def test_ranks_without_items_in_the_first_batch_train_as_one_process(both, alone, name):
    ranks, one = [each[name] for each in both], alone[name.removesuffix(", fsdp")]
    check_weights(one, ranks, 1e-6)
    check_copies(ranks)
    check_losses(one, ranks)
    for each in ranks:
        assert each["metrics"] == pytest.approx(one["metrics"], rel=1e-5)


def test_fully_ignored_first_batch_changes_nothing(alone):
    assert alone["every rank"]["place"][:2] == (8, 6)  # steps, and steps taken


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_tensor_that_no_optimizer_has_is_named_on_every_rank(both, strategy):
    for each in both:
        assert each[f"unheld, {strategy}, False"].startswith("In step 1, loss:scale, a parameter")
        replaced = each[f"unheld, {strategy}, True"]
        assert replaced.startswith("In step 3, model.2.weight, a parameter, replaced after step 2")


@pytest.mark.parametrize("name", IN_TRAINING)
def test_loss_in_training_is_checked_on_every_rank(both, name):
    text = "is not a mean over its items: for " if "sum" in name else "accepted"
    assert all(text in rank[name] for rank in both)


def test_data_without_items_is_rejected_on_every_rank(both, tmp_path):
    found = REFUSED["all ignored"](tmp_path)
    assert (
        "DataError: The first batches have no items (up to 16 were read): every target is" in found
    )
    for each in both:
        assert each["all ignored"] == found


def test_batch_norm_with_one_sample_on_a_rank_is_rejected_on_every_rank(both):
    for each in both:
        assert (
            "the last batch of an epoch (1 sample) has a micro-batch of one sample on rank 0"
            in (each["one sample at the end"])
        )
        assert (
            "every batch has a micro-batch of one sample on rank 0. Use batch_size=6"
            in (each["one sample a rank"])
        )


@pytest.mark.parametrize("name", ["skipped", "skipped, fsdp"])
def test_step_that_ranks_skip_records_all_its_samples(both, tmp_path, name):
    assert skipped(tmp_path)["skipped"] == [35, 38]
    first, _ = both  # the other rank may read the events before rank 0 writes them
    assert {35, 38} < set(first[name]["skipped"])
