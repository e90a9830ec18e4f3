"""From what was planned to the parts of a step."""

from collections.abc import Sequence
from contextlib import ExitStack

from torch import nn

from surestep.base.errors import ConfigError
from surestep.engine.average import Average, annealed
from surestep.engine.global_generators import GlobalGenerators
from surestep.engine.loss import Loss
from surestep.engine.losses.state import own_module
from surestep.engine.model.kept import Buffers, Modes
from surestep.engine.optim.build import build_optimizer
from surestep.engine.optim.freezing import frozen, frozen_norms
from surestep.engine.optim.groups import ParameterGroup, arrange, parameters_of
from surestep.engine.optim.learners import build_learners
from surestep.engine.own_step import OwnStep
from surestep.engine.parallel.many import Kept, Mover, Movers
from surestep.engine.parallel.search import search
from surestep.engine.parallel.summed import Summed, of_first
from surestep.engine.parallel.ways import verbs
from surestep.engine.parallel.world import World
from surestep.engine.plan import Plan
from surestep.engine.precision import autocast, grad_scaler
from surestep.engine.schedule.rate import momentum_writer, rate_of
from surestep.engine.seed import ModelRandomness
from surestep.engine.state import WHOLE, State, named_trainable
from surestep.engine.step import Parts
from surestep.engine.task import Task


def parts_of(
    plan: Plan, task: Task, model: nn.Module, loss: Loss, settings: ExitStack, world: World
) -> tuple[Parts, Sequence[ParameterGroup]]:
    """Wire a step: the usual one, or the Task's own over its optimizers.

    Returns the groups too, of which some may be frozen until later.

    Args:
        plan: what was decided.
        task: what is trained.
        model: on its device.
        loss: with its denominator.
        settings: puts back, when the session closes, what is frozen here.
        world: the processes that make a step together.

    Raises:
        TaskError: the optimizers do not fit the model.
        ConfigError: they do not fit a step of the user's own.
    """
    groups: Sequence[ParameterGroup] = ()
    keep_eval = list(task.keep_eval)
    if task.optimizers:
        before = list(named_trainable(model).values())
        optimizers = build_learners(plan, task, model, settings)
        keep_eval += frozen_norms(model, before)
    else:
        groups = arrange(model, plan)
        settings.enter_context(frozen(model, groups))
        optimizers = {WHOLE: build_optimizer(plan, task, model, groups)}
    state = State(model, optimizers, grad_scaler(plan))
    if plan.average.kind != "none":
        trained = [each for optimizer in optimizers.values() for each in parameters_of(optimizer)]
        state.average = Average(plan.average, model, trained)
    plans = plan.optimizers or {WHOLE: plan}
    movers = Movers(
        {name: _mover(plans[name], task, state, name, world) for name in optimizers}, state.scaler
    )
    if task.step is not None and world.size > 1:
        of_first(model, weights=True)
    first = next(iter(movers.by_name.values()))
    settings.callback(first.parallel.leave)
    # Only the usual update, in one process, can be computed again where something draws late.
    lazy = world.size == 1 and task.step is None and plan.guard != "searching"
    generators = GlobalGenerators(lazy=lazy)
    parts = Parts(
        state=state,
        loss=loss,
        parallel=first.parallel,
        modes=Modes(model, tuple(keep_eval)),
        buffers=Buffers(model, own_module(loss)),
        randomness=ModelRandomness(plan.seed, plan.device, generators),
        generators=generators,
        autocast=autocast(plan, cached=task.step is None),
        rate=first.rate,
        peak_rates=first.peak_rates,
        momentum=first.momentum,
    )
    _set_update(parts, plan, task, movers)
    return parts, groups


def _set_update(parts: Parts, plan: Plan, task: Task, movers: Movers) -> None:
    """Replace what moves the parameters, where the optimizer or the Task does so itself."""
    if task.step is not None:
        if plan.guard == "searching":
            raise ConfigError(
                "optim.name='lbfgs' evaluates the batch by itself, and the Task's own step says "
                "when to. Say another optim.name."
            )
        parts.update = OwnStep(task.step, movers)
    elif plan.guard == "searching":
        parts.update = search


def _mover(plan: Plan, task: Task, state: State, name: str, world: World) -> Mover:
    optimizer = state.optimizers[name]
    peaks = [float(group["lr"]) for group in optimizer.param_groups]
    rate = annealed(rate_of(plan.schedule, state.plateau, task.schedule), plan.average, peaks[0])
    own = task.step is not None and world.size > 1
    momentum = momentum_writer(plan.schedule, optimizer)
    if momentum is not None:
        state.scheduled[name] = ("betas", "momentum")
    return Mover(
        Summed(plan, state, world, name) if own else verbs(plan, state, name, world),
        rate,
        peaks,
        Kept(optimizer),
        momentum,
    )
