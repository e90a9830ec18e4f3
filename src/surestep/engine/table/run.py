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
    return device.type != "cpu" and not (device.type == "mps" and k.facts.mps)


def _each_has_one(k: Known) -> bool:
    """Say whether several processes of this machine compute on GPUs, one each."""
    on_gpus = bool(k.facts.cuda_devices) and not accelerate.uses_cpu(k)
    return on_gpus and k.said.get("device", "cuda") == "cuda" and k.facts.launched.local_size > 1


def _is_one_for_all(k: Known) -> bool:
    """Say whether a number was said, by which several processes would share one GPU."""
    own = k.facts.one_gpu_each  # each calls its own cuda:0
    many = k.facts.launched.local_size > 1 and not own
    return many and torch.device(k.said.get("device", "cpu")).index is not None and _says_gpu(k)


def _says_gpu(k: Known) -> bool:
    return str(k.said.get("device", "cpu")).startswith("cuda")


def _says_mps(k: Known) -> bool:
    return str(k.said.get("device", "cpu")).startswith("mps")


def _too_many(k: Known) -> bool:
    here = k.facts.launched
    enough = here.imagined or k.facts.one_gpu_each
    return _each_has_one(k) and not enough and here.local_size > len(k.facts.cuda_devices)


def _too_many_told(k: Known) -> str:
    here, gpus = k.facts.launched.local_size, len(k.facts.cuda_devices)
    return (
        f"{here} processes were started on this machine, and {_gpus(gpus)} here: on "
        f"device='cuda' each needs its own. Say --nproc {gpus} (torchrun --nproc-per-node {gpus}), "
        "or device='cpu'."
    )


def _gpus(count: int) -> str:
    return "one GPU is" if count == 1 else f"{count} GPUs are"


def _its_own(*, said: bool) -> tuple[Row, Row]:
    """Give each of several processes a GPU of its own, by what was said or by itself."""

    def when(k: Known) -> bool:
        return _each_has_one(k) and ("device" in k.said) is said

    before = "said: {origin}; " if said else ""
    who = f"{before}each of {{k.facts.launched.local_size}} processes of this machine"
    return (
        Row(
            lambda k: when(k) and k.facts.one_gpu_each,
            lambda _: torch.device("cuda", 0),
            f"{who} sees one GPU; they look whether it is another for each when they meet",
        ),
        Row(
            when,
            lambda k: torch.device("cuda", k.facts.launched.local_rank),
            f"{who} has a GPU of its own",
        ),
    )


def _devices(k: Known) -> str:
    gpus = [f"cuda:{index}" for index in range(len(k.facts.cuda_devices))]
    return ", ".join(["cpu", *gpus, *(["mps"] if k.facts.mps else [])])


ROWS: Rows = {
    "seed": plain("seed", DEFAULT_SEED, "nothing said: every run starts from the same seed"),
    "deterministic": plain("deterministic", False, "torch's default; True is slower on a GPU"),
    "device": (
        *_its_own(said=True),
        said("device", torch.device),
        accelerate.DEVICE,
        *_its_own(said=False),
        Row(
            lambda k: bool(k.facts.cuda_devices),
            lambda _: torch.device("cuda"),
            "this machine has {k.facts.cuda_devices[0]}",
        ),
        Row(
            lambda k: k.facts.mps,
            lambda _: torch.device("cpu"),
            "no CUDA device here; the Apple GPU is used if device='mps' is set",
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
        Refusal(
            _is_one_for_all,
            lambda k: (
                f"device={k.said['device']!r} is one GPU for the "
                f"{k.facts.launched.local_size} processes of this machine, and each needs its own. "
                "Say device='cuda', with CUDA_VISIBLE_DEVICES=0,1 for which of them."
            ),
        ),
        Refusal(_too_many, _too_many_told),
        Refusal(
            lambda k: _says_mps(k) and k.facts.launched.size > 1,
            lambda k: (
                f"device='mps' is one GPU for the {k.facts.launched.size} processes that were "
                "started. Start one process, or set device='cpu'."
            ),
        ),
    ),
    "precision": (
        Refusal(
            lambda k: k.said.get("precision") == "tf32" and not (k.on_gpu and k.facts.tf32),
            lambda k: (
                f"precision='tf32' needs an NVIDIA GPU of the Ampere generation or newer, and the "
                f"device is {k['device']}. Use precision='fp32' or 'bf16'."
            ),
        ),
        Refusal(
            lambda k: k.said.get("precision") == "fp16" and k.device == "mps",
            lambda _: (
                "precision='fp16' is not supported on device='mps': whether its loss scale skips a "
                "step exactly was not verified there. Use precision='bf16' or 'fp32'."
            ),
        ),
        *accelerate.PRECISION_REFUSALS,
    ),
}
