"""Several optimizers: which part of the model each one trains, and by which Plan."""

from contextlib import ExitStack

import torch
from torch import nn

from surestep.base.errors import ConfigError, TaskError, suggest_names
from surestep.config.optim import Optim
from surestep.engine.optim.build import MakeOptimizer, build_optimizer
from surestep.engine.optim.freezing import freeze_permanent
from surestep.engine.optim.param_groups import ParameterGroup, make_param_groups, parameters_of
from surestep.engine.plan.plan import Plan
from surestep.engine.state.state import trainable_parameters
from surestep.engine.task.task import OptimizerSpec, Task


def arrange_groups(
    plan: Plan, task: Task, model: nn.Module
) -> dict[str, tuple[ParameterGroup, ...]]:
    """Return the groups of each of the Task's optimizers."""
    return {
        name: make_param_groups(get_trained_module(model, name, spec), plan.optimizers[name])
        for name, spec in task.optimizer_specs().items()
    }


def build_optimizers(
    plan: Plan,
    task: Task,
    model: nn.Module,
    settings: ExitStack,
    make_own: MakeOptimizer | None = None,
) -> dict[str, torch.optim.Optimizer]:
    """Build the Task's optimizers, each over its part of the model.

    `settings` unfreezes, when the session closes, what is frozen here.

    Raises:
        TaskError: a part does not exist, or a trained parameter is in no optimizer or in two.
        ConfigError: a part is frozen until a given step.
    """
    made, arranged = {}, arrange_groups(plan, task, model)
    for name, spec in task.optimizer_specs().items():
        own = spec.optim if not isinstance(spec.optim, Optim) else None
        part, groups = get_trained_module(model, name, spec), arranged[name]
        if any(group.trained_from for group in groups):
            raise ConfigError(
                f"The groups of the optimizer {name!r} freeze a part until a given time. Decide it "
                "in your Task(step=...) instead: read manual_step.index there."
            )
        settings.enter_context(freeze_permanent(part, groups))
        made[name] = build_optimizer(plan.optimizers[name], own, part, groups, make_own)
    holders: dict[int, list[str]] = {}
    for name, optimizer in made.items():
        for parameter in parameters_of(optimizer):
            holders.setdefault(id(parameter), []).append(name)
    for key, parameter in trainable_parameters(model).items():
        names = holders.get(id(parameter), [])
        if len(names) != 1:
            what = f"in {' and in '.join(names)}" if names else "in no optimizer"
            raise TaskError(
                f"The parameter {key} is {what}, and every parameter needs one. Name the modules: "
                "Task(optimizers={'name': surestep.OptimizerSpec(modules=[...])}), or freeze it."
            )
    return made


def get_trained_module(model: nn.Module, name: str, spec: OptimizerSpec) -> nn.Module:
    """Return what an optimizer trains, as one module."""
    known = [path for path, _ in model.named_modules() if path]
    for part in spec.modules or (name,):
        if part not in known:
            raise TaskError(
                f"The optimizer {name!r} is for the submodule {part!r}, which does not exist. "
                f"{suggest_names(part, known)} Or use surestep.OptimizerSpec(modules=[...])."
            )
    parts = [model.get_submodule(part) for part in spec.modules or (name,)]
    return parts[0] if len(parts) == 1 else nn.ModuleList(parts)
