"""Which runs use the sizes that another run found."""

import pytest
from torch import nn

import surestep
from surestep.trainer.found_sizes import locate_sizes
from surestep.trainer.planning import TaskOrigin, plan_task
from tests.trainer.test_find_lr import config_of, make_line


def locate(task=None, **options):
    planned = plan_task(task or make_line(), config_of(optim="sgd", **options))
    return locate_sizes(planned, TaskOrigin())


def test_entry_is_that_of_runs_with_the_same_model_loss_and_options():
    assert locate() == locate(make_line())
    assert locate() == locate(seed=5)


@pytest.mark.parametrize(
    ("loss", "width", "options"),
    [("mae", 4, {}), ("mse", 8, {}), ("mse", 4, {"precision": "bf16"})],
)
def test_entry_depends_on_what_decides_the_memory(loss, width, options):
    def make(loss, width):
        model = nn.Sequential(nn.Linear(4, width), nn.Linear(width, 1))
        return surestep.Task(model, loss=loss, train=make_line().train)

    assert locate(make(loss, width), **options) != locate(make("mse", 4))
