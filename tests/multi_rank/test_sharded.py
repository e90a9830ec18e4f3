"""Options and kinds of training on shards equal those in one process."""

from typing import Any

import pytest

from tests.multi_rank.checks import distance
from tests.multi_rank.sharded_kinds import shards
from tests.multi_rank.torchrun import results_of


def of_all(launch, ranks: int, cut: str, kind: str) -> list[dict[str, Any]]:
    return [each["sharded", cut, kind] for each in results_of(launch(ranks), ranks)]


@pytest.mark.parametrize(
    ("ranks", "cut", "kind"), [(n, *each) for n in (2, 4) for each in shards(n)]
)
def test_kind_of_training_on_shards_equals_full_parameters(one, launch, ranks, cut, kind):
    alone = one["sharded", kind]
    for each in of_all(launch, ranks, cut, kind):
        assert distance(alone["weights"], each["weights"]) <= 1e-6
        assert each["place"] == alone["place"]
        assert each.get("metrics", {}) == pytest.approx(alone.get("metrics", {}), rel=1e-5)
        assert each.get("back") == alone.get("back")
        assert (each.get("saved", 9) > 2) is (alone.get("saved", 9) > 2) is True


@pytest.mark.parametrize("cut", ["full", "grad_op"])
def test_computation_of_a_block_is_compiled(launch, cut):
    """One of two blocks shares a weight and is not wrapped; the other has three operations."""
    for each in of_all(launch, 2, cut, "compiled"):
        assert each["blocks"] == 1
        assert each["operations"] >= 3


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_parameters_that_code_freezes_are_rejected_by_name_under_zero(launch, stage):
    for each in results_of(launch(2), 2):
        assert each[f"zero-{stage} frozen"]["error"].startswith(
            "0.weight, 0.bias got requires_grad=False during the run, and ZeRO would still update"
        )


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_layer_that_code_replaces_is_named_under_zero(launch, stage):
    for each in results_of(launch(2), 2):
        assert each[f"zero-{stage} unheld"].startswith("In step 3, model.2.")
