"""How many processes take a step together, and what each of them holds."""

from surestep.config.param_groups import parse_param_group
from surestep.engine.parallel.strategy import strategy_class
from surestep.engine.plan.context import Decision, PlanContext, resolves
from surestep.engine.resolve.requirements import SEVERAL

_SHARDS = {
    "full": "each rank holds a shard of parameters, gradients and optimizer state",
    "grad_op": "parameters are full from forward to backward; the rest is sharded",
    "hybrid": "sharded within a group of ranks; the groups are replicas of each other",
}
_INSTALL = {
    "deepspeed": "pip install setuptools wheel, then pip install --no-build-isolation "
    "'deepspeed<0.20'"
}
# Optimizers that need the full tensors, of which a rank of FSDP or ZeRO has shards.
NEEDS_FULL_TENSORS = {
    "adafactor": "computes means over the rows and columns of full matrices",
    "adamw8bit": "rounds moments in blocks of the full tensor",
    "muon": "makes full matrices orthogonal",
    "sparse_adam": "updates the rows of full tables",
}


@resolves("parallel.strategy")
def strategy(ctx: PlanContext) -> Decision:
    """Use the strategy that is set, or the one of the launcher."""
    wanted, launched = ctx.get("parallel.strategy", "auto"), ctx.system.launched
    if wanted != "auto":
        if launched.size == 1 and strategy_class(wanted).needs_ranks:
            ctx.reject(
                f"parallel.strategy={wanted!r} needs several processes, and this is one. Start "
                f"them with {SEVERAL}, or leave it out."
            )
        if launched.size > 1 and not strategy_class(wanted).shares_step:
            ctx.reject(
                f"parallel.strategy={wanted!r}, but {launched.size} processes were started: each "
                "would train the full run. Start one, or leave it out."
            )
        extra = strategy_class(wanted).extra
        if extra and extra not in ctx.system.extras:
            ctx.reject(
                f"parallel.strategy={wanted!r} needs the package {extra}, which is not installed. "
                f"Install it: {_INSTALL.get(extra, f'pip install {extra}')}."
            )
        return ctx.set_value()
    if launched.size == 1:
        return "single", "auto: one process"
    if ctx.is_set("parallel.shard"):
        return "fsdp", f"auto: parallel.shard is set {ctx.origin('parallel.shard')}"
    started = f"{launched.size} processes, started by {launched.launcher}; each has the full model"
    if ctx.task_info.own_step:
        return "ddp", f"auto: {started}, and manual_step.step sums the gradients"
    if ctx.system.accelerate is not None:
        return "accelerate", f"auto: accelerate launch started {launched.size} processes"
    return "ddp", f"auto: {started}"


@resolves("parallel.ranks")
def ranks(ctx: PlanContext) -> Decision:
    """Count the processes, and check that the strategy can take the steps of this Task."""
    name, launched = ctx["parallel.strategy"], ctx.system.launched
    if not strategy_class(name).runs_manual_steps:
        for cause, holds in (
            ("The Task brings its own step", ctx.task_info.own_step),
            ("optim.name='lbfgs' takes steps by itself", ctx.get("optim.name") == "lbfgs"),
        ):
            if holds:
                ctx.reject(
                    f"{cause}, and parallel.strategy={name!r} does not run such steps. Use "
                    "parallel.strategy='ddp'."
                )
    config = ctx.system.accelerate
    if config is not None and config.engine and strategy_class(name).extra == "accelerate":
        ctx.reject(
            f"accelerate's config shards the state by {config.engine}. Choose multi-GPU in "
            "`accelerate config`, and set --parallel.strategy fsdp or deepspeed here."
        )
    if launched.size == 1:
        return 1, "single process"
    return launched.size, f"{launched.nodes} machine(s) x {launched.local_size} processes"


@resolves("parallel.rank")
def rank(ctx: PlanContext) -> Decision:
    """Return which of the processes this one is."""
    launched = ctx.system.launched
    if launched.size == 1:
        return 0, "the only one"
    if launched.is_simulated:
        return 0, "the first of the planned ranks: it holds the most"
    return launched.rank, f"assigned by {launched.launcher}"


@resolves("parallel.find_unused_parameters")
def find_unused_parameters(ctx: PlanContext) -> Decision:
    """Let DDP expect no gradient of parameters that are frozen at first."""
    groups = map(str, ctx.get("optim.groups", ()))
    later = [text for text in groups if isinstance(parse_param_group(text).freeze, str)]
    takes = strategy_class(ctx["parallel.strategy"]).takes
    if not later or ctx["parallel.ranks"] == 1 or "find_unused_parameters" not in takes:
        return ctx.declared()
    if ctx.get("parallel.static_graph"):
        ctx.reject(
            "parallel.static_graph=True promises that every step uses the same parameters, and "
            f"optim.groups: {later[0]!r} freezes some at first. Leave one out."
        )
    if not ctx.get("parallel.find_unused_parameters", True):
        ctx.reject(
            "parallel.find_unused_parameters=False waits for a gradient of each parameter in each "
            f"step, and optim.groups: {later[0]!r} freezes some at first. Leave it out."
        )
    return ctx.set_or(True, f"optim.groups: {later[0]!r} has no gradients at first")


@resolves("parallel.backend")
def backend(ctx: PlanContext) -> Decision:
    """Use NCCL on GPUs."""
    if ctx.system.launched.size == 1:
        return "none", "one process needs no backend"
    return ("nccl", "the device is a GPU") if ctx.on_gpu else ("gloo", "the device is the CPU")


