"""What the run is on: seed, device, precision."""

import torch

from surestep.engine.plan import Known, Refusal, Row
from surestep.engine.table import accelerate
from surestep.engine.table.rows import Refusals, Rows, default, plain, said

DEFAULT_SEED = 0


def _bad_device(k: Known) -> bool:
    try:
        device = torch.device(k.said.get("device", "cpu"))
    except RuntimeError:
        return True
    if device.type == "cuda":
        return (device.index or 0) >= len(k.facts.cuda_devices)
    return device.type != "cpu"


def _devices(k: Known) -> str:
    return ", ".join(["cpu", *(f"cuda:{index}" for index in range(len(k.facts.cuda_devices)))])


ROWS: Rows = {
    "seed": plain("seed", DEFAULT_SEED, "nothing said: every run starts from the same seed"),
    "deterministic": plain("deterministic", False, "torch's default; True is slower on a GPU"),
    "device": (
        said("device", torch.device),
        accelerate.DEVICE,
        Row(
            lambda k: bool(k.facts.cuda_devices) and k.facts.launched.local_size > 1,
            lambda k: torch.device("cuda", k.facts.launched.local_rank),
            "each of {k.facts.launched.local_size} processes of this machine has a GPU of its own",
        ),
        Row(
            lambda k: bool(k.facts.cuda_devices),
            lambda _: torch.device("cuda"),
            "this machine has {k.facts.cuda_devices[0]}",
        ),
        default(torch.device("cpu"), "no CUDA device here"),
    ),
    "precision": (
        Row(
            lambda k: k.said.get("precision", "auto") != "auto",
            lambda k: k.said["precision"],
            "said: {origin}",
        ),
        accelerate.PRECISION,
        Row(
            lambda k: k.on_gpu and k.facts.bf16_native,
            lambda _: "bf16",
            "auto: this GPU has bf16 natively",
        ),
        default("fp32", "auto: bf16 only where a GPU has it natively"),
    ),
}

REFUSALS: Refusals = {
    "device": (
        Refusal(
            _bad_device,
            lambda k: f"device={k.said['device']!r} is not here. This machine has: {_devices(k)}.",
        ),
        accelerate.DEVICE_REFUSAL,
    ),
    "precision": (
        Refusal(
            lambda k: k.said.get("precision") == "tf32" and not (k.on_gpu and k.facts.tf32),
            lambda k: (
                f"precision='tf32' needs an NVIDIA GPU of the Ampere generation or newer, and the "
                f"device is {k['device']}. Use precision='fp32' or 'bf16'."
            ),
        ),
        *accelerate.PRECISION_REFUSALS,
    ),
}
