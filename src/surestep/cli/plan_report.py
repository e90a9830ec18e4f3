"""What `surestep plan` prints: decided options, learning rates, parameters and memory."""

import sys
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from torch import nn

from surestep.base.errors import ConfigError
from surestep.base.locations import set_where
from surestep.base.text import format_bytes, print_escaped, print_json
from surestep.cli import output as show
from surestep.cli.plot_schedule import plot_schedule
from surestep.config.config import Config
from surestep.config.optim import FIND
from surestep.engine.distributed.launcher_env import LaunchInfo
from surestep.engine.model.layers import layers_of
from surestep.engine.optim.multi import arrange_groups
from surestep.engine.optim.param_groups import ParameterGroup, make_param_groups
from surestep.engine.plan.batching import find_largest_share
from surestep.engine.plan.plan import HIDDEN, Plan
from surestep.engine.plan.system import SystemInfo, read_system
from surestep.engine.profile.rank_memory import RankMemory
from surestep.engine.profile.step_memory import KINDS, STATE, StepMemory
from surestep.engine.schedule.lr import lr_summary
from surestep.recipes.load import RecipeCall
from surestep.record.io import dumps
from surestep.record.pretrained import load_init_weights
from surestep.trainer.fit_memory import start_fitted
from surestep.trainer.memory_advice import describe_advice
from surestep.trainer.memory_plan import (
    Fit,
    MemoryReport,
    ModuleMemory,
    imagine_device,
    plan_without_weights,
    report_memory,
)
from surestep.trainer.planning import PreparedTask, plan_task

FOR_GOOD = "for good"


def print_plan(
    call: RecipeCall,
    launched: LaunchInfo | None,
    limit: int | None,
    *,
    plot: str | None,
    shows_all: bool,
    as_json: bool,
) -> int:
    """Print the Plan; return the exit code, which is 1 if not even one sample fits.

    `launched` are the processes of --ranks, and `limit` the bytes of --memory. Both are planned
    without loading initial weights; None is this machine.
    """
    system = read_system()
    if limit is None:
        _check_is_here(system, call.config)
    else:
        system = imagine_device(system, call.config, limit)
    task = call.task(system)
    if launched is not None:
        system = replace(system, launched=launched)
    is_here = launched is None and limit is None
    make = plan_task if limit is None else plan_without_weights
    planned = make(task, call.config, origin=call.origin, system=system)
    planned = start_fitted(planned, call.origin, limit)
    init = load_init_weights(planned.model, planned.task.init) if is_here else None
    plan, groups = planned.plan, _collect_param_groups(planned)
    memory = report_memory(planned, launched, limit)
    group_rows, layers = _group_rows(groups, planned.model), _layer_rows(planned.model, plan)
    rates = None
    if plan.optim_lr is not None:
        rates = lr_summary(plan.schedule, plan.optim_lr, task.schedule)
    if plot is not None:
        plot_schedule(plan, Path(plot), task.schedule)
        print_escaped(f"Drawn: {plot}", file=sys.stderr)
    if as_json:
        decisions = [decision._asdict() for decision in plan.decisions]
        report: dict[str, Any] = {"decisions": decisions, "rates": rates, **memory.as_dict()}
        report |= {} if init is None else {"init": asdict(init)}
        print_json(dumps({**report, "groups": group_rows, "layers": layers}, indent=1))
        return int(memory.fits_nothing)
    if limit is not None:
        print_escaped(_describe_device(plan, limit))
    _print_decisions(plan, call, shows_all=shows_all)
    if init is not None:
        title = f"Initial weights: {init.source}"
        show.print_table(title, ("what", "how many", "which"), init.rows())
    if rates is not None:
        numbers = [show.format_number(value) for value in rates.values()]
        show.print_table("Learning rate", rates, [numbers])
    _print_groups(group_rows, layers, FIND if call.config.optim.lr == FIND else "its own")
    _print_memory(memory, plan, launched, limit)
    return int(memory.fits_nothing)


def _check_is_here(system: SystemInfo, config: Config) -> None:
    """Raise a ConfigError for a CUDA device on a machine without one."""
    device = str(config.device or "")
    if device.partition(":")[0] == "cuda" and not system.cuda_devices:
        raise ConfigError(
            f"device={device!r} is not available: this machine has no CUDA device. To plan for one "
            "that is not here, add its memory, such as --memory 24GB."
        )


