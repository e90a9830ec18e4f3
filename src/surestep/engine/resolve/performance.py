"""What can be faster on this machine: compiling, memory layout, products, attention, allocation."""

from surestep.engine.distributed.launcher_env import AccelerateConfig
from surestep.engine.plan.context import Decision, PlanContext, resolves
from surestep.engine.resolve.parallel import gathers_blocks

_SDPA_ON_CPU = ("flash", "math")
_SDPA_ON_GPU = ("flash", "efficient", "cudnn", "math")


@resolves("compile")
def compiling(ctx: PlanContext) -> Decision:
    """Compile if it is set, here or in accelerate's config."""
    wanted, config = ctx.get("compile", "off"), ctx.system.accelerate or AccelerateConfig()
    if wanted != "off" and not ctx.on_gpu and not ctx.system.compiler:
        ctx.reject(
            f"compile={wanted!r} needs a C++ compiler on a CPU, and none was found. Install g++ "
            "(Debian: apt install g++), or leave it out."
        )
    theirs = config.compile_mode
    dynamo = f"dynamo_backend {config.dynamo} in the mode {config.dynamo_mode}"
    if theirs is None:
        ctx.reject(
            f"accelerate's config has {dynamo}, which surestep does not support. Use inductor "
            "there, or accelerate launch --dynamo_backend no and --compile."
        )
    elif config.dynamo != "no" and ctx.get("compile", theirs) != theirs:
        ctx.reject(
            f"compile={wanted!r}, but accelerate's config has {dynamo}. Set only one of them."
        )
    if wanted not in ("off", "default") and gathers_blocks(ctx):
        ctx.reject(
            f"compile={wanted!r} records GPU work at fixed addresses, and parallel.strategy="
            f"{ctx['parallel.strategy']!r} gathers parameters at new ones. Use compile='default'."
        )
    if config.dynamo != "no":
        return ctx.set_or(theirs, f"accelerate's config: dynamo_backend {config.dynamo}")
    return ctx.declared()


@resolves("compile_blocks")
def compile_blocks(ctx: PlanContext) -> Decision:
    """Compile blocks separately if they are gathered separately."""
    by_block = ctx["compile"] != "off" and gathers_blocks(ctx)
    if by_block and ctx.get("compile_blocks") is False:
        ctx.reject(
            "compile_blocks=False compiles the full model, and parallel.strategy="
            f"{ctx['parallel.strategy']!r} gathers one block at a time. Leave it out."
        )
    if by_block:
        return ctx.set_or(True, "each block is gathered separately, and a graph ends there")
    return ctx.declared()


@resolves("cuda_graph")
def cuda_graph(ctx: PlanContext) -> Decision:
    """Reject what the host decides within a step."""
    if not ctx.get("cuda_graph"):
        return ctx.declared()
    start = "cuda_graph=True replays what one GPU does in a step, and"
    strategy = ctx["parallel.strategy"]
    if strategy != "single":
        ctx.reject(
            f"{start} parallel.strategy={strategy!r} exchanges gradients with other processes. "
            "Leave out cuda_graph."
        )
    elif ctx.task_info.own_step:
        ctx.reject(f"{start} Task(step=...) is code of the host. Leave out cuda_graph.")
    elif ctx["guard"] != "device":
        ctx.reject(
            f"{start} here the host decides whether it counts ({ctx.reasons['guard']}). Change "
            "that, or leave out cuda_graph."
        )
    if ctx["activation_checkpointing"] != "off":
        ctx.reject(
            f"{start} activation_checkpointing={ctx['activation_checkpointing']!r} reads the state "
            "of generators on the host. Leave out one of them."
        )
    if ctx.get("micro_batch_size") == "fit":
        ctx.reject(
            f"{start} micro_batch_size='fit' takes a step again if it runs out of memory. Set a "
            "number."
        )
    return ctx.declared()


@resolves("matmul_precision")
def matmul_precision(ctx: PlanContext) -> Decision:
    """Follow the precision."""
    allowed = {"tf32": ("high", "medium"), "fp32": ("highest",)}.get(ctx["precision"])
    wanted = ctx.get("matmul_precision")
    if ctx.on_gpu and wanted is not None and allowed is not None and wanted not in allowed:
        ctx.reject(
            f"matmul_precision={wanted!r}, and precision is {ctx['precision']}. Set "
            "precision='tf32' for 'high', 'fp32' for 'highest', or leave one out."
        )
    if ctx["precision"] == "tf32":
        return ctx.set_or("high", "precision is tf32")
    return ctx.set_or("highest", "fp32 products keep all their digits")


def list_sdpa_backends(device: str) -> tuple[str, ...]:
    """List the backends of attention that a type of device has."""
    return _SDPA_ON_GPU if device == "cuda" else _SDPA_ON_CPU


@resolves("sdpa_backend")
def sdpa_backend(ctx: PlanContext) -> Decision:
    """Check that the device has the backend."""
    wanted = ctx.get("sdpa_backend", "auto")
    backends = list_sdpa_backends(ctx.device)
    if wanted not in ("auto", *backends):
        ctx.reject(
            f"sdpa_backend={wanted!r} is for a GPU, and the device is {ctx['device']}, which has: "
            f"{', '.join(backends)}."
        )
    return ctx.declared()


@resolves("cpu_allocator")
def cpu_allocator(ctx: PlanContext) -> Decision:
    """Retain freed memory on a CPU, on huge pages if the system has them."""
    wanted, allocator = ctx.get("cpu_allocator", "auto"), ctx.system.allocator
    why = None
    if allocator.name != "glibc":
        why = f"malloc is not glibc's ({allocator.name})"
    elif allocator.settings:
        why = f"{allocator.settings[0]} is set in the environment"
    if why is not None and wanted in ("retain", "huge_pages"):
        ctx.reject(f"cpu_allocator={wanted!r} sets up glibc's malloc, and {why}. Leave it out.")
    if wanted == "huge_pages" and not allocator.huge_pages:
        ctx.reject(
            "cpu_allocator='huge_pages' needs Linux with 'madvise' in "
            "/sys/kernel/mm/transparent_hugepage/enabled, overcommitted memory and no limit on "
            "address space (ulimit -v, -d). Use cpu_allocator='retain'."
        )
    if wanted != "auto":
        return ctx.set_value()
    if ctx.on_gpu:
        return "default", "auto: the device is not the CPU"
    if why is not None:
        return "default", f"auto: {why}"
    if allocator.huge_pages:
        return (
            "huge_pages",
            "auto: a step on a CPU is faster if it uses freed memory again, on huge pages",
        )
    return "retain", "auto: a step on a CPU is faster if it uses freed memory again"
