"""What `accelerate launch` hands on of an accelerate config: read from the environment.

Source: https://huggingface.co/docs/accelerate/package_reference/cli
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass

_COMPILE_MODES = ("default", "reduce-overhead", "max-autotune")
_SHARDS = {
    "1": "full",
    "FULL_SHARD": "full",
    "2": "grad_op",
    "SHARD_GRAD_OP": "grad_op",
    "3": "none",
    "NO_SHARD": "none",
    "4": "hybrid",
    "HYBRID_SHARD": "hybrid",
    "5": "hybrid",
    "HYBRID_SHARD_ZERO2": "hybrid",
}


@dataclass(frozen=True)
class AccelerateConfig:
    """The answers of `accelerate config`, as far as a Plan depends on them.

    Attributes:
        mixed_precision: "no", "fp16", "bf16" or "fp8".
        use_cpu: train on the CPU where there are GPUs too.
        dynamo: the backend of torch.compile in small letters; "no" compiles nothing.
        dynamo_mode: torch.compile's mode.
        engine: what is to share the state: "FSDP", "DeepSpeed", "Megatron-LM"; empty where the
            model is copied.
        words: options of surestep that say the same of the engine; empty where there are none.
    """

    mixed_precision: str = "no"
    use_cpu: bool = False
    dynamo: str = "no"
    dynamo_mode: str = "default"
    engine: str = ""
    words: str = ""


def read_accelerate(said: Mapping[str, str] | None = None) -> AccelerateConfig | None:
    """Read what `accelerate launch` set; None where it started nothing."""
    said = os.environ if said is None else said
    if "ACCELERATE_MIXED_PRECISION" not in said:
        return None
    engine, words = _engine(said)
    return AccelerateConfig(
        mixed_precision=said["ACCELERATE_MIXED_PRECISION"].lower(),
        use_cpu=_is_on(said, "ACCELERATE_USE_CPU"),
        dynamo=said.get("ACCELERATE_DYNAMO_BACKEND", "no").lower(),
        dynamo_mode=said.get("ACCELERATE_DYNAMO_MODE", "default"),
        engine=engine,
        words=words,
    )


def _engine(said: Mapping[str, str]) -> tuple[str, str]:
    """Return what shares the state, and how surestep would be told to do the same."""
    if _is_on(said, "ACCELERATE_USE_FSDP"):
        shard = _SHARDS.get(said.get("FSDP_SHARDING_STRATEGY", "1").upper(), "full")
        if said.get("FSDP_VERSION") == "2" and said.get("FSDP_RESHARD_AFTER_FORWARD") == "false":
            shard = "grad_op"
        return "FSDP", f"--parallel.strategy fsdp --parallel.shard {shard}"
    if _is_on(said, "ACCELERATE_USE_DEEPSPEED"):
        stage = said.get("ACCELERATE_DEEPSPEED_ZERO_STAGE", "2")
        return "DeepSpeed", f"--parallel.strategy deepspeed --parallel.zero_stage {stage}"
    if _is_on(said, "ACCELERATE_USE_MEGATRON_LM"):
        return "Megatron-LM", ""
    return "", ""


def _is_on(said: Mapping[str, str], name: str) -> bool:
    return said.get(name, "false").lower() in ("1", "true", "yes")


def compile_mode(config: AccelerateConfig) -> str | None:
    """Return the mode of `compile` that says the same; None where there is no such."""
    if config.dynamo == "no":
        return "off"
    known = config.dynamo == "inductor" and config.dynamo_mode in _COMPILE_MODES
    return config.dynamo_mode if known else None
