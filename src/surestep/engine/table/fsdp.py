"""How parameters are cut over ranks, where they are: FSDP."""

from collections.abc import Callable

from surestep.engine.plan import Known, Refusal, Row
from surestep.engine.table.rows import (
    SEVERAL,
    Refusals,
    Rows,
    default,
    is_said,
    refuse_unless,
    said,
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


def shard_of(k: Known) -> str:
    """Return what was said of sharding, in our word for it; empty where nothing was."""
    wish = str(k.said.get("parallel.shard", ""))
    return WORDS.get(wish, wish)


def _is_fsdp(k: Known) -> bool:
    return bool(k["parallel.kind"] == "fsdp")


def _not_fsdp(option: str) -> Refusal:
    return refuse_unless(
        "fsdp",
        option,
        belongs="is for parameters in parts",
        say="Say parallel.kind='fsdp' with several processes",
    )


def _cannot(when: Callable[[Known], bool], message: Callable[[Known], str]) -> Refusal:
    """Refuse what cannot be done on parts."""
    return Refusal(lambda k: _is_fsdp(k) and when(k), message)


def _of_ddp(option: str) -> Refusal:
    return _cannot(
        lambda k: bool(k.said.get(option)),
        lambda k: (
            f"{option}={k.said[option]} is an option of DDP, and parallel.kind is fsdp. Leave it "
            "out, or say parallel.kind='ddp'."
        ),
    )


def _cut(name: str) -> Row:
    return Row(lambda k: shard_of(k) == name, shard_of, f"{_PARTS[name]}; said: {{origin}}")


def _size(k: Known) -> int:
    return int(k.said.get("parallel.shard_size", k.facts.launched.local_size))


ROWS: Rows = {
    "parallel.shard": (
        Row(
            lambda k: not _is_fsdp(k) and shard_of(k) == "none",
            lambda _: None,
            "said: {origin}; nothing is cut: that is DDP",
        ),
        Row(lambda k: not _is_fsdp(k), lambda _: None, "each process holds the whole model"),
        *(_cut(name) for name in _PARTS),
        default("full", _PARTS["full"]),
    ),
    "parallel.shard_size": (
        Row(lambda k: not _is_fsdp(k), lambda _: 1, "nothing is cut"),
        said("parallel.shard_size"),
        Row(
            lambda k: k["parallel.shard"] == "hybrid",
            _size,
            "hybrid: cut within a machine, copied across machines",
        ),
        Row(lambda _: True, lambda k: k["parallel.ranks"], "cut over all ranks"),
    ),
    "parallel.blocks": (
        Row(lambda k: not _is_fsdp(k), lambda _: (), "nothing is gathered"),
        Row(
            is_said("parallel.blocks"),
            lambda k: k.blocks.names,
            "{k.blocks.text}; said: {origin}",
        ),
        Row(lambda _: True, lambda k: k.blocks.names, "auto: {k.blocks.text}"),
    ),
    "parallel.meta_start": (
        Row(
            lambda k: bool(k.said.get("parallel.meta_start")),
            lambda _: True,
            "the first process builds the model on the host, the others its shapes; each block is "
            "sent and cut before the next; said: {origin}",
        ),
        said("parallel.meta_start"),
        default(False, "each process builds the whole model on the host"),
    ),
    "parallel.offload": (
        said("parallel.offload"),
        default("off", "parameters and optimizer state stay on the device"),
    ),
}


def _instead(k: Known) -> str:
    if k.facts.launched.size == 1:
        return f"here is one. Start several: {SEVERAL}."
    return f"parallel.kind is {k['parallel.kind']}. Leave that out, or say parallel.kind='fsdp'."


REFUSALS: Refusals = {
    "parallel.shard": (
        Refusal(
            lambda k: shard_of(k) not in ("", "none") and not _is_fsdp(k),
            lambda k: (
                f"parallel.shard={k.said['parallel.shard']!r} cuts parameters over processes, and "
                + _instead(k)
            ),
        ),
        _cannot(
            lambda k: k.said.get("optim.name") in _WHOLE,
            lambda k: (
                f"optim.name={k.said['optim.name']!r} {_WHOLE[k.said['optim.name']]}, and with "
                "parallel.kind='fsdp' a rank has parts. Say optim.name='adamw', or "
                "parallel.kind='ddp'."
            ),
        ),
        _cannot(
            lambda k: bool(k.given.sparse),
            lambda k: (
                f"parallel.kind='fsdp' cannot add up the sparse gradient of {k.given.sparse[0]} in "
                "parts. Build the table with sparse=False, or say parallel.kind='ddp'."
            ),
        ),
        _cannot(
            lambda k: bool(k.said.get("channels_last")),
            lambda k: (
                f"channels_last={k.said['channels_last']} lays parameters out in another way, and "
                "torch cuts only those that lie in memory in their own. Leave it out, or say "
                "parallel.kind='ddp'."
            ),
        ),
        _of_ddp("parallel.find_unused_parameters"),
        _of_ddp("parallel.static_graph"),
    ),
    "parallel.shard_size": (
        Refusal(
            lambda k: "parallel.shard_size" in k.said and k["parallel.shard"] != "hybrid",
            lambda k: (
                f"parallel.shard_size={k.said['parallel.shard_size']} is for groups of ranks: say "
                "parallel.shard='hybrid' with it, or leave it out."
            ),
        ),
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
    "parallel.blocks": (
        _not_fsdp("parallel.blocks"),
        _cannot(
            lambda k: bool(k.blocks.problem),
            lambda k: k.blocks.problem,
        ),
    ),
    "parallel.meta_start": (
        Refusal(
            lambda k: bool(k.said.get("parallel.meta_start")) and k["parallel.kind"] == "deepspeed",
            lambda k: (
                "parallel.meta_start=True: DeepSpeed cuts a model that each process has built "
                f"whole in the memory of the host, {k.facts.launched.local_size} on a machine. "
                "Leave it out where there is room for so many, or say parallel.kind='fsdp' and "
                "parallel.shard='full'."
            ),
        ),
        _not_fsdp("parallel.meta_start"),
        _cannot(
            lambda k: bool(k.said.get("parallel.meta_start")) and k.given.is_built,
            lambda _: (
                "parallel.meta_start=True is for a model that is not built yet, and "
                "Task(model=...) has a module. Give a function that makes it: model=lambda: Net()."
            ),
        ),
    ),
    "parallel.offload": (
        _cannot(
            lambda k: k.said.get("parallel.offload") == "optimizer",
            lambda _: (
                "parallel.offload='optimizer' is not FSDP's, which keeps parameters, gradients and "
                "optimizer state together. Say parallel.offload='all'."
            ),
        ),
        Refusal(
            lambda k: (
                k.said.get("parallel.offload", "off") != "off"
                and k["parallel.kind"] not in ("fsdp", "deepspeed")
            ),
            lambda k: (
                f"parallel.offload={k.said['parallel.offload']!r} is for parameters in parts, and "
                f"parallel.kind is {k['parallel.kind']}. Say parallel.kind='fsdp' with several "
                "processes, or leave it out."
            ),
        ),
        _cannot(
            lambda k: (
                k.said.get("parallel.offload", "off") != "off"
                and k.on_gpu
                and k.said.get("precision") == "fp16"
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
        lambda k: k.said.get("compile", "off") not in ("off", "default"),
        lambda k: (
            f"compile={k.said['compile']!r} records what a GPU does at fixed addresses, and "
            "parallel.kind='fsdp' gathers parameters to others each time. Say compile='default'."
        ),
    ),
)
BLOCKS_REFUSALS = (
    _cannot(
        lambda k: k["compile"] != "off" and k.said.get("compile_blocks") is False,
        lambda _: (
            "compile_blocks=False compiles the model at once, and a graph ends where "
            "parallel.kind='fsdp' gathers a block. Leave it out."
        ),
    ),
)


def _sizes(ranks: int) -> str:
    sizes = [str(size) for size in range(2, ranks) if not ranks % size]
    if not sizes:
        return "Say parallel.shard='full'."
    return f"Say parallel.shard_size={' or '.join(sizes)}, or parallel.shard='full'."
