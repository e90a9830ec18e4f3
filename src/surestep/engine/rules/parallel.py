"""How many processes take a step together, and what each of them holds."""

from surestep.engine.parallel.strategy import strategy_class
from surestep.engine.plan.context import Decision, PlanContext
from surestep.engine.rules.rule import SEVERAL, rule

_SHARDS = {
    "full": "each rank holds a shard of parameters, gradients and optimizer state",
    "grad_op": "parameters are full from forward to backward; the rest is sharded",
    "hybrid": "sharded within a group of ranks; the groups are replicas of each other",
}
# Optimizers that need the full tensors, of which a rank of FSDP or ZeRO has shards.
NEEDS_FULL_TENSORS = {
    "adafactor": "computes means over the rows and columns of full matrices",
    "adamw8bit": "rounds moments in blocks of the full tensor",
    "muon": "makes full matrices orthogonal",
    "sparse_adam": "updates the rows of full tables",
}


@rule("parallel.strategy")
def strategy(k: PlanContext) -> Decision:
    """Use the strategy that is set, or the one of the launcher."""
    wanted, launched = k.get("parallel.strategy", "auto"), k.system.launched
    if wanted != "auto":
        if launched.size == 1 and strategy_class(wanted).needs_ranks:
            k.reject(
                f"parallel.strategy={wanted!r} needs several processes, and this is one. Start "
                f"them with {SEVERAL}, or leave it out."
            )
        if launched.size > 1 and wanted == "single":
            k.reject(
                f"parallel.strategy='single', but {launched.size} processes were started: each "
                "would train the full run. Start one, or leave it out."
            )
        if wanted == "accelerate" and "accelerate" not in k.system.extras:
            k.reject(
                "parallel.strategy='accelerate' needs a package that is not installed. Install it "
                "with: pip install 'surestep[accelerate]'."
            )
        return k.set_value()
    if launched.size == 1:
        return "single", "auto: one process"
    if k.is_set("parallel.shard"):
        return "fsdp", f"auto: parallel.shard is set {k.origin('parallel.shard')}"
    started = f"{launched.size} processes, started by {launched.launcher}; each has the full model"
    if k.task_info.own_step:
        return "ddp", f"auto: {started}, and turn.step sums the gradients"
    if k.system.accelerate is not None:
        return "accelerate", f"auto: accelerate launch started {launched.size} processes"
    return "ddp", f"auto: {started}"


@rule("parallel.ranks")
def ranks(k: PlanContext) -> Decision:
    """Count the processes, and check that the strategy can take the steps of this Task."""
    name, launched = k["parallel.strategy"], k.system.launched
    if not strategy_class(name).runs_manual_steps:
        for cause, holds in (
            ("The Task brings its own step", k.task_info.own_step),
            ("optim.name='lbfgs' takes steps by itself", k.get("optim.name") == "lbfgs"),
        ):
            if holds:
                k.reject(
                    f"{cause}, which needs the full model in each process, and parallel.strategy="
                    f"{name!r} does not keep it there. Use parallel.strategy='ddp'."
                )
    config = k.system.accelerate
    if config is not None and config.engine and name == "accelerate":
        k.reject(
            f"accelerate's config shards the state by {config.engine}. Choose multi-GPU in "
            "`accelerate config`, and set --parallel.strategy fsdp or deepspeed here."
        )
    if launched.size == 1:
        return 1, "single process"
    return launched.size, f"{launched.nodes} machine(s) x {launched.local_size} processes"


@rule("parallel.rank")
def rank(k: PlanContext) -> Decision:
    """Return which of the processes this one is."""
    launched = k.system.launched
    if launched.size == 1:
        return 0, "the only one"
    if launched.is_simulated:
        return 0, "the first of the planned ranks: it holds the most"
    return launched.rank, f"assigned by {launched.launcher}"


@rule("parallel.backend")
def backend(k: PlanContext) -> Decision:
    """Use NCCL on GPUs."""
    if k.system.launched.size == 1:
        return "none", "one process needs no backend"
    return ("nccl", "the device is a GPU") if k.on_gpu else ("gloo", "the device is the CPU")


@rule("parallel.find_unused_parameters", "parallel.static_graph")
def reducer(k: PlanContext) -> Decision:
    """Check that DDP reduces the gradients."""
    if k.get(k.option) and k.task_info.own_step:
        k.reject(
            f"{k.option}=True tells DDP which gradients to wait for, and the Task brings its own "
            "step, in which turn.step sums those of its optimizer. Leave it out."
        )
    return k.declared()


@rule("parallel.replica_check_every")
def replica_check_every(k: PlanContext) -> Decision:
    """Compare replicas, if there are any."""
    wanted = k.get("parallel.replica_check_every")
    if k["parallel.shard"] in ("full", "grad_op") or k["parallel.zero_stage"] == 3:
        instead = "zero_stage=2" if k["parallel.zero_stage"] == 3 else "shard='hybrid'"
        if wanted is not None:
            k.reject(
                f"parallel.replica_check_every={wanted!r} compares replicas of the parameters, and "
                "here they are sharded over all ranks. Leave it out, or use "
                f"parallel.{instead}."
            )
        return k.set_or(None, "parameters are sharded over all ranks: there are no replicas")
    if k.system.launched.size == 1:
        return k.set_or(None, "one process has no replicas to compare")
    return k.set_or("1000 steps", "one pass over the parameters, at the log point after")


