"""Seed, device and precision, and how often a run saves and shows what it does."""

import torch

from surestep.config.doctor import reasons_by_code
from surestep.engine.distributed.launcher_env import AccelerateConfig
from surestep.engine.parallel.strategy import strategy_class
from surestep.engine.plan.context import Decision, PlanContext, resolves

_MIN_SECONDS = 10.0  # between two saves, which take 15 to 120 ms each on a local disk
_TRACKERS = ("tensorboard", "mlflow", "wandb")  # each needs the package, and the extra, of its name


@resolves("device")
def device(ctx: PlanContext) -> Decision:
    """Use the device that is set, or else the best; each process of a machine has its own GPU."""
    _check_device(ctx)
    gpus, here = ctx.system.cuda_devices, ctx.system.launched
    wanted = ctx.get("device")
    on_cpu = ctx.system.accelerate is not None and ctx.system.accelerate.use_cpu
    if gpus and not on_cpu and wanted in (None, "cuda") and here.local_size > 1:
        index = 0 if ctx.system.has_own_gpu else here.local_rank
        which = "sees one GPU" if ctx.system.has_own_gpu else "has a GPU of its own"
        start = "" if wanted is None else f"set {ctx.origin('device')}; "
        reason = f"{start}each of {here.local_size} processes of this machine {which}"
        return torch.device("cuda", index), reason
    if wanted is not None:
        return torch.device(wanted), f"set {ctx.origin('device')}"
    if on_cpu:
        return torch.device("cpu"), "accelerate's config: use_cpu"
    if gpus:
        return torch.device("cuda"), f"this machine has {gpus[0]}"
    if ctx.system.mps:
        reason = "no CUDA device here; the Apple GPU is used if device='mps' is set"
        return torch.device("cpu"), reason
    return torch.device("cpu"), "no CUDA device here"


def _check_device(ctx: PlanContext) -> None:
    wanted, here, gpus = ctx.get("device", ""), ctx.system.launched, len(ctx.system.cuda_devices)
    if wanted and not _is_available(ctx, wanted):
        names = ["cpu", *(f"cuda:{index}" for index in range(gpus)), *["mps"] * ctx.system.mps]
        ctx.reject(f"device={wanted!r} is not available. This machine has: {', '.join(names)}.")
        return
    on_cpu = ctx.system.accelerate is not None and ctx.system.accelerate.use_cpu
    if on_cpu and wanted and not wanted.startswith("cpu"):
        ctx.reject(f"device={wanted!r}, but accelerate's config has use_cpu. Set only one of them.")
        return
    if here.size > 1 and wanted.startswith("mps"):
        ctx.reject(
            f"device='mps' is one GPU for {here.size} processes. Start one process, or set "
            "device='cpu'."
        )
    if here.local_size == 1 or ctx.system.has_own_gpu or on_cpu:
        return
    if wanted.startswith("cuda:"):
        ctx.reject(
            f"device={wanted!r} is one GPU for the {here.local_size} processes of this machine. "
            "Use device='cuda', and choose the GPUs with CUDA_VISIBLE_DEVICES=0,1."
        )
    elif wanted in ("", "cuda") and 0 < gpus < here.local_size and not here.is_simulated:
        ctx.reject(
            f"{here.local_size} processes were started on this machine, which has {gpus} GPU(s): "
            f"on device='cuda' each needs its own. Use --nproc {gpus} (torchrun --nproc-per-node "
            f"{gpus}), or device='cpu'."
        )


def _is_available(ctx: PlanContext, name: str) -> bool:
    try:
        wanted = torch.device(name)
    except RuntimeError:
        return False
    if wanted.type == "cuda":
        return (wanted.index or 0) < len(ctx.system.cuda_devices)
    return wanted.type == "cpu" or (wanted.type == "mps" and ctx.system.mps)


