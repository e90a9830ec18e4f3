"""How parameters are cut over ranks, where they are: FSDP."""

from collections.abc import Callable

from surestep.engine.plan.plan import Constraint, PlanContext, Rule
from surestep.engine.rules.helpers import (
    SEVERAL,
    Refusals,
    Rows,
    default_value,
    is_set,
    user_value,
)

WORDS = {
    "FULL_SHARD": "full",
    "SHARD_GRAD_OP": "grad_op",
    "HYBRID_SHARD": "hybrid",
    "NO_SHARD": "none",
}
_PARTS = {
    "full": "each rank holds a part of parameters, gradients and optimizer state",
    "grad_op": "parameters are kept whole from forward to backward; the rest is in parts",
    "hybrid": "in parts within a group of ranks, which the other groups have copies of",
}
# What an optimizer needs whole, and has only a part of.
_WHOLE = {
    "adafactor": "takes means over the rows and columns of whole matrices",
    "adamw8bit": "rounds moments in blocks of the whole tensor",
    "muon": "makes whole matrices orthogonal",
    "sparse_adam": "moves the rows of whole tables",
}


def requested_sharding(k: PlanContext) -> str:
    """Return what was said of sharding, in our word for it; empty where nothing was."""
    wish = str(k.set_options.get("parallel.shard", ""))
    return WORDS.get(wish, wish)


def _is_fsdp(k: PlanContext) -> bool:
    return bool(k["parallel.strategy"] == "fsdp")


def _cannot(
    when: Callable[[PlanContext], bool], message: Callable[[PlanContext], str]
) -> Constraint:
    """Refuse what cannot be done on parts."""
    return Constraint(lambda k: _is_fsdp(k) and when(k), message)


def _cut(name: str) -> Rule:
    return Rule(
        lambda k: requested_sharding(k) == name,
        requested_sharding,
        f"{_PARTS[name]}; set {{origin}}",
    )


def _size(k: PlanContext) -> int:
    return int(k.set_options.get("parallel.shard_size", k.system.launched.local_size))


ROWS: Rows = {
    "parallel.shard": (
        Rule(
            lambda k: not _is_fsdp(k) and requested_sharding(k) == "none",
            lambda _: None,
            "set {origin}; nothing is cut: that is DDP",
        ),
        Rule(lambda k: not _is_fsdp(k), lambda _: None, "each process holds the whole model"),
        *(_cut(name) for name in _PARTS),
        default_value("full", _PARTS["full"]),
    ),
    "parallel.shard_size": (
        Rule(lambda k: not _is_fsdp(k), lambda _: 1, "nothing is cut"),
        user_value("parallel.shard_size"),
        Rule(
            lambda k: k["parallel.shard"] == "hybrid",
            _size,
            "hybrid: cut within a machine, copied across machines",
        ),
        Rule(lambda _: True, lambda k: k["parallel.ranks"], "cut over all ranks"),
    ),
    "parallel.wrap_policy": (
        Rule(lambda k: not _is_fsdp(k), lambda _: (), "nothing is gathered"),
        Rule(
            is_set("parallel.wrap_policy"),
            lambda k: k.blocks.names,
            "{k.blocks.text}; set {origin}",
        ),
        Rule(lambda _: True, lambda k: k.blocks.names, "auto: {k.blocks.text}"),
    ),
    "parallel.meta_init": (
        Rule(
            lambda k: bool(k.set_options.get("parallel.meta_init")),
            lambda _: True,
            "the first process builds the model on the host, the others its shapes; each block is "
            "sent and cut before the next; set {origin}",
        ),
        user_value("parallel.meta_init"),
        default_value(False, "each process builds the whole model on the host"),
    ),
    "parallel.offload": (
        user_value("parallel.offload"),
        default_value("off", "parameters and optimizer state stay on the device"),
    ),
}


def _instead(k: PlanContext) -> str:
    if k.system.launched.size == 1:
        return f"here is one. Start several: {SEVERAL}."
    return (
        f"parallel.strategy is {k['parallel.strategy']}. Leave that out, or say "
        "parallel.strategy='fsdp'."
    )


