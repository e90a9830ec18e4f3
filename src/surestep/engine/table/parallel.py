"""How many processes make one step, and how."""

import math
from collections.abc import Callable

from surestep.base.duration import parse_duration
from surestep.engine.plan import Known, Refusal, Row
from surestep.engine.table import accelerate
from surestep.engine.table.fsdp import shard_of
from surestep.engine.table.rows import SEVERAL, Refusals, Rows, default, plain, said

TIMEOUT_S, START_TIMEOUT_S = 300.0, 1800.0


def _many(k: Known) -> bool:
    return k.facts.launched.size > 1


def _kind(k: Known) -> str:
    return str(k.said.get("parallel.kind", "auto"))


def _needs_many(option: str) -> Refusal:
    return Refusal(
        lambda k: option in k.said and k["parallel.kind"] == "single",
        lambda k: (
            f"{option}={k.said[option]!r} is for several processes, and here is one. Start them "
            f"with {SEVERAL}, or leave it out."
        ),
    )


def _of_ddps_reducer(option: str) -> Refusal:
    """Refuse what tells DDP how to wait for gradients, where DDP does not add them up."""
    return Refusal(
        lambda k: bool(k.said.get(option)) and k.given.own_step,
        lambda k: (
            f"{option}={k.said[option]} tells DDP which gradients to wait for, and the Task brings "
            "its own step: turn.step adds up those of its optimizer, whichever there are. Leave "
            "it out."
        ),
    )


def _copies_only(when: Callable[[Known], bool], what: str) -> Refusal:
    """Refuse what needs a copy of the model in each process, where there is none."""
    return Refusal(
        lambda k: k["parallel.kind"] not in ("single", "ddp") and when(k),
        lambda k: (
            f"{what}, and needs a copy of the model in each process, which "
            f"parallel.kind={k['parallel.kind']!r} does not keep. Say parallel.kind='ddp'."
        ),
    )


def _has_no_copies(k: Known) -> bool:
    """Say whether no two ranks hold the same: FSDP cuts over all of them, or ZeRO 3 does."""
    cut = k["parallel.kind"] == "fsdp" and shard_of(k) != "hybrid"
    return cut or (k["parallel.kind"] == "deepspeed" and k.said.get("parallel.zero") == 3)


ROWS: Rows = {
    "parallel.kind": (
        Row(
            lambda k: _kind(k) == "fsdp" and shard_of(k) == "none",
            lambda _: "ddp",
            "parallel.shard={k.said[parallel.shard]} cuts nothing: that is DDP",
        ),
        Row(
            lambda k: _kind(k) != "auto",
            lambda k: k.said["parallel.kind"],
            "said: {origin}",
        ),
        Row(
            lambda k: _many(k) and shard_of(k) not in ("", "none"),
            lambda _: "fsdp",
            "auto: parallel.shard is said: {origins[parallel.shard]}",
        ),
        Row(
            lambda k: _many(k) and k.given.own_step,
            lambda _: "ddp",
            "auto: {k.facts.launched.size} processes, started by {k.facts.launched.by}; each has "
            "a copy of the model, and turn.step adds up the gradients",
        ),
        Row(
            lambda k: _many(k) and k.facts.accelerate is not None,
            lambda _: "accelerate",
            "auto: accelerate launch started {k.facts.launched.size} processes",
        ),
        Row(
            _many,
            lambda _: "ddp",
            "auto: {k.facts.launched.size} processes, started by {k.facts.launched.by}; each has "
            "a copy of the model",
        ),
        default("single", "auto: one process"),
    ),
    "parallel.ranks": (
        Row(
            _many,
            lambda k: k.facts.launched.size,
            "{k.facts.launched.nodes} machine(s) x {k.facts.launched.local_size} processes",
        ),
        default(1, "nobody started more"),
    ),
    "parallel.rank": (
        Row(
            lambda k: _many(k) and k.facts.launched.imagined,
            lambda _: 0,
            "of the ranks that are planned for, the first: it holds the most",
        ),
        Row(_many, lambda k: k.facts.launched.rank, "said by {k.facts.launched.by}"),
        default(0, "the only one"),
    ),
    "parallel.backend": (
        Row(lambda k: not _many(k), lambda _: "none", "one process talks to nobody"),
        Row(lambda k: k.on_gpu, lambda _: "nccl", "the device is a GPU"),
        default("gloo", "the device is the CPU"),
    ),
    "parallel.find_unused_parameters": plain(
        "parallel.find_unused_parameters", False, "each step looks for none: they are an error"
    ),
    "parallel.static_graph": (
        Row(
            lambda k: bool(k.said.get("parallel.static_graph")),
            lambda _: True,
            "each step uses the parameters of the first; of one that is not used any more torch "
            "may say nothing, and the step finds it on a CPU, else parallel.check_every; said: "
            "{origin}",
        ),
        *plain("parallel.static_graph", False, "nothing said: another graph may come at any step"),
    ),
    "parallel.sync_batchnorm": plain(
        "parallel.sync_batchnorm", False, "each rank takes statistics of its own samples"
    ),
    "parallel.nccl_debug": plain(
        "parallel.nccl_debug", False, "nothing said: NCCL tells of errors only"
    ),
    "parallel.check_every": (
        said("parallel.check_every", parse_duration),
        Row(lambda k: not _many(k), lambda _: None, "one process has no copies to compare"),
        Row(
            _has_no_copies,
            lambda _: None,
            "parameters are cut over all ranks: no two hold the same, and nothing is compared",
        ),
        default(
            parse_duration("1000 steps"), "one pass over the parameters, at the log point after"
        ),
    ),
    "parallel.timeout_s": (
        said("parallel.timeout_s", float),
        default(TIMEOUT_S, "after the first step nobody is late for long, unless it hangs"),
    ),
    "parallel.start_timeout_s": (
        said("parallel.start_timeout_s", float),
        Row(
            lambda k: k["parallel.timeout_s"] > START_TIMEOUT_S,
            lambda k: k["parallel.timeout_s"],
            "no shorter than parallel.timeout_s",
        ),
        default(START_TIMEOUT_S, "the first step compiles and reads anew; saving may take long"),
    ),
}

