"""DeepSpeed's configuration: made of the Plan, with the user's own keys, and never two truths."""

import json
from dataclasses import replace
from typing import Any

import pytest
import torch

from surestep.base.errors import ConfigError
from surestep.engine.parallel.deepspeed.config import AUTO, PASSED
from tests.laws.test_law_9_honest import plan_of
from tests.laws.wishes import MANY, ZERO
from tests.tiny import TWO_GPUS

SAID = {**ZERO, "batch_size": 16, "micro_batch_size": 4, "max_grad_norm": 0.5, "optim.lr": 0.01}
ON_GPUS = {
    "facts": lambda: replace(TWO_GPUS, launched=MANY["facts"]().launched, extras=("deepspeed",))
}
# As the guides of transformers write it.
HF = {
    "optimizer": {
        "type": "AdamW",
        "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"},
    },
    "scheduler": {
        "type": "WarmupLR",
        "params": {"warmup_min_lr": "auto", "warmup_max_lr": "auto", "warmup_num_steps": "auto"},
    },
    "bf16": {"enabled": "auto"},
    "zero_optimization": {
        "stage": 2,
        "offload_optimizer": {"device": "none", "pin_memory": True},
        "allgather_partitions": True,
        "allgather_bucket_size": 2e8,
        "overlap_comm": True,
        "reduce_bucket_size": "auto",
        "contiguous_gradients": True,
    },
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "wall_clock_breakdown": False,
}


def made(own: Any = None, facts: dict[str, Any] = MANY, **more: Any) -> dict[str, Any]:
    keys = {} if own is None else {"parallel.deepspeed": own}
    return dict(plan_of({**SAID, **keys, **more}, **facts).parallel_deepspeed)


def test_the_plan_is_put_into_deepspeeds_words():
    found = made()
    assert found["train_micro_batch_size_per_gpu"] == 4
    assert found["gradient_accumulation_steps"] == 2
    assert found["train_batch_size"] == 16
    assert found["gradient_clipping"] == 0.5
    assert found["zero_optimization"] == {"stage": 2}
    assert not found["bf16"]["enabled"]


def test_a_batch_that_does_not_divide_is_left_out():
    assert "train_batch_size" not in made(micro_batch_size=3)


def test_fp16_is_deepspeeds_with_our_loss_scale():
    said = {"precision": "fp16", "scaler.init_scale": 1024.0, "scaler.growth_interval": 7}
    found = made(facts=ON_GPUS, **said)
    assert found["fp16"]["initial_scale_power"] == 10
    assert found["fp16"]["loss_scale_window"] == 7


def test_what_is_auto_is_filled_in_and_other_keys_pass():
    found = made(HF)
    assert found["gradient_clipping"] == 0.5
    assert found["zero_optimization"]["overlap_comm"] is True
    assert found["zero_optimization"]["allgather_bucket_size"] == 2e8
    assert found["zero_optimization"]["reduce_bucket_size"] == 500_000_000
    assert found["zero_optimization"]["offload_optimizer"] == {"pin_memory": True}
    assert "auto" not in json.dumps(found)


# Of a user who trained by DeepSpeed until now.
THEIRS = {
    "train_batch_size": 64,
    "train_micro_batch_size_per_gpu": 8,
    "gradient_accumulation_steps": 4,
    "gradient_clipping": 0.25,
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 1},
    "optimizer": {"type": "AdamW", "params": {"lr": 0.0003, "betas": [0.8, 0.95]}},
    "scheduler": {
        "type": "WarmupDecayLR",
        "params": {
            **{"warmup_min_lr": 0, "warmup_num_steps": 2, "warmup_type": "linear"},
            "total_num_steps": 20,
        },
    },
}