REFUSALS: Refusals = {
    "parallel.shard": (
        Constraint(
            lambda k: requested_sharding(k) not in ("", "none") and not _is_fsdp(k),
            lambda k: (
                f"parallel.shard={k.set_options['parallel.shard']!r} cuts parameters over "
                "processes, and " + _instead(k)
            ),
        ),
        _cannot(
            lambda k: k.set_options.get("optim.name") in _WHOLE,
            lambda k: (
                f"optim.name={k.set_options['optim.name']!r} "
                f"{_WHOLE[k.set_options['optim.name']]}, and with "
                "parallel.strategy='fsdp' a rank has parts. Say optim.name='adamw', or "
                "parallel.strategy='ddp'."
            ),
        ),
        _cannot(
            lambda k: bool(k.task_info.sparse),
            lambda k: (
                "parallel.strategy='fsdp' cannot add up the sparse gradient of "
                f"{k.task_info.sparse[0]} in "
                "parts. Build the table with sparse=False, or say parallel.strategy='ddp'."
            ),
        ),
        _cannot(
            lambda k: bool(k.set_options.get("channels_last")),
            lambda k: (
                f"channels_last={k.set_options['channels_last']} lays parameters out in another "
                "way, and "
                "torch cuts only those that lie in memory in their own. Leave it out, or say "
                "parallel.strategy='ddp'."
            ),
        ),
    ),
    "parallel.shard_size": (
        _cannot(
            lambda k: (
                k["parallel.shard"] == "hybrid"
                and (k["parallel.ranks"] % _size(k) > 0 or not 1 < _size(k) < k["parallel.ranks"])
            ),
            lambda k: (
                f"parallel.shard='hybrid' cuts over groups of {_size(k)} ranks, and there are "
                f"{k['parallel.ranks']}: groups must be equal, more than one, and of more than one "
                f"rank. {_sizes(k['parallel.ranks'])}"
            ),
        ),
    ),
    "parallel.wrap_policy": (
        _cannot(
            lambda k: bool(k.blocks.problem),
            lambda k: k.blocks.problem,
        ),
    ),
    "parallel.meta_init": (
        _cannot(
            lambda k: bool(k.set_options.get("parallel.meta_init")) and k.task_info.is_built,
            lambda _: (
                "parallel.meta_init=True is for a model that is not built yet, and "
                "Task(model=...) has a module. Give a function that makes it: model=lambda: Net()."
            ),
        ),
    ),
    "parallel.offload": (
        _cannot(
            lambda k: k.set_options.get("parallel.offload") == "optimizer",
            lambda _: (
                "parallel.offload='optimizer' is not FSDP's, which keeps parameters, gradients and "
                "optimizer state together. Say parallel.offload='all'."
            ),
        ),
        _cannot(
            lambda k: (
                k.set_options.get("parallel.offload", "off") != "off"
                and k.on_gpu
                and k.set_options.get("precision") == "fp16"
            ),
            lambda _: (
                "parallel.offload='all' leaves gradients on the host, and the loss scale of "
                "precision='fp16' is on the GPU. Say precision='bf16', or leave one out."
            ),
        ),
    ),
}


# Looked at with the options of speed, which are decided later.
COMPILE_REFUSALS = (
    _cannot(
        lambda k: k.set_options.get("compile", "off") not in ("off", "default"),
        lambda k: (
            f"compile={k.set_options['compile']!r} records what a GPU does at fixed addresses, and "
            "parallel.strategy='fsdp' gathers parameters to others each time. Say "
            "compile='default'."
        ),
    ),
)
BLOCKS_REFUSALS = (
    _cannot(
        lambda k: k["compile"] != "off" and k.set_options.get("compile_blocks") is False,
        lambda _: (
            "compile_blocks=False compiles the model at once, and a graph ends where "
            "parallel.strategy='fsdp' gathers a block. Leave it out."
        ),
    ),
)


def _sizes(ranks: int) -> str:
    sizes = [str(size) for size in range(2, ranks) if not ranks % size]
    if not sizes:
        return "Say parallel.shard='full'."
    return f"Say parallel.shard_size={' or '.join(sizes)}, or parallel.shard='full'."
