"""What the rules of DeepSpeed reject; its library need not be installed for that."""

from dataclasses import replace

import pytest

from surestep.base.errors import ConfigError
from surestep.engine.distributed.launcher_env import LaunchInfo
from tests.tiny import FACTS, decide

TWO_RANKS = replace(FACTS, extras=("deepspeed",), launched=LaunchInfo(size=2, local_size=2))
TRAINED = {"checkpoint.weights": "trained"}


def decide_zero(stage, **more):
    options = {"parallel.strategy": "deepspeed", "parallel.zero_stage": stage}
    return decide({**options, **more}, TWO_RANKS)


@pytest.mark.parametrize(
    ("stage", "accepted", "more", "remedy"),
    [
        (3, 2, TRAINED, "Set checkpoint.weights='all', or parallel.zero_stage=2"),
        (3, 2, {"average.kind": "ema"}, "parallel.zero_stage up to 2"),
        (2, 3, {"parallel.offload": "all"}, "Set parallel.zero_stage=3"),
        (0, 1, {"parallel.offload": "optimizer"}, "needs parallel.zero_stage=1, 2 or 3"),
        (1, 0, {"optim.name": "adagrad"}, "or parallel.zero_stage=0"),
        (0, 1, {"precision": "bf16"}, "Set parallel.zero_stage=1"),
    ],
    ids=["trained weights", "average", "offload all", "offload", "full tensors", "bf16"],
)
def test_stage_that_does_not_fit_is_rejected_with_one_that_does(stage, accepted, more, remedy):
    with pytest.raises(ConfigError, match=remedy):
        decide_zero(stage, **more)
    assert decide_zero(accepted, **more).parallel_zero_stage == accepted


def test_all_weights_can_be_saved_with_every_stage():
    assert [decide_zero(stage).checkpoint_weights for stage in range(4)] == ["all"] * 4
