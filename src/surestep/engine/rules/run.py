"""What the run is on: seed, device, precision."""

import torch

from surestep.engine.plan.plan import Constraint, PlanContext, Rule
from surestep.engine.rules import accelerate
from surestep.engine.rules.helpers import Refusals, Rows, default_value, user_value, user_value_or

DEFAULT_SEED = 0


def _bad_device(k: PlanContext) -> bool:
    try:
        device = torch.device(k.set_options.get("device", "cpu"))
    except RuntimeError:
        return True
    if device.type == "cuda":
        return (device.index or 0) >= len(k.system.cuda_devices)
    return device.type != "cpu" and not (device.type == "mps" and k.system.mps)


def _each_has_one(k: PlanContext) -> bool:
    """Say whether several processes of this machine compute on GPUs, one each."""
    on_gpus = bool(k.system.cuda_devices) and not accelerate.uses_cpu(k)
    return (
        on_gpus
        and k.set_options.get("device", "cuda") == "cuda"
        and k.system.launched.local_size > 1
    )


def _is_one_for_all(k: PlanContext) -> bool:
    """Say whether a number was said, by which several processes would share one GPU."""
    own = k.system.one_gpu_each  # each calls its own cuda:0
    many = k.system.launched.local_size > 1 and not own
    return (
        many and torch.device(k.set_options.get("device", "cpu")).index is not None and _says_gpu(k)
    )


def _says_gpu(k: PlanContext) -> bool:
    return str(k.set_options.get("device", "cpu")).startswith("cuda")


def _says_mps(k: PlanContext) -> bool:
    return str(k.set_options.get("device", "cpu")).startswith("mps")


def _too_many(k: PlanContext) -> bool:
    here = k.system.launched
    enough = here.is_simulated or k.system.one_gpu_each
    return _each_has_one(k) and not enough and here.local_size > len(k.system.cuda_devices)


def _too_many_told(k: PlanContext) -> str:
    here, gpus = k.system.launched.local_size, len(k.system.cuda_devices)
    return (
        f"{here} processes were started on this machine, and {_gpus(gpus)} here: on "
        f"device='cuda' each needs its own. Say --nproc {gpus} (torchrun --nproc-per-node {gpus}), "
        "or device='cpu'."
    )


def _gpus(count: int) -> str:
    return "one GPU is" if count == 1 else f"{count} GPUs are"


def _its_own(*, said: bool) -> tuple[Rule, Rule]:
    """Give each of several processes a GPU of its own, by what was said or by itself."""

    def when(k: PlanContext) -> bool:
        return _each_has_one(k) and ("device" in k.set_options) is said

    before = "set {origin}; " if said else ""
    who = f"{before}each of {{k.system.launched.local_size}} processes of this machine"
    return (
        Rule(
            lambda k: when(k) and k.system.one_gpu_each,
            lambda _: torch.device("cuda", 0),
            f"{who} sees one GPU; they look whether it is another for each when they meet",
        ),
        Rule(
            when,
            lambda k: torch.device("cuda", k.system.launched.local_rank),
            f"{who} has a GPU of its own",
        ),
    )


def _devices(k: PlanContext) -> str:
    gpus = [f"cuda:{index}" for index in range(len(k.system.cuda_devices))]
    return ", ".join(["cpu", *gpus, *(["mps"] if k.system.mps else [])])


ROWS: Rows = {
    "seed": user_value_or("seed", DEFAULT_SEED, "not set: every run starts from the same seed"),
    "deterministic": user_value_or(
        "deterministic", False, "torch's default; True is slower on a GPU"
    ),
    "device": (
        *_its_own(said=True),
        user_value("device", torch.device),
        accelerate.DEVICE,
        *_its_own(said=False),
        Rule(
            lambda k: bool(k.system.cuda_devices),
            lambda _: torch.device("cuda"),
            "this machine has {k.system.cuda_devices[0]}",
        ),
        Rule(
            lambda k: k.system.mps,
            lambda _: torch.device("cpu"),
            "no CUDA device here; the Apple GPU is used if device='mps' is set",
        ),
        default_value(torch.device("cpu"), "no CUDA device here"),
    ),
    "precision": (
        Rule(
            lambda k: k.set_options.get("precision", "auto") != "auto",
            lambda k: k.set_options["precision"],
            "set {origin}",
        ),
        accelerate.PRECISION,
        Rule(
            lambda k: k.on_gpu and k.system.bf16_native,
            lambda _: "bf16",
            "auto: this GPU has bf16 natively",
        ),
        default_value("fp32", "auto: bf16 only where a GPU has it natively"),
    ),
}

REFUSALS: Refusals = {
    "device": (
        Constraint(
            _bad_device,
            lambda k: (
                f"device={k.set_options['device']!r} is not here. This machine has: {_devices(k)}."
            ),
        ),
        accelerate.DEVICE_REFUSAL,
        Constraint(
            _is_one_for_all,
            lambda k: (
                f"device={k.set_options['device']!r} is one GPU for the "
                f"{k.system.launched.local_size} processes of this machine, and each needs its "
                "own. "
                "Say device='cuda', with CUDA_VISIBLE_DEVICES=0,1 for which of them."
            ),
        ),
        Constraint(_too_many, _too_many_told),
        Constraint(
            lambda k: _says_mps(k) and k.system.launched.size > 1,
            lambda k: (
                f"device='mps' is one GPU for the {k.system.launched.size} processes that were "
                "started. Start one process, or set device='cpu'."
            ),
        ),
    ),
    "precision": (
        Constraint(
            lambda k: k.set_options.get("precision") == "tf32" and not (k.on_gpu and k.system.tf32),
            lambda k: (
                f"precision='tf32' needs an NVIDIA GPU of the Ampere generation or newer, and the "
                f"device is {k['device']}. Use precision='fp32' or 'bf16'."
            ),
        ),
        Constraint(
            lambda k: k.set_options.get("precision") == "fp16" and k.device == "mps",
            lambda _: (
                "precision='fp16' is not supported on device='mps': whether its loss scale skips a "
                "step exactly was not verified there. Use precision='bf16' or 'fp32'."
            ),
        ),
        *accelerate.PRECISION_REFUSALS,
    ),
}
