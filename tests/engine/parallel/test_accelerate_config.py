"""The environment that accelerate launch sets, and the Plan that follows from it."""

from dataclasses import replace

import pytest
import torch

from surestep.base.errors import ConfigError
from surestep.config.config import Config
from surestep.engine.distributed.launcher_env import (
    AccelerateConfig,
    LaunchInfo,
    read_accelerate,
)
from surestep.engine.plan.plan import Plan
from surestep.engine.resolve.resolver import resolve
from tests import tiny

SAID = {
    **{"ACCELERATE_MIXED_PRECISION": "no", "ACCELERATE_DYNAMO_BACKEND": "NO"},
    **{"ACCELERATE_DYNAMO_MODE": "default", "ACCELERATE_USE_CPU": "False"},
}


def planned(config: AccelerateConfig, system=tiny.TWO_GPUS, **options: object) -> Plan:
    launched = LaunchInfo(size=2, local_size=2, launcher="accelerate launch")
    known = replace(system, launched=launched, accelerate=config, extras=("accelerate",))
    return resolve(Config.from_options({"epochs": 1, **options}), known, tiny.GIVEN)


def test_no_accelerate_config_without_its_environment():
    assert read_accelerate({"RANK": "0"}) is None


def test_plain_accelerate_config_has_the_defaults():
    assert read_accelerate(SAID) == AccelerateConfig()


@pytest.mark.parametrize(
    ("name", "engine"),
    [
        ("ACCELERATE_USE_FSDP", "FSDP"),
        ("ACCELERATE_USE_DEEPSPEED", "DeepSpeed"),
        ("ACCELERATE_USE_MEGATRON_LM", "Megatron-LM"),
    ],
)
def test_sharding_engine_is_read_and_rejected(name, engine):
    config = read_accelerate({**SAID, name: "true"})
    assert config.engine == engine
    with pytest.raises(ConfigError, match=f"shards the state by {engine}"):
        planned(config)


def test_precision_device_and_compile_follow_the_accelerate_config():
    config = AccelerateConfig("bf16", use_cpu=True, dynamo="inductor", dynamo_mode="max-autotune")
    plan = planned(config)
    assert (plan.precision, plan.device) == ("bf16", torch.device("cpu"))
    assert (plan.compile, plan.parallel_strategy) == ("max-autotune", "accelerate")
    for option in ("precision", "device", "compile", "parallel.strategy"):
        assert "accelerate" in plan.reason(option)


def test_no_mixed_precision_means_fp32_on_a_gpu_with_bf16():
    assert planned(AccelerateConfig()).precision == "fp32"
    assert planned(AccelerateConfig(), precision="bf16").precision == "bf16"


def test_device_that_contradicts_use_cpu_is_rejected():
    with pytest.raises(ConfigError, match=r"device='cuda:1', but accelerate's config has use_cpu"):
        planned(
            AccelerateConfig(use_cpu=True),
            tiny.TWO_GPUS,
            device="cuda:1",
        )


def test_other_strategies_follow_the_accelerate_precision_too():
    plan = planned(AccelerateConfig("fp16", engine="Megatron-LM"), **{"parallel.strategy": "ddp"})
    assert (plan.parallel_strategy, plan.precision) == ("ddp", "fp16")
