import pytest
import torch
import torchmetrics

from surestep.base.errors import TaskError
from surestep.engine.distributed.communicator import ALONE
from surestep.engine.metrics.base import check_metrics_of_ranks, sync_metrics
from tests.multi_rank.training_kinds import Averaged, Own, Spread


def test_metrics_with_reducible_states_are_accepted_on_several_ranks():
    check_metrics_of_ranks(
        {
            "f1": torchmetrics.F1Score("multiclass", num_classes=3),
            "pearson": torchmetrics.PearsonCorrCoef(),
            "table": torchmetrics.ConfusionMatrix("multiclass", num_classes=3),
            "spread": Spread(),
            "mean": lambda outputs, targets: outputs.mean(),
        }
    )


@pytest.mark.parametrize(
    ("metric", "words"), [(Averaged(), "the state 'mean' of Averaged"), (Own(), "is a Own")]
)
def test_metric_that_cannot_be_reduced_over_ranks_is_rejected_by_name(metric, words):
    with pytest.raises(TaskError, match=words):
        check_metrics_of_ranks({"own": metric})


def test_metric_of_a_single_process_is_computed_without_synchronization():
    spread = Spread()
    spread.update(torch.tensor([[1.0], [3.0]]), torch.zeros(2))
    with sync_metrics(spread, ALONE):
        assert spread.compute() == pytest.approx(2**0.5)
    assert spread.dist_sync_fn is None
