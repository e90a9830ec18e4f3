"""What `surestep plan` shows: the options that were decided, rates, parameters and memory."""

import sys
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from surestep.base.text import format_bytes, print_escaped, print_json
from surestep.base.written import set_where
from surestep.cli import output as show
from surestep.cli import param_tables as show_groups
from surestep.cli.options import ParsedCommand
from surestep.cli.plot_schedule import draw
from surestep.cli.relevant_options import Choice, applies
from surestep.engine.distributed.launcher_env import LaunchInfo
from surestep.engine.optim.freezing import freeze_permanent
from surestep.engine.plan.plan import Plan, ResolvedOption
from surestep.engine.plan.system import read_facts
from surestep.engine.profile.memory_estimate import MemoryEstimate, estimate_memory
from surestep.engine.profile.sharded_memory import RankMemory
from surestep.engine.schedule.lr import lr_summary
from surestep.engine.task.init_weights import InitReport
from surestep.record.io import dumps
from surestep.trainer.planning import (
    PreparedTask,
    apply_init_weights,
    estimate_memory_per_rank,
    measure_task_activations,
    plan_task,
)


def show_plan(asked: ParsedCommand, launched: LaunchInfo | None, picture: Path | None) -> int:
    """Show the plan of what is asked.

    Args:
        asked: by the command line.
        launched: the processes that are planned for; None for those that are there.
        picture: where the schedule is drawn, if it is.
    """
    planned, started = _planned(asked, launched)
    plan, groups = planned.plan, show_groups.collect_param_groups(planned)
    with freeze_permanent(planned.model, groups):
        measured = measure_task_activations(planned)
        known = None if isinstance(measured, str) else measured
        takes = estimate_memory(planned.model, plan, known)
    each = [] if launched is None else estimate_memory_per_rank(planned, takes)
    layers = show_groups.layer_rows(planned.model, plan)
    lr = _rates(planned)
    if picture is not None:
        draw(plan, picture, planned.task.schedule)
        print_escaped(f"Drawn: {picture}", file=sys.stderr)
    if asked.extras["json"]:
        decisions = [each._asdict() for each in plan.decisions]
        shown = {"decisions": decisions, "rates": lr, "footprint": asdict(takes)}
        shown["ranks"] = [{**asdict(share), "total": share.total} for share in each]
        shown |= {} if started is None else {"init": asdict(started)}
        shown |= {"groups": show_groups.param_group_rows(groups, planned.model), "layers": layers}
        print_json(dumps(shown, indent=1))
        return 0
    _print_decisions(plan, asked)
    if started is not None:
        title = f"Weights to start from: {started.source}"
        show.print_table(title, ("what", "how many", "which"), started.rows())
    if lr is not None:
        show.print_table(
            "Learning rate", lr, [[show.format_number(value) for value in lr.values()]]
        )
    show_groups.show_tables(groups, planned.model, layers)
    _print_footprint(takes)
    if launched is not None:
        _print_shares(each, plan, launched)
    if isinstance(measured, str):
        print_escaped(f"The activations are not known: {measured}.")
    return 0


def _planned(
    asked: ParsedCommand, launched: LaunchInfo | None
) -> tuple[PreparedTask, InitReport | None]:
    """Plan for this machine; or for processes that are not there, without weights to start from."""
    task = asked.task()
    if launched is None:
        planned = plan_task(task, asked.config, origin=asked.origin)
        return planned, apply_init_weights(planned)
    facts = replace(read_facts(), launched=launched)
    return plan_task(task, asked.config, origin=asked.origin, facts=facts), None


def _rates(planned: PreparedTask) -> Mapping[str, float | None] | None:
    """Return what stands out of the learning rates; None where an optimizer has none."""
    plan = planned.plan
    if plan.optim_lr is None:
        return None
    return lr_summary(plan.schedule, plan.optim_lr, planned.task.schedule)


def _print_shares(each: list[RankMemory], plan: Plan, launched: LaunchInfo) -> None:
    kinds = ("weights", "gradients", "optimizer", "average", "passing", "activations", "total")
    chosen = " ".join(filter(None, (plan.parallel_strategy, plan.parallel_shard)))
    rows = [
        [
            f"{share.strategy} (chosen)" if share.strategy == chosen else share.strategy,
            *(format_bytes(getattr(share, kind)) for kind in kinds),
        ]
        for share in each
    ]
    title = f"Memory on each of {launched.size} ranks, {launched.local_size} on a machine"
    show.print_table(title, ("strategy", *kinds), rows)


def is_decided(decision: ResolvedOption, chosen: Choice) -> bool:
    """Say whether a row of the Plan is one that somebody set, or that surestep decided.

    The others belong to what was not chosen, are off, or are left at torch's default.
    """
    option, value, reason = decision
    if reason.startswith("set ") or ", set " in reason or option == "steps_per_epoch":
        return True
    if reason.startswith("torch's default") or value is None or value is False:
        return False
    return value not in ("off", "none", "auto", (), {}) and applies(option, chosen)


def _spelt(option: str, value: Any) -> Any:
    """Return a value in words where it does not speak for itself."""
    if option == "steps_per_epoch" and value is None:
        return "not known"
    return "see below" if option == "parallel.deepspeed" and value else value


def _print_decisions(plan: Plan, asked: ParsedCommand) -> None:
    chosen = {option: value for option, value, _ in plan.decisions}.get
    every = asked.extras["all"]
    shown = [each for each in plan.decisions if every or is_decided(each, chosen)]
    rows = [(option, _spelt(option, value), reason) for option, value, reason in shown]
    for name, each in asked.recipe.parameters.items():
        said = asked.set_options.get(f"task.{name}")
        reason = f"set {set_where(said)}" if said else "the recipe's default"
        rows.append((f"task.{name}", asked.parameters.get(name, each.default), reason))
    show.print_table("Plan", ("option", "value", "reason"), rows)
    if plan.parallel_deepspeed:
        print("DeepSpeed's configuration:", dumps(dict(plan.parallel_deepspeed), indent=1))
    if len(shown) < len(plan.decisions):
        left = len(plan.decisions) - len(shown)
        print_escaped(
            f"{left} options are off, at torch's default or of no use here: --all shows them."
        )


def _print_footprint(takes: MemoryEstimate) -> None:
    rows = [
        (name, kind, f"{count:,}", f"{trained:,}") for name, kind, count, trained in takes.modules
    ]
    rows.append(("in all", "", f"{takes.parameters:,}", f"{takes.trained:,}"))
    show.print_table("Parameters", ("module", "type", "parameters", "trained"), rows)
    kinds = ("weights", "buffers", "gradients", "optimizer", "average", "activations")
    show.print_table("Memory", kinds, [[format_bytes(getattr(takes, kind)) for kind in kinds]])
    if takes.activations != takes.activations_without:
        saved = format_bytes(takes.activations_without)
        print_escaped(f"Without activation checkpointing the activations would take {saved}.")
    if takes.attention:
        print_escaped(f"Attention is computed by: {', '.join(takes.attention)}.")