@rule("parallel.start_timeout_s")
def start_timeout_s(k: PlanContext) -> Decision:
    """Wait longer for the first step than for the others."""
    timeout = k["parallel.timeout_s"]
    if k.get("parallel.start_timeout_s", timeout) < timeout:
        k.reject(
            f"parallel.start_timeout_s={k.get('parallel.start_timeout_s'):g} is shorter than "
            f"parallel.timeout_s={timeout:g}, and the first step takes the longest. Set at least "
            "as much, or leave it out."
        )
    if timeout > 1800:
        return k.set_or(timeout, "not shorter than parallel.timeout_s")
    return k.set_or(1800.0, "the first step compiles and reads data; saving may take long")


def _is_sharded(k: PlanContext) -> bool:
    """Return whether the strategy is FSDP, or a plug-in that shards as it does."""
    return strategy_class(k["parallel.strategy"]).gathers_blocks


@rule("parallel.shard")
def shard(k: PlanContext) -> Decision:
    """Shard everything, if the strategy shards."""
    if not _is_sharded(k):
        return None, "each process holds the full model"
    name, instead = k.get("optim.name"), "or use parallel.strategy='ddp'."
    if name in NEEDS_FULL_TENSORS:
        k.reject(
            f"optim.name={name!r} {NEEDS_FULL_TENSORS[name]}, and with parallel.strategy='fsdp' a "
            f"rank has shards. Set optim.name='adamw', {instead}"
        )
    if k.task_info.sparse:
        k.reject(
            "parallel.strategy='fsdp' cannot reduce the sparse gradient of "
            f"{k.task_info.sparse[0]}. Build the table with sparse=False, {instead}"
        )
    if k.get("channels_last"):
        k.reject(
            "channels_last=True changes the memory layout of parameters, and torch shards only "
            f"those in the default layout. Leave it out, {instead}"
        )
    value = k.get("parallel.shard")
    if value is not None:
        return value, f"{_SHARDS[value]}; set {k.origin('parallel.shard')}"
    return "full", _SHARDS["full"]


@rule("parallel.shard_size")
def shard_size(k: PlanContext) -> Decision:
    """Shard within a machine if sharding is hybrid, and else over all ranks."""
    if not _is_sharded(k):
        return k.set_or(1, "nothing is sharded")
    count = k["parallel.ranks"]
    if k["parallel.shard"] != "hybrid":
        return count, "sharded over all ranks"
    size = k.get("parallel.shard_size", k.system.launched.local_size)
    if count % size or not 1 < size < count:
        full = "parallel.shard='full'"
        sizes = [f"parallel.shard_size={each}" for each in range(2, count) if not count % each]
        k.reject(
            f"parallel.shard='hybrid' shards over groups of {size} ranks, and there are {count}: "
            "there must be several equal groups, each of more than one rank. Set "
            f"{' or '.join([*sizes, full])}."
        )
    return k.set_or(size, "hybrid: sharded within a machine, replicated across machines")


@rule("parallel.wrap_policy")
def wrap_policy(k: PlanContext) -> Decision:
    """Choose the modules that are gathered one at a time."""
    if not _is_sharded(k):
        return (), "nothing is gathered"
    units = k.task_info.blocks_by(str(k.get("parallel.wrap_policy", "auto")))
    if units.problem:
        k.reject(units.problem)
    if k.is_set("parallel.wrap_policy"):
        return units.names, f"{units.text}; set {k.origin('parallel.wrap_policy')}"
    return units.names, f"auto: {units.text}"


@rule("parallel.meta_init")
def meta_init(k: PlanContext) -> Decision:
    """Check that the model is not built yet."""
    if k.get("parallel.meta_init") and k.task_info.is_built:
        k.reject(
            "parallel.meta_init=True is for a model that is not built yet, and Task(model=...) is "
            "a module. Pass a function that builds it: model=lambda: Net()."
        )
    return k.declared()


@rule("parallel.offload")
def offload(k: PlanContext) -> Decision:
    """Check what FSDP can offload."""
    wanted = k.get("parallel.offload", "off")
    if _is_sharded(k) and wanted == "optimizer":
        k.reject(
            "parallel.offload='optimizer' is not available with parallel.strategy='fsdp', which "
            "keeps parameters, gradients and optimizer state together. Use parallel.offload='all'."
        )
    if _is_sharded(k) and wanted == "all" and k.on_gpu and k.get("precision") == "fp16":
        k.reject(
            "parallel.offload='all' leaves gradients on the host, and the loss scale of "
            "precision='fp16' is on the GPU. Use precision='bf16', or leave one out."
        )
    return k.declared()
