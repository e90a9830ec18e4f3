"""Seed, device and precision, and how often a run saves and shows what it does."""

import torch

from surestep.engine.distributed.launcher_env import AccelerateConfig
from surestep.engine.plan.context import Decision, PlanContext
from surestep.engine.rules.rule import rule


@rule("device")
def device(k: PlanContext) -> Decision:
    """Use the device that is set, or else the best; each process of a machine has its own GPU."""
    _check_device(k)
    gpus, here = k.system.cuda_devices, k.system.launched
    wanted = k.get("device")
    on_cpu = k.system.accelerate is not None and k.system.accelerate.use_cpu
    if gpus and not on_cpu and wanted in (None, "cuda") and here.local_size > 1:
        index = 0 if k.system.one_gpu_each else here.local_rank
        which = "sees one GPU" if k.system.one_gpu_each else "has a GPU of its own"
        start = "" if wanted is None else f"set {k.origin('device')}; "
        reason = f"{start}each of {here.local_size} processes of this machine {which}"
        return torch.device("cuda", index), reason
    if wanted is not None:
        return torch.device(wanted), f"set {k.origin('device')}"
    if on_cpu:
        return torch.device("cpu"), "accelerate's config: use_cpu"
    if gpus:
        return torch.device("cuda"), f"this machine has {gpus[0]}"
    if k.system.mps:
        reason = "no CUDA device here; the Apple GPU is used if device='mps' is set"
        return torch.device("cpu"), reason
    return torch.device("cpu"), "no CUDA device here"


def _check_device(k: PlanContext) -> None:
    wanted, here, gpus = k.get("device", ""), k.system.launched, len(k.system.cuda_devices)
    if wanted and not _is_available(k, wanted):
        names = ["cpu", *(f"cuda:{index}" for index in range(gpus)), *["mps"] * k.system.mps]
        k.reject(f"device={wanted!r} is not available. This machine has: {', '.join(names)}.")
        return
    on_cpu = k.system.accelerate is not None and k.system.accelerate.use_cpu
    if on_cpu and wanted and not wanted.startswith("cpu"):
        k.reject(f"device={wanted!r}, but accelerate's config has use_cpu. Set only one of them.")
        return
    if here.size > 1 and wanted.startswith("mps"):
        k.reject(
            f"device='mps' is one GPU for {here.size} processes. Start one process, or set "
            "device='cpu'."
        )
    if here.local_size == 1 or k.system.one_gpu_each or on_cpu:
        return
    if wanted.startswith("cuda:"):
        k.reject(
            f"device={wanted!r} is one GPU for the {here.local_size} processes of this machine. "
            "Use device='cuda', and choose the GPUs with CUDA_VISIBLE_DEVICES=0,1."
        )
    elif wanted in ("", "cuda") and 0 < gpus < here.local_size and not here.is_simulated:
        k.reject(
            f"{here.local_size} processes were started on this machine, which has {gpus} GPU(s): "
            f"on device='cuda' each needs its own. Use --nproc {gpus} (torchrun --nproc-per-node "
            f"{gpus}), or device='cpu'."
        )


def _is_available(k: PlanContext, name: str) -> bool:
    try:
        wanted = torch.device(name)
    except RuntimeError:
        return False
    if wanted.type == "cuda":
        return (wanted.index or 0) < len(k.system.cuda_devices)
    return wanted.type == "cpu" or (wanted.type == "mps" and k.system.mps)


@rule("precision")
def precision(k: PlanContext) -> Decision:
    """Use the precision that is set, accelerate's, or bf16 if the GPU has it natively."""
    wanted = k.get("precision", "auto")
    config = k.system.accelerate or AccelerateConfig()
    theirs = "fp32" if config.mixed_precision == "no" else config.mixed_precision
    if wanted == "tf32" and not (k.on_gpu and k.system.tf32):
        k.reject(
            "precision='tf32' needs an NVIDIA GPU of the Ampere generation or newer, and the "
            f"device is {k['device']}. Use precision='fp32' or 'bf16'."
        )
    if wanted == "fp16" and k.device == "mps":
        k.reject(
            "precision='fp16' is not supported on device='mps': it was not verified that its loss "
            "scale skips a step exactly. Use precision='bf16' or 'fp32'."
        )
    if theirs == "fp8":
        k.reject(
            "accelerate's config has mixed_precision fp8, which surestep does not support. Use "
            "bf16: accelerate launch --mixed_precision bf16."
        )
    elif config.mixed_precision != "no" and wanted not in ("auto", theirs):
        k.reject(
            f"precision={wanted!r}, but accelerate's config has mixed_precision {theirs}. Set the "
            "same in both, or only one of them."
        )
    if wanted != "auto":
        return k.set_value()
    if k.system.accelerate is not None:
        return theirs, f"accelerate's config: mixed_precision {config.mixed_precision}"
    if k.on_gpu and k.system.bf16_native:
        return "bf16", "auto: this GPU supports bf16 natively"
    return "fp32", "auto: bf16 only if the GPU supports it natively"


@rule("profile")
def profile(k: PlanContext) -> Decision:
    """Check that the steps to profile are steps of the run."""
    if int((k.get("profile") or "0:0").split(":")[1]) > k["total_steps"]:
        k.reject(
            f"profile={k.get('profile')!r} goes beyond the run of {k['total_steps']} steps. Use "
            "earlier steps, or a longer run."
        )
    return k.declared()


@rule("checkpoint.keep_every")
def keep_every(k: PlanContext) -> Decision:
    """Check that the interval has a length in steps."""
    wanted = k.get("checkpoint.keep_every") or ""
    if "epoch" in wanted and k["steps_per_epoch"] is None:
        k.reject(
            f"checkpoint.keep_every={wanted!r} has no length in steps: the training data is a "
            "stream without a length. Set it in steps, such as '1000 steps'."
        )
    return k.declared()


@rule("checkpoint.async_save")
def async_save(k: PlanContext) -> Decision:
    """Write in a thread if a second CPU can run it."""
    if k.system.cpus < 2:
        return k.set_or(False, "one CPU: a thread that writes would take it from the steps")
    return k.set_or(True, "a step waits only while the state is copied; a thread writes the copy")


@rule("checkpoint.weights")
def saved_weights(k: PlanContext) -> Decision:
    """Leave the base of adapters out."""
    if k.task_info.adapters:
        reason = "adapters on a frozen base, which is built or read again and verified"
        return k.set_or("trained", reason)
    return k.set_or("all", "a checkpoint is complete by itself")


@rule("logging.progress")
def progress(k: PlanContext) -> Decision:
    """Show a bar if something can show it."""
    if k.get("logging.progress", "auto") != "auto":
        return k.set_value()
    if k.system.display != "none":
        return "bar", f"a {k.system.display} is here"
    return "plain", "no terminal here"
