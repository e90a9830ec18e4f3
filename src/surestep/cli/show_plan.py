"""What `surestep plan` shows: the options that were decided, rates, parameters and memory."""

import sys
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from surestep.base.printable import print_escaped, print_json
from surestep.base.sizes import byte_count
from surestep.cli import show, show_groups
from surestep.cli.applies import Choice, applies
from surestep.cli.draw import draw
from surestep.cli.options import Asked
from surestep.engine.facts import read_facts
from surestep.engine.measure.footprint import Footprint, footprint
from surestep.engine.measure.shares import Share
from surestep.engine.model.initial import Started
from surestep.engine.optim.freezing import frozen
from surestep.engine.parallel.launch import Launched
from surestep.engine.plan import Decision, Plan
from surestep.engine.schedule.rate import rates
from surestep.record.files import dumps
from surestep.trainer.planning import Planned, activations, of_each_rank, plan_task, start


def show_plan(asked: Asked, launched: Launched | None, picture: Path | None) -> int:
    """Show the plan of what is asked.

    Args:
        asked: by the command line.
        launched: the processes that are planned for; None for those that are there.
        picture: where the schedule is drawn, if it is.
    """
    planned, started = _planned(asked, launched)
    plan, groups = planned.plan, show_groups.arranged(planned)
    with frozen(planned.model, groups):
        measured = activations(planned)
        known = None if isinstance(measured, str) else measured
        takes = footprint(planned.model, plan, known)
    each = [] if launched is None else of_each_rank(planned, takes)
    layers = show_groups.layers(planned.model, plan)
    lr = _rates(planned)
    if picture is not None:
        draw(plan, picture, planned.task.schedule)
        print_escaped(f"Drawn: {picture}", file=sys.stderr)
    if asked.extras["json"]:
        decisions = [each._asdict() for each in plan.decisions]
        shown = {"decisions": decisions, "rates": lr, "footprint": asdict(takes)}
        shown["ranks"] = [{**asdict(share), "total": share.total} for share in each]
        shown |= {} if started is None else {"init": asdict(started)}
        shown |= {"groups": show_groups.groups(groups, planned.model), "layers": layers}
        print_json(dumps(shown, indent=1))
        return 0
    _print_decisions(plan, asked)
    if started is not None:
        title = f"Weights to start from: {started.source}"
        show.table(title, ("what", "how many", "which"), started.rows())
    if lr is not None:
        show.table("Learning rate", lr, [[show.figure(value) for value in lr.values()]])
    show_groups.show_tables(groups, planned.model, layers)
    _print_footprint(takes)
    if launched is not None:
        _print_shares(each, plan, launched)
    if isinstance(measured, str):
        print_escaped(f"The activations are not known: {measured}.")
    return 0


def _planned(asked: Asked, launched: Launched | None) -> tuple[Planned, Started | None]:
    """Plan for this machine; or for processes that are not there, without weights to start from."""
    task = asked.task()
    if launched is None:
        planned = plan_task(task, asked.config, origin=asked.origin)
        return planned, start(planned)
    facts = replace(read_facts(), launched=launched)
    return plan_task(task, asked.config, origin=asked.origin, facts=facts), None


def _rates(planned: Planned) -> Mapping[str, float | None] | None:
    """Return what stands out of the learning rates; None where an optimizer has none."""
    plan = planned.plan
    if plan.optim_lr is None:
        return None
    return rates(plan.schedule, plan.optim_lr, planned.task.schedule)


def _print_shares(each: list[Share], plan: Plan, launched: Launched) -> None:
    kinds = ("weights", "gradients", "optimizer", "average", "passing", "activations", "total")
    chosen = " ".join(filter(None, (plan.parallel_kind, plan.parallel_shard)))
    rows = [
        [
            f"{share.way} (chosen)" if share.way == chosen else share.way,
            *(byte_count(getattr(share, kind)) for kind in kinds),
        ]
        for share in each
    ]
    title = f"Memory on each of {launched.size} ranks, {launched.local_size} on a machine"
    show.table(title, ("way", *kinds), rows)


def is_decided(decision: Decision, chosen: Choice) -> bool:
    """Say whether a row of the Plan is one that somebody set, or that surestep decided.

    The others belong to what was not chosen, are off, or are left at torch's default.
    """
    option, value, reason = decision
    if reason.startswith("said: ") or ", said: " in reason or option == "steps_per_epoch":
        return True
    if reason.startswith("torch's default") or value is None or value is False:
        return False
    return value not in ("off", "none", "auto", (), {}) and applies(option, chosen)


def _spelt(option: str, value: Any) -> Any:
    """Return a value in words where it does not speak for itself."""
    if option == "steps_per_epoch" and value is None:
        return "not known"
    return "see below" if option == "parallel.deepspeed" and value else value


def _print_decisions(plan: Plan, asked: Asked) -> None:
    chosen = {option: value for option, value, _ in plan.decisions}.get
    every = asked.extras["all"]
    shown = [each for each in plan.decisions if every or is_decided(each, chosen)]
    rows = [(option, _spelt(option, value), reason) for option, value, reason in shown]
    for name, each in asked.recipe.parameters.items():
        said = asked.said.get(f"task.{name}")
        reason = f"said: {said}" if said else "the recipe's default"
        rows.append((f"task.{name}", asked.parameters.get(name, each.default), reason))
    show.table("Plan", ("option", "value", "reason"), rows)
    if plan.parallel_deepspeed:
        print("DeepSpeed's configuration:", dumps(dict(plan.parallel_deepspeed), indent=1))
    if len(shown) < len(plan.decisions):
        left = len(plan.decisions) - len(shown)
        print_escaped(
            f"{left} options are off, at torch's default or of no use here: --all shows them."
        )


def _print_footprint(takes: Footprint) -> None:
    rows = [
        (name, kind, f"{count:,}", f"{trained:,}") for name, kind, count, trained in takes.modules
    ]
    rows.append(("in all", "", f"{takes.parameters:,}", f"{takes.trained:,}"))
    show.table("Parameters", ("module", "type", "parameters", "trained"), rows)
    kinds = ("weights", "buffers", "gradients", "optimizer", "average", "activations")
    show.table("Memory", kinds, [[byte_count(getattr(takes, kind)) for kind in kinds]])
    if takes.activations != takes.activations_without:
        saved = byte_count(takes.activations_without)
        print_escaped(f"Without activation checkpointing the activations would take {saved}.")
    if takes.attention:
        print_escaped(f"Attention is computed by: {', '.join(takes.attention)}.")
