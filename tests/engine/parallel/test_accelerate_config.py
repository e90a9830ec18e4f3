"""What accelerate launch says in the environment, and what the Plan makes of it."""

from dataclasses import replace

import pytest
import torch

from surestep.base.errors import ConfigError
from surestep.config.config import Config
from surestep.engine.distributed.accelerate_env import AccelerateConfig, read_accelerate
from surestep.engine.distributed.launcher_env import LaunchInfo
from surestep.engine.plan.plan import Plan
from surestep.engine.rules.resolve import resolve
from tests import tiny

SAID = {
    **{"ACCELERATE_MIXED_PRECISION": "no", "ACCELERATE_DYNAMO_BACKEND": "NO"},
    **{"ACCELERATE_DYNAMO_MODE": "default", "ACCELERATE_USE_CPU": "False"},
}


def planned(config: AccelerateConfig, facts=tiny.TWO_GPUS, **said: object) -> Plan:
    launched = LaunchInfo(size=2, local_size=2, launcher="accelerate launch")
    known = replace(facts, launched=launched, accelerate=config, extras=("accelerate",))
    return resolve(Config.from_options({"epochs": 1, **said}), known, tiny.GIVEN)


def test_nobody_asked_accelerate():
    assert read_accelerate({"RANK": "0"}) is None


def test_a_plain_config_says_nothing_else():
    assert read_accelerate(SAID) == AccelerateConfig()


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"FSDP_SHARDING_STRATEGY": "SHARD_GRAD_OP"}, "--parallel.shard grad_op"),
        ({"FSDP_SHARDING_STRATEGY": "4"}, "--parallel.shard hybrid"),
        ({"FSDP_VERSION": "2", "FSDP_RESHARD_AFTER_FORWARD": "true"}, "--parallel.shard full"),
        ({"FSDP_VERSION": "2", "FSDP_RESHARD_AFTER_FORWARD": "false"}, "--parallel.shard grad_op"),
    ],
)
def test_its_fsdp_is_told_in_our_words(said, words):
    found = read_accelerate({**SAID, "ACCELERATE_USE_FSDP": "true", **said})
    assert (found.engine, found.words) == ("FSDP", f"--parallel.strategy fsdp {words}")


def test_its_deepspeed_is_told_in_our_words():
    on = {"ACCELERATE_USE_DEEPSPEED": "true", "ACCELERATE_DEEPSPEED_ZERO_STAGE": "3"}
    found = read_accelerate({**SAID, **on})
    assert found.words == "--parallel.strategy deepspeed --parallel.zero_stage 3"


def test_precision_device_and_compiling_are_those_of_the_config():
    config = AccelerateConfig("bf16", use_cpu=True, dynamo="inductor", dynamo_mode="max-autotune")
    plan = planned(config)
    assert (plan.precision, plan.device) == ("bf16", torch.device("cpu"))
    assert (plan.compile, plan.parallel_strategy) == ("max-autotune", "accelerate")
    for option in ("precision", "device", "compile", "parallel.strategy"):
        assert "accelerate" in plan.reason(option)


def test_no_mixed_precision_is_fp32_where_a_gpu_would_have_bf16():
    assert planned(AccelerateConfig()).precision == "fp32"
    assert planned(AccelerateConfig(), precision="bf16").precision == "bf16"


def test_another_device_than_the_cpu_it_says_is_refused():
    with pytest.raises(ConfigError, match=r"device='cuda:1', but accelerate's config has use_cpu"):
        planned(
            AccelerateConfig(use_cpu=True),
            tiny.TWO_GPUS,
            device="cuda:1",
        )


def test_other_ways_take_its_precision_too():
    plan = planned(AccelerateConfig("fp16", engine="Megatron-LM"), **{"parallel.strategy": "ddp"})
    assert (plan.parallel_strategy, plan.precision) == ("ddp", "fp16")