REFUSALS: Refusals = {
    "parallel.kind": (
        Refusal(
            lambda k: _kind(k) in ("ddp", "fsdp", "deepspeed") and not _many(k),
            lambda k: (
                f"parallel.kind={_kind(k)!r} needs several processes, and here is one. Start them "
                f"with {SEVERAL}, or leave it out."
            ),
        ),
        Refusal(
            lambda k: _kind(k) == "single" and _many(k),
            lambda k: (
                f"parallel.kind='single', but {k.facts.launched.size} processes were started: each "
                "would train the whole run. Start one, or leave it out."
            ),
        ),
        accelerate.KIND_REFUSAL,
    ),
    "parallel.ranks": (
        *accelerate.ENGINE_REFUSALS,
        _copies_only(lambda k: k.given.own_step, "The Task brings its own step"),
        _copies_only(
            lambda k: k.said.get("optim.name") == "lbfgs",
            "optim.name='lbfgs' evaluates the batch by itself",
        ),
    ),
    "parallel.find_unused_parameters": (
        _needs_many("parallel.find_unused_parameters"),
        _of_ddps_reducer("parallel.find_unused_parameters"),
    ),
    "parallel.static_graph": (
        _needs_many("parallel.static_graph"),
        _of_ddps_reducer("parallel.static_graph"),
        Refusal(
            lambda k: bool(
                k.said.get("parallel.static_graph") and k["parallel.find_unused_parameters"]
            ),
            lambda _: (
                "parallel.static_graph=True promises that each step uses the same parameters, and "
                "parallel.find_unused_parameters=True that they change. Say one of them."
            ),
        ),
    ),
    "parallel.nccl_debug": (
        Refusal(
            lambda k: bool(k.said.get("parallel.nccl_debug")) and k["parallel.backend"] != "nccl",
            lambda k: (
                "parallel.nccl_debug=True, but the processes talk over "
                f"{k['parallel.backend']} and not NCCL. Leave it out."
            ),
        ),
    ),
    "parallel.check_every": (
        _needs_many("parallel.check_every"),
        Refusal(
            lambda k: k.is_on("parallel.check_every") and _has_no_copies(k),
            lambda k: (
                f"parallel.check_every={k.said['parallel.check_every']!r} compares copies of the "
                "parameters, and here they are cut over all ranks: no two hold the same. Leave it "
                "out, or say "
                + (
                    "parallel.shard='hybrid'."
                    if k["parallel.kind"] == "fsdp"
                    else "parallel.zero=2."
                )
            ),
        ),
    ),
    "parallel.start_timeout_s": (
        Refusal(
            lambda k: k.said.get("parallel.start_timeout_s", math.inf) < k["parallel.timeout_s"],
            lambda k: (
                f"parallel.start_timeout_s={k.said['parallel.start_timeout_s']:g} is shorter than "
                f"parallel.timeout_s={k['parallel.timeout_s']:g}, and no step takes longer than "
                "the first one. Say at least as much, or leave it out."
            ),
        ),
    ),
    "parallel.sync_batchnorm": (
        _needs_many("parallel.sync_batchnorm"),
        Refusal(
            lambda k: bool(k.said.get("parallel.sync_batchnorm")) and not k.on_gpu,
            lambda k: (
                f"parallel.sync_batchnorm={k.said['parallel.sync_batchnorm']} works on GPUs only, "
                f"and the device is {k['device']}. Leave it out, or use GroupNorm, "
                "which needs no statistics of the batch."
            ),
        ),
    ),
}
