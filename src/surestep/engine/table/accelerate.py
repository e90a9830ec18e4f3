"""What an accelerate config decides, where `accelerate launch` started this process."""

import torch

from surestep.engine.parallel.accelerate_config import AccelerateConfig, compile_mode
from surestep.engine.plan import Known, Refusal, Row


def _config(k: Known) -> AccelerateConfig:
    return k.facts.accelerate or AccelerateConfig()


def _precision(k: Known) -> str:
    """Return our word for its mixed precision."""
    said = _config(k).mixed_precision
    return "fp32" if said == "no" else said


def uses_cpu(k: Known) -> bool:
    """Say whether accelerate's config wants the CPU, whatever else is here."""
    return _config(k).use_cpu


DEVICE = Row(uses_cpu, lambda _: torch.device("cpu"), "accelerate's config: use_cpu")
PRECISION = Row(
    lambda k: k.facts.accelerate is not None,
    _precision,
    "accelerate's config: mixed_precision {k.facts.accelerate.mixed_precision}",
)
COMPILE = Row(
    lambda k: _config(k).dynamo != "no",
    lambda k: compile_mode(_config(k)),
    "accelerate's config: dynamo_backend {k.facts.accelerate.dynamo}",
)

DEVICE_REFUSAL = Refusal(
    lambda k: uses_cpu(k) and not k.said.get("device", "cpu").startswith("cpu"),
    lambda k: (
        f"device={k.said['device']!r}, and accelerate's config says use_cpu. Say it in one place."
    ),
)
PRECISION_REFUSALS = (
    Refusal(
        lambda k: _config(k).mixed_precision == "fp8",
        lambda _: (
            "accelerate's config says mixed_precision fp8, which surestep has not. Say bf16 there: "
            "accelerate launch --mixed_precision bf16."
        ),
    ),
    Refusal(
        lambda k: (
            _config(k).mixed_precision != "no"
            and k.said.get("precision", "auto") not in ("auto", _precision(k))
        ),
        lambda k: (
            f"precision={k.said['precision']!r}, and accelerate's config says mixed_precision "
            f"{_config(k).mixed_precision}. Say the same in both, or only one of them."
        ),
    ),
)
COMPILE_REFUSALS = (
    Refusal(
        lambda k: compile_mode(_config(k)) is None,
        lambda k: (
            f"accelerate's config says dynamo_backend {_config(k).dynamo} in the mode "
            f"{_config(k).dynamo_mode}, which surestep has not. Say inductor there, or "
            "accelerate launch --dynamo_backend no and surestep's own --compile."
        ),
    ),
    Refusal(
        lambda k: (
            _config(k).dynamo != "no"
            and k.said.get("compile", compile_mode(_config(k))) != compile_mode(_config(k))
        ),
        lambda k: (
            f"compile={k.said['compile']!r}, and accelerate's config says dynamo_backend "
            f"{_config(k).dynamo} in the mode {_config(k).dynamo_mode}. Say it in one place."
        ),
    ),
)


def _other_engine(k: Known) -> bool:
    return bool(_config(k).engine) and k["parallel.kind"] == "accelerate"


KIND_REFUSAL = Refusal(
    lambda k: k.said.get("parallel.kind") == "accelerate" and "accelerate" not in k.facts.extras,
    lambda _: (
        "parallel.kind='accelerate' needs a package that is not installed. Install it with: "
        "pip install 'surestep[accelerate]'."
    ),
)
ENGINE_REFUSALS = (
    Refusal(
        lambda k: _other_engine(k) and bool(_config(k).words),
        lambda k: (
            f"accelerate's config shares the state by {_config(k).engine}, which surestep drives "
            f"itself. Say the same to surestep: {_config(k).words}."
        ),
    ),
    Refusal(
        lambda k: _other_engine(k) and not _config(k).words,
        lambda k: (
            f"accelerate's config asks for {_config(k).engine}, which surestep does not drive. "
            "Choose multi-GPU, FSDP or DeepSpeed in `accelerate config`."
        ),
    ),
)
