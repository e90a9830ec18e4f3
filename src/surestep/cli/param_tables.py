"""The tables of parameter groups and of layers that `surestep plan` shows."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from torch import nn

from surestep.cli import output as show
from surestep.engine.model.layers import layers_of
from surestep.engine.optim.multi import arrange_learners
from surestep.engine.optim.param_groups import ParameterGroup, make_param_groups
from surestep.engine.plan.plan import Plan
from surestep.trainer.planning import PreparedTask

FOR_GOOD = "for good"


def collect_param_groups(planned: PreparedTask) -> tuple[ParameterGroup, ...]:
    """Return the groups of the optimizer; of several, each with its optimizer's name before it."""
    plan, task, model = planned.plan, planned.task, planned.model
    if not task.optimizers:
        return make_param_groups(model, plan)
    several = arrange_learners(plan, task, model)
    return tuple(
        replace(group, name=f"{name}: {group.name}")
        for name, found in several.items()
        for group in found
    )


def param_group_rows(found: Iterable[ParameterGroup], model: nn.Module) -> list[dict[str, Any]]:
    """Return a row for each group, and one for what the model itself has frozen."""
    rows = [
        {
            "group": each.name,
            "lr": each.lr,
            "times_lr": each.multiple,
            "weight_decay": each.weight_decay,
            "parameters": sum(p.numel() for p in each.parameters.values()),
            "frozen": FOR_GOOD if each.trained_from is None else each.trained_from,
            "names": list(each.parameters),
        }
        for each in found
    ]
    kept = {name: each for name, each in model.named_parameters() if not each.requires_grad}
    if kept:
        size = sum(each.numel() for each in kept.values())
        own: dict[str, Any] = {"lr": None, "times_lr": None, "weight_decay": None}
        own |= {"parameters": size, "frozen": FOR_GOOD, "names": list(kept)}
        rows.append({"group": "requires_grad=False", **own})
    return rows


def layer_rows(model: nn.Module, plan: Plan) -> list[dict[str, Any]] | None:
    """Return a row for each layer, from the input on; None where all have one rate."""
    decay = plan.optim_layerwise_lr_decay
    if decay is None:
        return None
    found = layers_of(model)
    factors = [decay ** (len(found) - each.index) for each in found]
    return [
        {
            "layer": each.index,
            "modules": list(each.modules),
            "parameters": sum(parameter.numel() for parameter in each.parameters),
            "factor": factor,
            "lr": None if plan.optim_lr is None else plan.optim_lr * factor,
        }
        for each, factor in zip(found, factors, strict=True)
    ]


def show_tables(
    found: Iterable[ParameterGroup], model: nn.Module, rows: list[dict[str, Any]] | None
) -> None:
    """Print both tables."""
    shown = [
        (each["group"], *_words(each), f"{each['parameters']:,}", _until(each["frozen"]))
        for each in param_group_rows(found, model)
    ]
    show.print_table(
        "Parameter groups", ("group", "lr", "weight decay", "parameters", "frozen until"), shown
    )
    if rows is not None:
        show.print_table(
            "Layers",
            ("layer", "modules", "parameters", "factor", "lr"),
            [
                (
                    each["layer"],
                    ", ".join(each["modules"]),
                    f"{each['parameters']:,}",
                    show.format_number(each["factor"]),
                    _rate(each["lr"], each["factor"]),
                )
                for each in rows
            ],
        )


def _words(row: dict[str, Any]) -> tuple[str, str]:
    """Return rate and decay in words; of what is never trained there are none."""
    if row["frozen"] == FOR_GOOD:
        return "-", "-"
    decay = row["weight_decay"]
    return _rate(row["lr"], row["times_lr"]), "its own" if decay is None else f"{decay:g}"


def _rate(lr: float | None, multiple: float | None) -> str:
    """Return a rate; where only the Task's optimizer knows it, the multiple of it."""
    if lr is not None:
        return show.format_number(lr)
    return "its own" if multiple == 1 else f"{show.format_number(multiple)} x its own"


def _until(frozen: int | str) -> str:
    if isinstance(frozen, str):
        return frozen
    return f"{frozen} steps are taken" if frozen else "-"
