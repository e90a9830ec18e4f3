"""What an accelerate config decides, where `accelerate launch` started this process."""

import torch

from surestep.engine.distributed.accelerate_env import AccelerateConfig, compile_mode
from surestep.engine.plan.plan import Constraint, PlanContext, Rule


def _config(k: PlanContext) -> AccelerateConfig:
    return k.system.accelerate or AccelerateConfig()


def _precision(k: PlanContext) -> str:
    """Return our word for its mixed precision."""
    said = _config(k).mixed_precision
    return "fp32" if said == "no" else said


def uses_cpu(k: PlanContext) -> bool:
    """Say whether accelerate's config wants the CPU, whatever else is here."""
    return _config(k).use_cpu


DEVICE = Rule(uses_cpu, lambda _: torch.device("cpu"), "accelerate's config: use_cpu")
PRECISION = Rule(
    lambda k: k.system.accelerate is not None,
    _precision,
    "accelerate's config: mixed_precision {k.system.accelerate.mixed_precision}",
)
COMPILE = Rule(
    lambda k: _config(k).dynamo != "no",
    lambda k: compile_mode(_config(k)),
    "accelerate's config: dynamo_backend {k.system.accelerate.dynamo}",
)

DEVICE_REFUSAL = Constraint(
    lambda k: uses_cpu(k) and not k.set_options.get("device", "cpu").startswith("cpu"),
    lambda k: (
        f"device={k.set_options['device']!r}, and accelerate's config says use_cpu. Say it in "
        "one place."
    ),
)
PRECISION_REFUSALS = (
    Constraint(
        lambda k: _config(k).mixed_precision == "fp8",
        lambda _: (
            "accelerate's config says mixed_precision fp8, which surestep has not. Say bf16 there: "
            "accelerate launch --mixed_precision bf16."
        ),
    ),
    Constraint(
        lambda k: (
            _config(k).mixed_precision != "no"
            and k.set_options.get("precision", "auto") not in ("auto", _precision(k))
        ),
        lambda k: (
            f"precision={k.set_options['precision']!r}, and accelerate's config says "
            "mixed_precision "
            f"{_config(k).mixed_precision}. Say the same in both, or only one of them."
        ),
    ),
)
COMPILE_REFUSALS = (
    Constraint(
        lambda k: compile_mode(_config(k)) is None,
        lambda k: (
            f"accelerate's config says dynamo_backend {_config(k).dynamo} in the mode "
            f"{_config(k).dynamo_mode}, which surestep has not. Say inductor there, or "
            "accelerate launch --dynamo_backend no and surestep's own --compile."
        ),
    ),
    Constraint(
        lambda k: (
            _config(k).dynamo != "no"
            and k.set_options.get("compile", compile_mode(_config(k))) != compile_mode(_config(k))
        ),
        lambda k: (
            f"compile={k.set_options['compile']!r}, and accelerate's config says dynamo_backend "
            f"{_config(k).dynamo} in the mode {_config(k).dynamo_mode}. Say it in one place."
        ),
    ),
)


def _other_engine(k: PlanContext) -> bool:
    return bool(_config(k).engine) and k["parallel.strategy"] == "accelerate"


KIND_REFUSAL = Constraint(
    lambda k: (
        k.set_options.get("parallel.strategy") == "accelerate"
        and "accelerate" not in k.system.extras
    ),
    lambda _: (
        "parallel.strategy='accelerate' needs a package that is not installed. Install it with: "
        "pip install 'surestep[accelerate]'."
    ),
)
ENGINE_REFUSALS = (
    Constraint(
        lambda k: _other_engine(k) and bool(_config(k).words),
        lambda k: (
            f"accelerate's config shares the state by {_config(k).engine}, which surestep drives "
            f"itself. Say the same to surestep: {_config(k).words}."
        ),
    ),
    Constraint(
        lambda k: _other_engine(k) and not _config(k).words,
        lambda k: (
            f"accelerate's config asks for {_config(k).engine}, which surestep does not drive. "
            "Choose multi-GPU, FSDP or DeepSpeed in `accelerate config`."
        ),
    ),
)