def _describe_device(plan: Plan, limit: int) -> str:
    """Return for which device the plan is, and how to plan for another kind."""
    kind, other = plan.device.type, "cuda" if plan.device.type == "cpu" else "cpu"
    names = {"cpu": "a CPU", "cuda": "a GPU"}
    text = f"Planned for {names.get(kind, kind)} (device={str(plan.device)!r}) with "
    return f"{text}{format_bytes(limit)}. For {names[other]}, add --device {other}."


def _print_decisions(plan: Plan, call: RecipeCall, *, shows_all: bool) -> None:
    shown = plan.decisions if shows_all else plan.relevant()
    rows = []
    for option, value, reason in shown:
        if option == "steps_per_epoch" and value is None:
            value = "not known"
        elif option == "optim.lr" and call.config.optim.lr == FIND:
            value = FIND
        elif option == "parallel.deepspeed" and value:
            value = "see below"
        rows.append((option, value, reason))
    for name, parameter in call.recipe.parameters.items():
        place = call.set_options.get(f"task.{name}")
        reason = f"set {set_where(place)}" if place else "the recipe's default"
        rows.append((f"task.{name}", call.parameters.get(name, parameter.default), reason))
    show.print_table("Plan", ("option", "value", "reason"), rows)
    if plan.parallel_deepspeed:
        print("DeepSpeed's configuration:", dumps(dict(plan.parallel_deepspeed), indent=1))
    if hidden := len(plan.decisions) - len(shown):
        print_escaped(f"{hidden} {HIDDEN}: --all shows them.")


def _collect_param_groups(planned: PreparedTask) -> tuple[ParameterGroup, ...]:
    """Return the groups of the optimizer; if there are several, with its name before each."""
    plan, task, model = planned.plan, planned.task, planned.model
    if not task.optimizers:
        return make_param_groups(model, plan)
    return tuple(
        replace(group, name=f"{name}: {group.name}")
        for name, groups in arrange_groups(plan, task, model).items()
        for group in groups
    )


def _group_rows(groups: Iterable[ParameterGroup], model: nn.Module) -> list[dict[str, Any]]:
    """Return a row for each group, and one for what the model itself has frozen."""
    rows: list[dict[str, Any]] = [
        {
            "group": group.name,
            "lr": group.lr,
            "times_lr": group.multiple,
            "weight_decay": group.weight_decay,
            "parameters": sum(p.numel() for p in group.parameters.values()),
            "frozen": FOR_GOOD if group.trained_from is None else group.trained_from,
            "names": list(group.parameters),
        }
        for group in groups
    ]
    frozen = {
        name: parameter
        for name, parameter in model.named_parameters()
        if not parameter.requires_grad
    }
    if frozen:
        row = {"group": "requires_grad=False", "lr": None, "times_lr": None, "weight_decay": None}
        size = sum(entry.numel() for entry in frozen.values())
        rows.append({**row, "parameters": size, "frozen": FOR_GOOD, "names": list(frozen)})
    return rows


def _layer_rows(model: nn.Module, plan: Plan) -> list[dict[str, Any]] | None:
    """Return a row for each layer, from the input on; None if all have one rate."""
    decay = plan.optim_layerwise_lr_decay
    if decay is None:
        return None
    layers = layers_of(model)
    rows = []
    for layer in layers:
        factor = decay ** (len(layers) - layer.index)
        row = {"layer": layer.index, "modules": list(layer.modules)}
        row["parameters"] = sum(parameter.numel() for parameter in layer.parameters)
        lr = None if plan.optim_lr is None else plan.optim_lr * factor
        rows.append({**row, "factor": factor, "lr": lr})
    return rows


def _print_groups(
    groups: list[dict[str, Any]], layers: list[dict[str, Any]] | None, name: str
) -> None:
    """Print the groups and the layers; `name` is that of a rate that is not known."""
    rows = []
    for group in groups:
        until = group["frozen"] or "-"
        if isinstance(until, int):
            until = f"{until} steps are taken"
        rate, decay = "-", "-"
        if until != FOR_GOOD:
            rate = _format_rate(group["lr"], group["times_lr"], name)
            decay = "its own" if group["weight_decay"] is None else f"{group['weight_decay']:g}"
        rows.append((group["group"], rate, decay, f"{group['parameters']:,}", until))
    columns = ("group", "lr", "weight decay", "parameters", "frozen until")
    show.print_table("Parameter groups", columns, rows)
    if layers is not None:
        rows = []
        for layer in layers:
            lr = _format_rate(layer["lr"], layer["factor"], name)
            cells = layer["layer"], ", ".join(layer["modules"]), f"{layer['parameters']:,}"
            rows.append((*cells, show.format_number(layer["factor"]), lr))
        show.print_table("Layers", ("layer", "modules", "parameters", "factor", "lr"), rows)