@resolves("precision")
def precision(ctx: PlanContext) -> Decision:
    """Use the precision that is set, accelerate's, or bf16 if the GPU has it natively."""
    wanted = ctx.get("precision", "auto")
    config = ctx.system.accelerate or AccelerateConfig()
    theirs = "fp32" if config.mixed_precision == "no" else config.mixed_precision
    if wanted == "tf32" and not (ctx.on_gpu and ctx.system.tf32):
        ctx.reject(
            "precision='tf32' needs an NVIDIA GPU of the Ampere generation or newer, and the "
            f"device is {ctx['device']}. Use precision='fp32' or 'bf16'."
        )
    if wanted == "fp16" and ctx.device == "mps":
        ctx.reject(
            "precision='fp16' is not supported on device='mps': it was not verified that its loss "
            "scale skips a step exactly. Use precision='bf16' or 'fp32'."
        )
    if "fp16" in (wanted, theirs) and not ctx.task_info.floating:
        ctx.reject(
            "precision='fp16' scales the loss, and torch cannot scale the gradients of complex "
            "parameters back. Use precision='bf16' or 'fp32'."
        )
    if theirs == "fp8":
        ctx.reject(
            "accelerate's config has mixed_precision fp8, which surestep does not support. Use "
            "bf16: accelerate launch --mixed_precision bf16."
        )
    elif config.mixed_precision != "no" and wanted not in ("auto", theirs):
        ctx.reject(
            f"precision={wanted!r}, but accelerate's config has mixed_precision {theirs}. Set the "
            "same in both, or only one of them."
        )
    if wanted != "auto":
        return ctx.set_value()
    if ctx.system.accelerate is not None:
        return theirs, f"accelerate's config: mixed_precision {config.mixed_precision}"
    if ctx.on_gpu and ctx.system.bf16_native:
        return "bf16", "auto: this GPU supports bf16 natively"
    return "fp32", "auto: bf16 only if the GPU supports it natively"


@resolves("profile")
def profile(ctx: PlanContext) -> Decision:
    """Check that the steps to profile are steps of the run."""
    if int((ctx.get("profile") or "0:0").split(":")[1]) > ctx["total_steps"]:
        ctx.reject(
            f"profile={ctx.get('profile')!r} goes beyond the run of {ctx['total_steps']} steps. "
            "Use earlier steps, or a longer run."
        )
    return ctx.declared()


@resolves("checkpoint.min_seconds")
def min_seconds(ctx: PlanContext) -> Decision:
    """Save the end of a short epoch only if the last such save was some time ago.

    Not if anything depends on the steps at which a run saves.
    """
    if ctx.is_set("checkpoint.every"):
        return None, "checkpoint.every is set"
    if ctx.get("checkpoint.keep_every") is not None:
        return None, "checkpoint.keep_every keeps checkpoints of certain steps"
    if ctx.get("on_spike") == "rollback":
        return None, "on_spike='rollback' returns to the last checkpoint"
    return _MIN_SECONDS, "an epoch may take less; checkpoint.every='1 epoch' saves at each end"


@resolves("checkpoint.keep_every")
def keep_every(ctx: PlanContext) -> Decision:
    """Check that the interval has a length in steps."""
    wanted = ctx.get("checkpoint.keep_every") or ""
    if "epoch" in wanted and ctx["steps_per_epoch"] is None:
        ctx.reject(
            f"checkpoint.keep_every={wanted!r} has no length in steps: the training data is a "
            "stream without a length. Set it in steps, such as '1000 steps'."
        )
    return ctx.declared()


@resolves("checkpoint.async_save")
def async_save(ctx: PlanContext) -> Decision:
    """Write in a thread if a second CPU can run it."""
    if ctx.system.cpus < 2:
        return ctx.set_or(False, "one CPU: a thread that writes would take it from the steps")
    return ctx.set_or(True, "a step waits only while the state is copied; a thread writes the copy")


@resolves("checkpoint.weights")
def saved_weights(ctx: PlanContext) -> Decision:
    """Leave the base of adapters out."""
    if ctx.task_info.adapters:
        reason = "adapters on a frozen base, which is built or read again and verified"
        return ctx.set_or("trained", reason)
    return ctx.set_or("all", "a checkpoint is complete by itself")


@resolves("logging.trackers")
def trackers(ctx: PlanContext) -> Decision:
    """Check that the package of each built-in tracker is installed."""
    for name in ctx.get("logging.trackers", ()):
        if name in _TRACKERS and name not in ctx.system.extras:
            ctx.reject(
                f"logging.trackers has {name!r}, whose package is not installed. Install it: "
                f"pip install {name}."
            )
    return ctx.declared()


@resolves("logging.per_layer")
def per_layer(ctx: PlanContext) -> Decision:
    """Check that the norm of each gradient is known."""
    if ctx.get("logging.per_layer"):
        _check_gradients(ctx, "logging.per_layer=True")
    return ctx.declared()