@resolves("parallel.replica_check_every")
def replica_check_every(ctx: PlanContext) -> Decision:
    """Compare replicas, if there are any."""
    wanted = ctx.get("parallel.replica_check_every")
    if ctx["parallel.shard"] in ("full", "grad_op") or ctx["parallel.zero_stage"] == 3:
        instead = "zero_stage=2" if ctx["parallel.zero_stage"] == 3 else "shard='hybrid'"
        if wanted is not None:
            ctx.reject(
                f"parallel.replica_check_every={wanted!r} compares replicas of the parameters, and "
                "here they are sharded over all ranks. Leave it out, or use "
                f"parallel.{instead}."
            )
        return ctx.set_or(None, "parameters are sharded over all ranks: there are no replicas")
    if ctx.system.launched.size == 1:
        return ctx.set_or(None, "one process has no replicas to compare")
    return ctx.set_or("1000 steps", "a check takes one pass over the parameters, at a log point")


@resolves("parallel.start_timeout_s")
def start_timeout_s(ctx: PlanContext) -> Decision:
    """Wait longer for the first step than for the others."""
    timeout = ctx["parallel.timeout_s"]
    if ctx.get("parallel.start_timeout_s", timeout) < timeout:
        ctx.reject(
            f"parallel.start_timeout_s={ctx.get('parallel.start_timeout_s'):g} is shorter than "
            f"parallel.timeout_s={timeout:g}, and the first step takes the longest. Set at least "
            "as much, or leave it out."
        )
    if timeout > 1800:
        return ctx.set_or(timeout, "not shorter than parallel.timeout_s")
    return ctx.set_or(1800.0, "the first step compiles and reads data; saving may take long")


def gathers_blocks(ctx: PlanContext) -> bool:
    """Return whether the strategy is FSDP, or a plug-in that shards as it does."""
    return strategy_class(ctx["parallel.strategy"]).gathers_blocks


@resolves("parallel.shard")
def shard(ctx: PlanContext) -> Decision:
    """Shard everything, if the strategy shards."""
    if not gathers_blocks(ctx):
        return None, "each process holds the full model"
    name, instead = ctx.get("optim.name"), "or use parallel.strategy='ddp'."
    if name in NEEDS_FULL_TENSORS:
        ctx.reject(
            f"optim.name={name!r} {NEEDS_FULL_TENSORS[name]}, and with parallel.strategy='fsdp' a "
            f"rank has shards. Set optim.name='adamw', {instead}"
        )
    if ctx.task_info.sparse:
        ctx.reject(
            "parallel.strategy='fsdp' cannot reduce the sparse gradient of "
            f"{ctx.task_info.sparse[0]}. Build the table with sparse=False, {instead}"
        )
    if ctx.get("channels_last"):
        ctx.reject(
            "channels_last=True changes the memory layout of parameters, and torch shards only "
            f"those in the default layout. Leave it out, {instead}"
        )
    value = ctx.get("parallel.shard")
    if value is not None:
        return value, f"{_SHARDS[value]}; set {ctx.origin('parallel.shard')}"
    return "full", _SHARDS["full"]


@resolves("parallel.shard_size")
def shard_size(ctx: PlanContext) -> Decision:
    """Shard within a machine if sharding is hybrid, and else over all ranks."""
    if not gathers_blocks(ctx):
        return ctx.set_or(1, "nothing is sharded")
    count = ctx["parallel.ranks"]
    if ctx["parallel.shard"] != "hybrid":
        return count, "sharded over all ranks"
    size = ctx.get("parallel.shard_size", ctx.system.launched.local_size)
    if count % size or not 1 < size < count:
        full = "parallel.shard='full'"
        sizes = [f"parallel.shard_size={n}" for n in range(2, count) if not count % n]
        ctx.reject(
            f"parallel.shard='hybrid' shards over groups of {size} ranks, and there are {count}: "
            "there must be several equal groups, each of more than one rank. Set "
            f"{' or '.join([*sizes, full])}."
        )
    return ctx.set_or(size, "hybrid: sharded within a machine, replicated across machines")


@resolves("parallel.wrap_policy")
def wrap_policy(ctx: PlanContext) -> Decision:
    """Choose the modules that are gathered one at a time."""
    if not gathers_blocks(ctx):
        return (), "nothing is gathered"
    units = ctx.task_info.blocks_by(str(ctx.get("parallel.wrap_policy", "auto")))
    if units.problem:
        ctx.reject(units.problem)
    if ctx.is_set("parallel.wrap_policy"):
        return units.names, f"{units.text}; set {ctx.origin('parallel.wrap_policy')}"
    return units.names, f"auto: {units.text}"


@resolves("parallel.offload")
def offload(ctx: PlanContext) -> Decision:
    """Check what FSDP can offload."""
    wanted = ctx.get("parallel.offload", "off")
    if gathers_blocks(ctx) and wanted == "optimizer":
        ctx.reject(
            "parallel.offload='optimizer' is not available with parallel.strategy='fsdp', which "
            "keeps parameters, gradients and optimizer state together. Use parallel.offload='all'."
        )
    if gathers_blocks(ctx) and wanted == "all" and ctx.on_gpu and ctx.get("precision") == "fp16":
        ctx.reject(
            "parallel.offload='all' leaves gradients on the host, and the loss scale of "
            "precision='fp16' is on the GPU. Use precision='bf16', or leave one out."
        )
    return ctx.declared()
