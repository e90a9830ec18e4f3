"""Several optimizers: which part of the model each one trains, and by which Plan."""

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from surestep.base.errors import ConfigError, TaskError, suggest_names
from surestep.config.config import Config
from surestep.config.group import ConfigGroup
from surestep.config.not_set import NOT_SET
from surestep.config.optim import Optim
from surestep.engine.optim.build import build_optimizer
from surestep.engine.optim.freezing import freeze_permanent
from surestep.engine.optim.param_groups import ParameterGroup, make_param_groups, parameters_of
from surestep.engine.optim.param_roles import param_info
from surestep.engine.plan.plan import Guard, Plan, ResolvedOption, TaskInfo
from surestep.engine.plan.system import SystemInfo
from surestep.engine.rules.resolve import resolve
from surestep.engine.state.state import trainable_parameters
from surestep.engine.task.task import OptimizerSpec, Task

_FROM_WEAKEST: tuple[Guard, ...] = ("scaled", "reading", "sticky")


def plan_learners(
    task: Task,
    model: nn.Module,
    config: Config,
    facts: SystemInfo,
    given: TaskInfo,
    *,
    origins: Mapping[str, str],
) -> Plan:
    """Decide every option, once for each of the Task's optimizers.

    What an optimizer does not say, `Config.optim` and `Config.schedule` say; where it names
    another one than the Config, of `Config.optim` nothing is taken over.

    Raises:
        ConfigError: a wish that cannot be kept.
    """
    rest = {
        name: value for name, value in config.set_options().items() if not name.startswith("optim.")
    }
    plans = {}
    for name, learner in task.optimizer_specs().items():
        own_optimizer = not isinstance(learner.optim, Optim)
        kinds = param_info(_part(model, name, learner))
        own = replace(given, own_optimizer=own_optimizer, **kinds)
        plans[name] = resolve(_config_of(learner, config), facts, own, origins=origins)
        if plans[name].guard == "searching":
            raise ConfigError(
                f"optim.name='lbfgs' of the optimizer {name!r} evaluates the batch by itself, and "
                "a step of your own says when to. Say another optim.name there."
            )
    main = resolve(
        Config.from_options(rest), facts, replace(given, own_optimizer=True), origins=origins
    )
    guard = min((plan.guard for plan in plans.values()), key=_FROM_WEAKEST.index)
    plans = {name: replace(plan, guard=guard) for name, plan in plans.items()}
    decisions = [each for each in main.decisions if each.option.partition(".")[0] != "optim"]
    decisions = [
        ResolvedOption("guard", guard, plan_reason(plans, guard))
        if each.option == "guard"
        else each
        for each in decisions
    ]
    for name, plan in plans.items():
        decisions += [
            ResolvedOption(f"optimizers.{name}.{option}", value, reason)
            for option, value, reason in plan.decisions
            if option.partition(".")[0] in ("optim", "schedule") and value is not None
        ]
    return replace(main, guard=guard, optimizers=plans, decisions=tuple(decisions))


def plan_reason(plans: Mapping[str, Plan], guard: Guard) -> str:
    """Return why the guard of all optimizers is what it is: because of the one that needs it."""
    return next(
        f"{each.reason} ({name}); the Task's own step keeps a copy of what it moves"
        for name, plan in plans.items()
        for each in plan.decisions
        if each.option == "guard" and each.value == guard
    )


def arrange_learners(
    plan: Plan, task: Task, model: nn.Module
) -> dict[str, tuple[ParameterGroup, ...]]:
    """Return the groups of each of the Task's optimizers."""
    return {
        name: make_param_groups(_part(model, name, learner), plan.optimizers[name])
        for name, learner in task.optimizer_specs().items()
    }


def build_learners(
    plan: Plan, task: Task, model: nn.Module, settings: ExitStack
) -> dict[str, torch.optim.Optimizer]:
    """Make the Task's optimizers, each over its part of the model.

    Args:
        plan: with one for each optimizer.
        task: names them.
        model: whose parts they train.
        settings: puts back, when the session closes, what is frozen here.

    Raises:
        TaskError: a part is not there, or a trained parameter is in no optimizer or in two.
        ConfigError: a part is to be trained only later.
    """
    made, arranged = {}, arrange_learners(plan, task, model)
    for name, learner in task.optimizer_specs().items():
        own = learner.optim if not isinstance(learner.optim, Optim) else None
        bare = replace(task, optimizer=own, optimizers={}, step=None, loss=_no_loss)
        part, groups = _part(model, name, learner), arranged[name]
        if any(group.trained_from for group in groups):
            raise ConfigError(
                f"The groups of the optimizer {name!r} freeze a part until a given time. A step of "
                "your own says itself when it trains what: ask turn.index there."
            )
        settings.enter_context(freeze_permanent(part, groups))
        made[name] = build_optimizer(plan.optimizers[name], bare, part, groups)
    holders: dict[int, list[str]] = {}
    for name, optimizer in made.items():
        for parameter in parameters_of(optimizer):
            holders.setdefault(id(parameter), []).append(name)
    for key, parameter in trainable_parameters(model).items():
        names = holders.get(id(parameter), [])
        if len(names) != 1:
            what = f"in {' and in '.join(names)}" if names else "in no optimizer"
            raise TaskError(
                f"The parameter {key} is {what}, and each needs one. Say which parts each trains: "
                "Task(optimizers={'name': surestep.OptimizerSpec(parts=[...])}), or freeze it."
            )
    return made


def _no_loss(outputs: Any, targets: Any) -> torch.Tensor:
    raise AssertionError("a step of the user's own has its own losses")


def _config_of(learner: OptimizerSpec, config: Config) -> Config:
    said = config.set_options()
    name = (learner.optim.name or None) if isinstance(learner.optim, Optim) else None
    foreign = not isinstance(learner.optim, Optim) or name not in (None, said.get("optim.name"))
    if foreign:
        said = {option: value for option, value in said.items() if not option.startswith("optim.")}
    own = {"optim": learner.optim if isinstance(learner.optim, Optim) else None}
    for group, options in (own | {"schedule": learner.schedule}).items():
        if isinstance(options, ConfigGroup):
            for option in type(options).model_fields:
                value = getattr(options, option)
                if value is not NOT_SET:
                    said[f"{group}.{option}"] = value
    return Config.from_options(said)


def _part(model: nn.Module, name: str, learner: OptimizerSpec) -> nn.Module:
    """Return what an optimizer trains, as one module."""
    known = [path for path, _ in model.named_modules() if path]
    for part in learner.modules or (name,):
        if part not in known:
            raise TaskError(
                f"The optimizer {name!r} is for a part of the model called {part!r}, which is not "
                f"there. {suggest_names(part, known)} Or say surestep.OptimizerSpec(parts=[...])."
            )
    parts = [model.get_submodule(part) for part in learner.modules or (name,)]
    return parts[0] if len(parts) == 1 else nn.ModuleList(parts)
