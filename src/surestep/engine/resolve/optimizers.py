"""The Plan of a Task with several optimizers: every option is decided once for each of them."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import nn

from surestep.base.errors import ConfigError
from surestep.config.config import Config
from surestep.config.not_set import NOT_SET
from surestep.config.optim import FIND, Optim
from surestep.config.schedule import Schedule
from surestep.engine.optim.multi import get_trained_module
from surestep.engine.optim.param_roles import param_info
from surestep.engine.plan.plan import Guard, Plan, ResolvedOption, TaskInfo
from surestep.engine.plan.system import SystemInfo
from surestep.engine.resolve.optim import default_name
from surestep.engine.resolve.resolver import resolve
from surestep.engine.task.task import OptimizerSpec, Task

_FROM_WEAKEST: tuple[Guard, ...] = ("grad_scaler", "host", "device")


def plan_optimizers(
    task: Task,
    model: nn.Module,
    config: Config,
    system: SystemInfo,
    task_info: TaskInfo,
    *,
    origins: Mapping[str, str],
) -> Plan:
    """Decide every option, once for each of the Task's optimizers.

    Options that an optimizer does not set come from `Config.optim` and `Config.schedule`; if it
    has another name than that of the Config, nothing comes from `Config.optim`.

    Raises:
        ConfigError: an option cannot be used.
    """
    _check_lr(task, config)
    plans = {}
    for name, spec in task.optimizer_specs().items():
        roles = param_info(get_trained_module(model, name, spec))
        info = replace(task_info, own_optimizer=not isinstance(spec.optim, Optim), **roles)
        own = _config_of(spec, config, default=default_name(info))
        plans[name] = resolve(own, system, info, origins=origins)
        if plans[name].guard == "line_search":
            raise ConfigError(
                f"optim.name='lbfgs' of the optimizer {name!r} takes steps by itself, and a manual "
                "step decides when. Use another optim.name there."
            )
    rest = Config.from_options(_without_optim(config.set_options()))
    main = resolve(rest, system, replace(task_info, own_optimizer=True), origins=origins)
    guard = min((plan.guard for plan in plans.values()), key=_FROM_WEAKEST.index)
    decisions = [
        ResolvedOption("guard", guard, _guard_reason(plans, guard))
        if decision.option == "guard"
        else decision
        for decision in main.decisions
        if not decision.option.startswith("optim.")
    ]
    for name, plan in plans.items():
        decisions += [
            ResolvedOption(f"optimizers.{name}.{option}", value, reason)
            for option, value, reason in plan.decisions
            if option.startswith(("optim.", "schedule.")) and value is not None
        ]
    return main.replace(
        guard=guard,
        optimizers={name: plan.replace(guard=guard) for name, plan in plans.items()},
        decisions=tuple(decisions),
    )


def _check_lr(task: Task, config: Config) -> None:
    """Reject optim.lr="find", which measures one rate at the start of a run."""
    specs = task.optimizer_specs()
    own = [n for n, one in specs.items() if isinstance(one.optim, Optim) and one.optim.lr == FIND]
    if own or config.optim.lr == FIND:
        name = (own or list(specs))[0]
        raise ConfigError(
            f"optim.lr='find' is for a Task with one optimizer, and this one names those of "
            f"{', '.join(specs)}. Measure their rates one by one, as in `surestep lr-find RECIPE "
            f"--optimizer {name}`, and set them in the Task: optimizers={{{name!r}: "
            "surestep.Optim(lr=...)}."
        )


def _guard_reason(plans: Mapping[str, Plan], guard: Guard) -> str:
    name, plan = next((name, plan) for name, plan in plans.items() if plan.guard == guard)
    return f"{plan.reason('guard')} ({name}); a manual step keeps a copy of what it updates"


def _without_optim(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if not name.startswith("optim.")}


def _config_of(spec: OptimizerSpec, config: Config, *, default: str) -> Config:
    """Return the Config of one optimizer; `default` is the name of one that has none."""
    options = config.set_options()
    chosen = options.get("optim.name", default)
    if not isinstance(spec.optim, Optim) or (spec.optim.name or chosen) != chosen:
        options = _without_optim(options)
    for group in (spec.optim, spec.schedule):
        if isinstance(group, (Optim, Schedule)):
            own = {group.prefix + name: value for name, value in group}
            options |= {name: value for name, value in own.items() if value is not NOT_SET}
    return Config.from_options(options)
