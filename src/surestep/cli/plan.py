"""`surestep plan RECIPE`."""

import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import tyro

from surestep.base.sizes import byte_count
from surestep.cli import show, show_groups
from surestep.cli.draw import check_drawing, draw
from surestep.cli.options import Asked, read_command_line
from surestep.engine.measure.footprint import Footprint, footprint
from surestep.engine.optim.freezing import frozen
from surestep.engine.plan import Decision, Plan
from surestep.engine.schedule.rate import rates
from surestep.record.files import dumps
from surestep.trainer.planning import activations, plan_task, start

EXTRAS: dict[str, Any] = {
    "json": (Annotated[bool, tyro.conf.arg(help="Print the plan as JSON.")], False),
    "plot": (
        Annotated[
            str | None,
            tyro.conf.arg(help="Draw the schedule into this picture.", metavar="FILE.png"),
        ],
        None,
    ),
}


def run(words: list[str]) -> int:
    """Show every option that applies with its reason, the rates, parameters and memory."""
    asked = read_command_line("plan", words, EXTRAS)
    picture = Path(asked.extras["plot"]) if asked.extras["plot"] is not None else None
    if picture is not None:
        check_drawing(picture)
    planned = plan_task(asked.task(), asked.config, origin=asked.origin)
    started = start(planned)
    plan, groups = planned.plan, show_groups.arranged(planned)
    with frozen(planned.model, groups):
        measured = activations(planned)
        known = None if isinstance(measured, str) else measured
        takes = footprint(planned.model, plan, known)
    layers = show_groups.layers(planned.model, plan)
    lr = None
    if plan.optim_lr is not None:
        lr = rates(plan.schedule, plan.optim_lr, planned.task.schedule)
    if picture is not None:
        draw(plan, picture, planned.task.schedule)
        print(f"Drawn: {picture}", file=sys.stderr)
    if asked.extras["json"]:
        decisions = [each._asdict() for each in plan.decisions]
        shown = {"decisions": decisions, "rates": lr, "footprint": asdict(takes)}
        shown |= {} if started is None else {"init": asdict(started)}
        shown |= {"groups": show_groups.groups(groups, planned.model), "layers": layers}
        print(dumps(shown, indent=1))
        return 0
    _print_decisions(plan, asked)
    if started is not None:
        title = f"Weights to start from: {started.source}"
        show.table(title, ("what", "how many", "which"), started.rows())
    if lr is not None:
        show.table("Learning rate", lr, [[show.figure(value) for value in lr.values()]])
    show_groups.show_tables(groups, planned.model, layers)
    _print_footprint(takes)
    if isinstance(measured, str):
        print(f"The activations are not known: {measured}.")
    return 0


# Options, by their name or group, that mean nothing where the condition does not hold.
_ONLY_WHERE: Mapping[str, Callable[[Plan], bool]] = {
    "scaler.": lambda plan: plan.precision == "fp16",
    "average.": lambda plan: plan.average.kind != "none",
    "early_stop.min_delta": lambda plan: plan.early_stop_patience is not None,
    "data.persistent_workers": lambda plan: plan.data_num_workers > 0,
    "data.prefetch_factor": lambda plan: plan.data_num_workers > 0,
    "compile_blocks": lambda plan: plan.compile != "off",
    "max_nonfinite": lambda plan: plan.on_nonfinite == "skip",
}
_SWITCHES = ("average.kind",)  # what such a condition goes by is always shown


def applies(plan: Plan, decision: Decision) -> bool:
    """Say whether an option means anything in this plan; what was said always does."""
    option, _, reason = decision
    if reason.startswith("said: ") or option in _SWITCHES:
        return True
    if reason.startswith("not an option of "):
        return False
    return all(holds(plan) for name, holds in _ONLY_WHERE.items() if option.startswith(name))


def _print_decisions(plan: Plan, asked: Asked) -> None:
    shown = [each for each in plan.decisions if applies(plan, each)]
    rows = [
        (option, "not known" if option == "steps_per_epoch" and value is None else value, reason)
        for option, value, reason in shown
    ]
    for name, each in asked.recipe.parameters.items():
        said = asked.said.get(f"task.{name}")
        reason = f"said: {said}" if said else "the recipe's default"
        rows.append((f"task.{name}", asked.parameters.get(name, each.default), reason))
    show.table("Plan", ("option", "value", "reason"), rows)
    if len(shown) < len(plan.decisions):
        left = len(plan.decisions) - len(shown)
        print(f"{left} options mean nothing here and are not shown; --json lists them too.")


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
        print(f"Without activation checkpointing the activations would take {saved}.")
    if takes.attention:
        print(f"Attention is computed by: {', '.join(takes.attention)}.")