def test_keys_on_which_the_config_is_silent_are_taken_over():
    plan = plan_of({**ZERO, "max_steps": 20, "parallel.deepspeed": THEIRS}, **MANY)
    assert (plan.batch_size, plan.micro_batch_size, plan.max_grad_norm) == (64, 8, 0.25)
    assert (plan.precision, plan.parallel_zero_stage) == ("bf16", 1)
    assert (plan.optim_name, plan.optim_lr) == ("adamw", 0.0003)
    assert plan.optim_options["betas"] == (0.8, 0.95)
    assert plan.reason("schedule.name") == "set in parallel.deepspeed"
    assert plan.parallel_deepspeed["gradient_clipping"] == 0.25


def test_eight_conflicts_are_eight_lines():
    ours = {
        **{"batch_size": 16, "micro_batch_size": 4, "max_grad_norm": 0.5, "precision": "fp32"},
        **{
            "parallel.zero_stage": 2,
            "optim.lr": 0.01,
            "optim.betas": (0.9, 0.999),
            "max_steps": 30,
        },
        **{"schedule.name": "constant"},
    }
    with pytest.raises(ConfigError) as caught:
        plan_of({**ZERO, **ours, "parallel.deepspeed": THEIRS}, **MANY)
    lines = str(caught.value).splitlines()
    named = {line.split("says ")[1].split("=")[0] for line in lines}
    assert named >= {
        *("train_micro_batch_size_per_gpu", "train_batch_size", "gradient_clipping"),
        *("bf16.enabled", "zero_optimization.stage", "gradient_accumulation_steps"),
        *("optimizer.params.lr", "optimizer.params.betas", "scheduler.type"),
    }
    assert len(lines) == len(named)


@pytest.mark.parametrize(
    ("keys", "option", "value"),
    [
        ({"train_micro_batch_size_per_gpu": 4}, "batch_size", 8),
        ({"train_batch_size": 32, "gradient_accumulation_steps": 4}, "micro_batch_size", 4),
        ({"gradient_clipping": 0}, "max_grad_norm", None),
        ({"optimizer": {"type": "SGD", "params": {"lr": 0.1}}}, "optim_name", "sgd"),
    ],
)
def test_each_kind_of_key_is_taken_over(keys, option, value):
    plan = plan_of({**ZERO, "parallel.deepspeed": keys}, **MANY)
    assert getattr(plan, option) == value


def test_deepspeeds_logarithmic_warm_up_is_not_taken_for_a_line():
    warm = {"type": "WarmupLR", "params": {"warmup_num_steps": 5}}
    with pytest.raises(ConfigError, match=r"warmup_num_steps=5, and by schedule\.warmup it is 0"):
        plan_of({**ZERO, "parallel.deepspeed": {"scheduler": warm}}, **MANY)


def test_a_file_is_taken_as_what_it_holds(tmp_path):
    (tmp_path / "ds_config.json").write_text(json.dumps(HF))
    assert made(str(tmp_path / "ds_config.json")) == made(HF)


