"""How many processes make one step, and how."""

import math
from collections.abc import Callable

from surestep.config.duration import parse_duration
from surestep.engine.parallel.strategy import strategy_class
from surestep.engine.plan.plan import Constraint, PlanContext, Rule
from surestep.engine.rules import accelerate
from surestep.engine.rules.fsdp import requested_sharding
from surestep.engine.rules.helpers import (
    SEVERAL,
    Refusals,
    Rows,
    default_value,
    user_value,
    user_value_or,
)

TIMEOUT_S, START_TIMEOUT_S = 300.0, 1800.0


def _many(k: PlanContext) -> bool:
    return k.system.launched.size > 1


def _kind(k: PlanContext) -> str:
    return str(k.set_options.get("parallel.strategy", "auto"))


def _of_ddps_reducer(option: str) -> Constraint:
    """Refuse what tells DDP how to wait for gradients, where DDP does not add them up."""
    return Constraint(
        lambda k: bool(k.set_options.get(option)) and k.task_info.own_step,
        lambda k: (
            f"{option}={k.set_options[option]} tells DDP which gradients to wait for, and the "
            "Task brings "
            "its own step: turn.step adds up those of its optimizer, whichever there are. Leave "
            "it out."
        ),
    )


def _copies_only(when: Callable[[PlanContext], bool], what: str) -> Constraint:
    """Refuse what needs a copy of the model in each process, where there is none."""
    return Constraint(
        lambda k: not strategy_class(k["parallel.strategy"]).runs_manual_steps and when(k),
        lambda k: (
            f"{what}, and needs a copy of the model in each process, which "
            f"parallel.strategy={k['parallel.strategy']!r} does not keep. Say "
            "parallel.strategy='ddp'."
        ),
    )


def _has_no_copies(k: PlanContext) -> bool:
    """Say whether no two ranks hold the same: FSDP cuts over all of them, or ZeRO 3 does."""
    cut = k["parallel.strategy"] == "fsdp" and requested_sharding(k) != "hybrid"
    return cut or (
        k["parallel.strategy"] == "deepspeed" and k.set_options.get("parallel.zero_stage") == 3
    )


ROWS: Rows = {
    "parallel.strategy": (
        Rule(
            lambda k: _kind(k) == "fsdp" and requested_sharding(k) == "none",
            lambda _: "ddp",
            "parallel.shard={k.set_options[parallel.shard]} cuts nothing: that is DDP",
        ),
        Rule(
            lambda k: _kind(k) != "auto",
            lambda k: k.set_options["parallel.strategy"],
            "set {origin}",
        ),
        Rule(
            lambda k: _many(k) and requested_sharding(k) not in ("", "none"),
            lambda _: "fsdp",
            "auto: parallel.shard is set {origins[parallel.shard]}",
        ),
        Rule(
            lambda k: _many(k) and k.task_info.own_step,
            lambda _: "ddp",
            "auto: {k.system.launched.size} processes, started by {k.system.launched.launcher}; "
            "each has "
            "a copy of the model, and turn.step adds up the gradients",
        ),
        Rule(
            lambda k: _many(k) and k.system.accelerate is not None,
            lambda _: "accelerate",
            "auto: accelerate launch started {k.system.launched.size} processes",
        ),
        Rule(
            _many,
            lambda _: "ddp",
            "auto: {k.system.launched.size} processes, started by {k.system.launched.launcher}; "
            "each has "
            "a copy of the model",
        ),
        default_value("single", "auto: one process"),
    ),
    "parallel.ranks": (
        Rule(
            _many,
            lambda k: k.system.launched.size,
            "{k.system.launched.nodes} machine(s) x {k.system.launched.local_size} processes",
        ),
        default_value(1, "single process"),
    ),
    "parallel.rank": (
        Rule(
            lambda k: _many(k) and k.system.launched.is_simulated,
            lambda _: 0,
            "of the ranks that are planned for, the first: it holds the most",
        ),
        Rule(_many, lambda k: k.system.launched.rank, "assigned by {k.system.launched.launcher}"),
        default_value(0, "the only one"),
    ),
    "parallel.backend": (
        Rule(lambda k: not _many(k), lambda _: "none", "one process needs no backend"),
        Rule(lambda k: k.on_gpu, lambda _: "nccl", "the device is a GPU"),
        default_value("gloo", "the device is the CPU"),
    ),
    "parallel.find_unused_parameters": user_value_or(
        "parallel.find_unused_parameters", False, "each step looks for none: they are an error"
    ),
    "parallel.static_graph": (
        Rule(
            lambda k: bool(k.set_options.get("parallel.static_graph")),
            lambda _: True,
            "each step uses the parameters of the first; of one that is not used any more torch "
            "may say nothing, and the step finds it on a CPU, else parallel.replica_check_every; "
            "set {origin}",
        ),
        *user_value_or(
            "parallel.static_graph", False, "not set: another graph may come at any step"
        ),
    ),
    "parallel.sync_batchnorm": user_value_or(
        "parallel.sync_batchnorm", False, "each rank takes statistics of its own samples"
    ),
    "parallel.nccl_debug": user_value_or(
        "parallel.nccl_debug", False, "not set: NCCL logs errors only"
    ),
    "parallel.replica_check_every": (
        user_value("parallel.replica_check_every", parse_duration),
        Rule(lambda k: not _many(k), lambda _: None, "one process has no copies to compare"),
        Rule(
            _has_no_copies,
            lambda _: None,
            "parameters are cut over all ranks: no two hold the same, and nothing is compared",
        ),
        default_value(
            parse_duration("1000 steps"), "one pass over the parameters, at the log point after"
        ),
    ),
    "parallel.timeout_s": (
        user_value("parallel.timeout_s", float),
        default_value(TIMEOUT_S, "after the first step nobody is late for long, unless it hangs"),
    ),
    "parallel.start_timeout_s": (
        user_value("parallel.start_timeout_s", float),
        Rule(
            lambda k: k["parallel.timeout_s"] > START_TIMEOUT_S,
            lambda k: k["parallel.timeout_s"],
            "no shorter than parallel.timeout_s",
        ),
        default_value(
            START_TIMEOUT_S, "the first step compiles and reads anew; saving may take long"
        ),
    ),
}