def _format_rate(lr: float | None, multiple: float | None, name: str) -> str:
    """Format a rate; if it is not known yet, as a multiple of it."""
    if lr is not None:
        return show.format_number(lr)
    return name if multiple == 1 else f"{show.format_number(multiple)} x {name}"


def _print_memory(
    report: MemoryReport, plan: Plan, launched: LaunchInfo | None, limit: int | None
) -> None:
    traced = report.traced
    _print_step(report.modules, traced)
    if report.without is not None:
        size = format_bytes(report.without)
        print_escaped(f"Without activation checkpointing the activations would take {size}.")
    if traced.attention:
        print_escaped(f"Attention is computed by: {', '.join(traced.attention)}.")
    for note in traced.notes:
        print_escaped(note)
    if launched is not None:
        _print_ranks(report.ranks, plan, launched)
    if traced.not_known:
        print_escaped(f"The memory of a step is not known: {traced.not_known.rstrip('.')}.")
    elif isinstance(report.fits, str):
        print_escaped(f"There is no other size of a micro-batch: {report.fits}.")
    elif limit is not None:
        _print_fits(report, report.fits, limit, plan)


def _print_step(modules: list[ModuleMemory], memory: StepMemory) -> None:
    known = not memory.not_known
    rows = []
    for row in modules:
        counts = f"{row.parameters:,}", f"{row.trained:,}"
        rows.append((row.name, row.kind, *counts, format_bytes(row.activations)))
    parameters, trained = sum(r.parameters for r in modules), sum(r.trained for r in modules)
    kept = format_bytes(memory.kept if known else None)
    rows.append(("in all", "", f"{parameters:,}", f"{trained:,}", kept))
    columns = ("module", "type", "parameters", "trained", "activations")
    show.print_table("Parameters, and activations of a micro-batch", columns, rows)
    cells = [
        (name, format_bytes(size))
        for name in (KINDS if known else STATE)
        if (size := getattr(memory, name)) != 0
    ]
    title = "Memory"
    if known:
        title += f" at the peak of a step with micro-batches of {memory.micro_batch_size}"
        cells.append(("in all", format_bytes(memory.peak)))
    show.print_table(title, ("what", "size"), cells)


def _print_ranks(ranks: list[RankMemory], plan: Plan, launched: LaunchInfo) -> None:
    kinds = ("weights", "gradients", "optimizer", "average", "passing", "step", "total")
    rows = [
        [_mark_chosen(rank.strategy, plan), *(format_bytes(getattr(rank, kind)) for kind in kinds)]
        for rank in ranks
    ]
    title = f"Memory on each of {launched.size} ranks, {launched.local_size} on a machine"
    show.print_table(title, ("strategy", *kinds), rows)


def _mark_chosen(strategy: str, plan: Plan) -> str:
    chosen = " ".join(filter(None, (plan.parallel_strategy, plan.parallel_shard)))
    return f"{strategy} (chosen)" if strategy == chosen else strategy


def _print_fits(report: MemoryReport, fits: list[Fit], limit: int, plan: Plan) -> None:
    share = find_largest_share(plan.batch_size, plan.parallel_ranks)
    rows = [
        [
            _mark_chosen(fit.strategy, plan),
            str(fit.micro_batch_size) if fit.micro_batch_size else "none",
            format_bytes(fit.peak),
        ]
        for fit in fits
    ]
    of = f"a batch of {share}" if plan.parallel_ranks == 1 else f"the {share} samples of a rank"
    title = f"Largest micro-batch that fits into {format_bytes(limit)}, of {of}"
    show.print_table(title, ("strategy", "micro_batch_size", "peak"), rows)
    if report.changed_by_splitting and any(0 < fit.micro_batch_size < share for fit in fits):
        print_escaped(
            f"A micro-batch of fewer than {share} samples changes the update: "
            f"{report.changed_by_splitting}."
        )
    if report.advice is not None:
        least = format_bytes(min(fit.peak for fit in fits))
        print_escaped(f"Not even 1 sample fits: it takes {least}.")
        for line in describe_advice(report.advice):
            print_escaped(line)
