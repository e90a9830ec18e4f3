"""The Plan of a Task with several optimizers: every option decided once for each of them."""

from collections.abc import Mapping
from dataclasses import replace

from torch import nn

from surestep.base.errors import ConfigError
from surestep.config.config import Config
from surestep.config.group import ConfigGroup
from surestep.config.not_set import NOT_SET
from surestep.config.optim import Optim
from surestep.engine.optim.multi import get_trained_module
from surestep.engine.optim.param_roles import param_info
from surestep.engine.plan.plan import Guard, Plan, ResolvedOption, TaskInfo
from surestep.engine.plan.system import SystemInfo
from surestep.engine.rules.resolve import resolve
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
        kinds = param_info(get_trained_module(model, name, learner))
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
    plans = {name: plan.replace(guard=guard) for name, plan in plans.items()}
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
    return main.replace(guard=guard, optimizers=plans, decisions=tuple(decisions))


def plan_reason(plans: Mapping[str, Plan], guard: Guard) -> str:
    """Return why the guard of all optimizers is what it is: because of the one that needs it."""
    return next(
        f"{each.reason} ({name}); the Task's own step keeps a copy of what it moves"
        for name, plan in plans.items()
        for each in plan.decisions
        if each.option == "guard" and each.value == guard
    )


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