@resolves("logging.histograms")
def histograms(ctx: PlanContext) -> Decision:
    """Check that the interval has a length in steps, and that gradients can be read."""
    wanted = ctx.get("logging.histograms") or ""
    if wanted:
        _check_gradients(ctx, f"logging.histograms={wanted!r}")
    if "epoch" in wanted and ctx["steps_per_epoch"] is None:
        ctx.reject(
            f"logging.histograms={wanted!r} has no length in steps: the training data is a stream "
            "without a length. Set it in steps, such as '1000 steps'."
        )
    return ctx.declared()


def _check_gradients(ctx: PlanContext, typed: str) -> None:
    strategy = ctx["parallel.strategy"]
    if not strategy_class(strategy).has_param_grads:
        ctx.reject(
            f"{typed} reads the gradient of each parameter, and parallel.strategy={strategy!r} "
            f"keeps them outside of the model. Use parallel.strategy='fsdp', or leave "
            f"{typed.partition('=')[0]} out."
        )


@resolves("logging.graph")
def graph(ctx: PlanContext) -> Decision:
    """Check that TensorBoard is installed, and that a rank has the full model."""
    wanted, strategy = ctx.get("logging.graph"), ctx["parallel.strategy"]
    if wanted and "tensorboard" not in ctx.system.extras:
        ctx.reject(
            "logging.graph=True writes files of TensorBoard, which is not installed. Install it: "
            "pip install tensorboard."
        )
    if wanted and not strategy_class(strategy).copies_model:
        ctx.reject(
            f"logging.graph=True, but with parallel.strategy={strategy!r} no process has the full "
            "model. Write the graph in a run of one process, such as surestep train RECIPE "
            "--max-steps 1 --logging.graph, and leave logging.graph out here."
        )
    return ctx.declared()


@resolves("logging.mlflow_model")
def mlflow_model(ctx: PlanContext) -> Decision:
    """Log weights; a registered model is a program, since others load it without its code."""
    _require_mlflow(ctx)
    if ctx.get("logging.mlflow_model") is not None:
        return ctx.set_value()
    if ctx.get("logging.mlflow_registered_model") is not None:
        return "program", "the registered model runs without its code"
    return "weights", "exporting a program takes seconds of processor time at the end of each run"


@resolves("logging.mlflow_registered_model")
def mlflow_registered_model(ctx: PlanContext) -> Decision:
    """Check that MLflow gets a model to register, and that it can have the name."""
    _require_mlflow(ctx)
    name = ctx.get("logging.mlflow_registered_model")
    if name is not None and (not name.strip() or set(name) & set("/:'\"")):
        ctx.reject(
            f"logging.mlflow_registered_model={name!r} cannot be a name in MLflow's registry: it "
            "must not be empty, or have a slash, a colon or a quote."
        )
    if name is not None and ctx.get("logging.mlflow_model") == "off":
        ctx.reject(
            f"logging.mlflow_registered_model={name!r} has no model to register, since "
            "logging.mlflow_model='off'. Set logging.mlflow_model='weights' or 'program'."
        )
    return ctx.declared()


def _require_mlflow(ctx: PlanContext) -> None:
    if ctx.get(ctx.option) is not None and "mlflow" not in ctx.get("logging.trackers", ()):
        ctx.reject(
            f"{ctx.option}={ctx.get(ctx.option)!r} requires the tracker 'mlflow'. Set "
            f"logging.trackers='mlflow', or remove {ctx.option}."
        )


@resolves("logging.progress")
def progress(ctx: PlanContext) -> Decision:
    """Show a bar if something can show it."""
    if ctx.get("logging.progress", "auto") != "auto":
        return ctx.set_value()
    if ctx.system.display != "none":
        return "bar", f"a {ctx.system.display} is here"
    return "plain", "no terminal here"


@resolves("doctor.ignore")
def doctor_ignore(ctx: PlanContext) -> Decision:
    """Name the rules that are not checked, with their reasons."""
    reasons = reasons_by_code(ctx.get("doctor.ignore", ()) or ())
    if not reasons:
        return ctx.declared()
    why = "; ".join(f"{code}: {reason}" for code, reason in reasons.items())
    return tuple(reasons), f"{why}; set {ctx.origin('doctor.ignore')}"
