"""The parts of a step and its loop, wired as the Plan says."""

from collections.abc import Sequence
from contextlib import ExitStack

from torch import nn

from surestep.engine.average import Average, annealed
from surestep.engine.callback import Callback
from surestep.engine.checkpointing import own_checkpointing
from surestep.engine.checks.first_batch import check_first_batch
from surestep.engine.checks.parts import check_model
from surestep.engine.data.feed import feed
from surestep.engine.loop import Loop
from surestep.engine.optim.build import build_optimizer
from surestep.engine.optim.freezing import Watch, freezing, frozen
from surestep.engine.optim.groups import arrange, parameters_of
from surestep.engine.parallel.single import Single
from surestep.engine.precision import autocast, grad_scaler
from surestep.engine.schedule import factor
from surestep.engine.seed import ModelRandomness
from surestep.engine.state import WHOLE, State
from surestep.engine.step import Buffers, Modes, Parts
from surestep.trainer.planning import Planned


def build(
    planned: Planned, settings: ExitStack, callbacks: Sequence[Callback], *, fresh: bool
) -> Loop:
    """Put the model on its device and wire the parts around it.

    Args:
        planned: what was decided.
        settings: takes in what is to be put back when the session closes.
        callbacks: watchers.
        fresh: the weights are new.

    Raises:
        TaskError, DataError: the parts do not fit each other.
    """
    plan, task, loss = planned.plan, planned.task, planned.loss
    check_model(planned.model)
    modes = [(module, module.training) for module in planned.model.modules()]
    model = planned.model.to(plan.device)
    if isinstance(loss.value, nn.Module):
        loss.value.to(plan.device)
    training = feed(task.train, "train", task=task, loss=loss, plan=plan, training=True)
    context = autocast(plan)
    if plan.activation_checkpointing == "on":
        settings.enter_context(own_checkpointing(model))
    check_first_batch(model, training, task, autocast=context, fresh=fresh)
    groups = arrange(model, plan)
    settings.enter_context(frozen(model, groups))
    optimizer = build_optimizer(plan, task, model, groups)
    state = State(model, {WHOLE: optimizer}, grad_scaler(plan))
    if plan.average.kind != "none":
        state.average = Average(plan.average, model, parameters_of(optimizer))
    peaks = [float(group["lr"]) for group in optimizer.param_groups]
    parts = Parts(
        state=state,
        loss=loss,
        parallel=Single(plan, state),
        modes=Modes(model, tuple(task.keep_eval)),
        buffers=Buffers(model),
        randomness=ModelRandomness(plan.seed, plan.device),
        autocast=context,
        rate=annealed(factor(plan.schedule), plan.average, peaks[0]),
        peak_rates=peaks,
    )
    for module, mode in modes:
        settings.callback(setattr, module, "training", mode)
    loop = Loop(parts, training, plan, callbacks=list(callbacks))
    loop.on_log.append(Watch(model))
    parts.freeze = freezing(model, plan, groups, parts.modes)
    return loop
