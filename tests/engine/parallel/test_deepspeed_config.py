"""DeepSpeed's configuration: made from the Plan and the user's keys, without contradictions."""

import json
from dataclasses import replace
from typing import Any

import pytest
import torch

from surestep.base.errors import ConfigError
from surestep.engine.parallel.deepspeed.config import PASSED
from tests.laws.support.option_values import MANY, ZERO
from tests.laws.test_law_9_honest import plan_of
from tests.tiny import TWO_GPUS

SAID = {**ZERO, "batch_size": 16, "micro_batch_size": 4, "max_grad_norm": 0.5, "optim.lr": 0.01}
ON_GPUS = {
    "system": lambda: replace(TWO_GPUS, launched=MANY["system"]().launched, extras=("deepspeed",))
}
# As in the guides of transformers, without the optimizer and scheduler types.
HF = {
    "optimizer": {"params": {"lr": "auto", "betas": "auto"}},
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


def made(own: Any = None, system: dict[str, Any] = MANY, **more: Any) -> dict[str, Any]:
    keys = {} if own is None else {"parallel.deepspeed": own}
    return dict(plan_of({**SAID, **keys, **more}, **system).parallel_deepspeed)


def test_configuration_follows_from_the_plan():
    found = made()
    assert found["train_micro_batch_size_per_gpu"] == 4
    assert found["gradient_accumulation_steps"] == 2
    assert found["train_batch_size"] == 16
    assert found["gradient_clipping"] == 0.5
    assert found["zero_optimization"] == {"stage": 2}
    assert not found["bf16"]["enabled"]


def test_uneven_batch_size_is_not_passed():
    assert "train_batch_size" not in made(micro_batch_size=3)


def test_fp16_has_the_loss_scale_of_the_plan():
    options = {"precision": "fp16", "scaler.init_scale": 1024.0, "scaler.growth_interval": 7}
    found = made(system=ON_GPUS, **options)
    assert found["fp16"]["initial_scale_power"] == 10
    assert found["fp16"]["loss_scale_window"] == 7


def test_auto_is_decided_by_surestep_and_other_keys_are_passed():
    found = made(HF)
    assert found["gradient_clipping"] == 0.5
    assert found["zero_optimization"]["overlap_comm"] is True
    assert found["zero_optimization"]["allgather_bucket_size"] == 2e8
    assert "reduce_bucket_size" not in found["zero_optimization"]  # DeepSpeed's default
    assert found["zero_optimization"]["offload_optimizer"] == {"pin_memory": True}
    assert "auto" not in json.dumps(found)


def test_every_key_that_surestep_decides_is_named_with_its_option():
    own = {
        **{"train_batch_size": 64, "gradient_clipping": 0.25, "bf16": {"enabled": True}},
        **{"zero_optimization": {"stage": 1}, "optimizer": {"type": "AdamW"}},
    }
    with pytest.raises(ConfigError) as caught:
        made(own)
    lines = str(caught.value).splitlines()
    assert len(lines) == 5
    for key, option in {
        "train_batch_size=64": "batch_size",
        "gradient_clipping=0.25": "max_grad_norm",
        "bf16.enabled=True": "precision",
        "zero_optimization.stage=1": "parallel.zero_stage",
        "optimizer.type='AdamW'": "optim.name",
    }.items():
        assert any(f"has {key}," in line and f"set {option}" in line for line in lines), key


def test_key_that_agrees_with_the_options_is_accepted():
    own = {"train_batch_size": 16, "zero_optimization": {"stage": 2}}
    assert made(own) == made()


def test_file_equals_its_contents(tmp_path):
    (tmp_path / "ds_config.json").write_text(json.dumps(HF))
    assert made(str(tmp_path / "ds_config.json")) == made(HF)


@pytest.mark.parametrize(
    ("own", "words"),
    [
        ({"gradient_accumulation_steps": 8}, "set micro_batch_size instead"),
        ({"optimizer": {"params": {"lr": 0.1}}}, "set optim.name"),
        ({"scheduler": {"type": "OneCycle"}}, "set schedule.name"),
        ({"zero_optimization": {"offload_param": {"device": "nvme"}}}, "set parallel.offload"),
        ({"torch_autocast": {"enabled": True}}, "set precision"),
        ({"zero_optimization": {"overlap_com": True}}, "'zero_optimization.overlap_comm'"),
        ({"wall_clock_brakdown": True}, "'wall_clock_breakdown'"),
        ({"checkpoint": {"load_universal": True}}, "does not take 'checkpoint.load_universal'"),
        ({"communication_data_type": "fp16"}, "does not take 'communication_data_type'"),
        ({"zero_optimization": {"zero_quantized_weights": True}}, "does not take"),
        ({"tensorboard": {"outputpath": "x"}}, "'tensorboard.output_path'"),
        ({"tensorboard": True}, "does not take 'tensorboard'"),
        ("ds.json", "cannot be read"),
        ("{'a': 1}", "a JSON object"),
        (True, "a JSON object"),  # deepspeed = true in a TOML file
        (3, "a JSON object"),
    ],
)
def test_keys_that_are_not_passed_are_rejected(own, words):
    with pytest.raises(ConfigError) as caught:
        made(own)
    assert words in str(caught.value)


def test_passed_keys_exist_in_deepspeed():
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
    assert [key for key in PASSED if key.split(".")[-1] not in text] == []


def test_parameter_without_a_dimension_is_rejected_by_name():
    net = torch.nn.Sequential(torch.nn.Linear(2, 3))
    net[0].register_parameter("scale", torch.nn.Parameter(torch.tensor(1.5)))
    with pytest.raises(ConfigError, match=r"0\.scale has no dimension.* torch\.ones\(1\)"):
        plan_of({**ZERO, "batch_size": 16}, model=net, **MANY)