@pytest.mark.parametrize(
    ("own", "words"),
    [
        ({"gradient_clipping": 1.0}, "gradient_clipping=1.0, and by max_grad_norm it is 0.5"),
        ({"train_batch_size": 32}, "by batch_size it is 16"),
        ({"gradient_accumulation_steps": 8}, "by batch_size or micro_batch_size it is 2"),
        ({"optimizer": {"type": "Lamb"}}, "by optim.name it is 'adamw'"),
        ({"optimizer": {"params": {"lr": 0.1}}}, "by optim.lr it is 0.01"),
        ({"optimizer": {"params": {"bias_correction": False}}}, "by optim.name it is True"),
        ({"scheduler": {"type": "OneCycle"}}, "by schedule.name it is 'WarmupLR'"),
        ({"zero_optimization": {"offload_param": {"device": "nvme"}}}, "by parallel.offload"),
        ({"zero_optimization": {"overlap_com": True}}, "'zero_optimization.overlap_comm'"),
        ({"wall_clock_brakdown": True}, "'wall_clock_breakdown'"),
        ({"checkpoint": {"load_universal": True}}, "hold no pickles"),
        ({"torch_autocast": {"enabled": True}}, "precision='bf16'"),
        ({"zero_optimization": {"round_robin_gradients": True}}, "under wrong names"),
        ({"communication_data_type": "fp16"}, "precision is fp32, and sums of 16 bits"),
        ({"communication_data_type": "bf16"}, "or say precision='bf16'"),
        ({"data_types": {"grad_accum_dtype": "bf16"}}, "precision is fp32, and sums of 16 bits"),
        ({"zero_optimization": {"zero_quantized_weights": True}}, "of 4 or 8 bits"),
        ({"zero_optimization": {"zero_quantized_gradients": True}}, "of 4 or 8 bits"),
        ({"zero_optimization": {"zero_quantized_nontrainable_weights": True}}, "of 4 or 8 bits"),
        (
            {"zero_optimization": {"stage3_module_granularity_threshold": 100}},
            "before its backward",
        ),
        ({"flops_profiler": {"enabeld": True}}, "'flops_profiler.enabled'"),
        ({"tensorboard": {"outputpath": "x"}}, "'tensorboard.output_path'"),
        ({"csv_monitor": {"jobname": "x"}}, "'csv_monitor.job_name'"),
        ({"wandb": {"projet": "x"}}, "'wandb.project'"),
        ({"comet": {"on_line": True}}, "'comet.online'"),
        ({"comms_logger": {"verbos": True}}, "'comms_logger.verbose'"),
        ({"aio": {"blocksize": 1}}, "'aio.block_size'"),
        ({"timers": {"throughput": {"enable": True}}}, "'timers.throughput.enabled'"),
        ({"tensorboard": True}, "no key 'tensorboard'"),
        ("ds.json", "cannot be read"),
        ("{'a': 1}", "a JSON object"),
    ],
)
def test_keys_that_disagree_or_are_not_known_are_refused(own, words):
    with pytest.raises(ConfigError) as caught:
        made(own)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("own", "tells"),
    [
        ({"communication_data_type": "bf16"}, True),
        ({"data_types": {"grad_accum_dtype": "bf16"}}, True),
        ({"communication_data_type": "fp32"}, False),
    ],
)
def test_sums_in_16_bits_are_had_in_16_bits_alone_and_told_with_their_price(own, tells):
    plan = plan_of({**SAID, "precision": "bf16", "parallel.deepspeed": own}, **MANY)
    assert ("differs with the number of ranks" in plan.reason("parallel.deepspeed")) is tells


@pytest.mark.parametrize(("stage", "value"), [(1, False), (2, False), (3, True)])
def test_gradients_go_round_robin_where_that_keeps_the_weights_apart(stage, value):
    found = made(
        {"zero_optimization": {"round_robin_gradients": value}}, **{"parallel.zero_stage": stage}
    )
    assert found["zero_optimization"]["round_robin_gradients"] is value


def test_what_is_fp32_already_may_be_said():
    assert made({"communication_data_type": "fp32"})["communication_data_type"] == "fp32"


def test_the_keys_that_pass_are_deepspeeds_own():
    """Read as text: the import takes seconds."""
    from importlib.util import find_spec
    from pathlib import Path

    spec = find_spec("deepspeed")
    root = Path(spec.origin).parent
    runtime = ("zero/config", "zero/offload_config", "constants", "precision_config")
    files = (
        *(f"runtime/{name}" for name in (*runtime, "swap_tensor/constants")),
        *("comm/config", "monitor/config", "profiling/constants", "utils/config"),
    )
    text = "".join((root / f"{name}.py").read_text() for name in files)
    assert [key for key in (*PASSED, *AUTO) if key.split(".")[-1] not in text] == []


def test_a_parameter_without_a_dimension_is_refused_by_name():
    net = torch.nn.Sequential(torch.nn.Linear(2, 3))
    net[0].register_parameter("scale", torch.nn.Parameter(torch.tensor(1.5)))
    with pytest.raises(ConfigError, match=r"0\.scale has no dimension.* torch\.ones\(1\)"):
        plan_of({**ZERO, "batch_size": 16}, model=net, **MANY)