REFUSALS: Refusals = {
    "parallel.strategy": (
        Constraint(
            lambda k: _kind(k) != "auto" and strategy_class(_kind(k)).needs_ranks and not _many(k),
            lambda k: (
                f"parallel.strategy={_kind(k)!r} needs several processes, and here is one. Start "
                "them "
                f"with {SEVERAL}, or leave it out."
            ),
        ),
        Constraint(
            lambda k: _kind(k) == "single" and _many(k),
            lambda k: (
                f"parallel.strategy='single', but {k.system.launched.size} processes were started: "
                "each "
                "would train the whole run. Start one, or leave it out."
            ),
        ),
        accelerate.KIND_REFUSAL,
    ),
    "parallel.ranks": (
        *accelerate.ENGINE_REFUSALS,
        _copies_only(lambda k: k.task_info.own_step, "The Task brings its own step"),
        _copies_only(
            lambda k: k.set_options.get("optim.name") == "lbfgs",
            "optim.name='lbfgs' evaluates the batch by itself",
        ),
    ),
    "parallel.find_unused_parameters": (_of_ddps_reducer("parallel.find_unused_parameters"),),
    "parallel.static_graph": (
        _of_ddps_reducer("parallel.static_graph"),
        Constraint(
            lambda k: bool(
                k.set_options.get("parallel.static_graph") and k["parallel.find_unused_parameters"]
            ),
            lambda _: (
                "parallel.static_graph=True promises that each step uses the same parameters, and "
                "parallel.find_unused_parameters=True that they change. Say one of them."
            ),
        ),
    ),
    "parallel.replica_check_every": (
        Constraint(
            lambda k: k.is_on("parallel.replica_check_every") and _has_no_copies(k),
            lambda k: (
                f"parallel.replica_check_every={k.set_options['parallel.replica_check_every']!r} "
                "compares copies "
                "of the "
                "parameters, and here they are cut over all ranks: no two hold the same. Leave it "
                "out, or say "
                + (
                    "parallel.shard='hybrid'."
                    if k["parallel.strategy"] == "fsdp"
                    else "parallel.zero_stage=2."
                )
            ),
        ),
    ),
    "parallel.start_timeout_s": (
        Constraint(
            lambda k: (
                k.set_options.get("parallel.start_timeout_s", math.inf) < k["parallel.timeout_s"]
            ),
            lambda k: (
                f"parallel.start_timeout_s={k.set_options['parallel.start_timeout_s']:g} is "
                "shorter than "
                f"parallel.timeout_s={k['parallel.timeout_s']:g}, and no step takes longer than "
                "the first one. Say at least as much, or leave it out."
            ),
        ),
    ),
}
