"""The parts of a step and its loop, wired as the Plan says."""

from collections.abc import Sequence
from contextlib import ExitStack

from torch import nn

from surestep.engine.callback import Callback, declared
from surestep.engine.carry import check_carried
from surestep.engine.checks.batch_norm import check_training, check_validation
from surestep.engine.checks.first_batch import check_first_batch
from surestep.engine.checks.parts import check_model, check_teacher
from surestep.engine.data.dataset import loader_settings, samples_of
from surestep.engine.data.feed import feed
from surestep.engine.data.generators import OwnGenerator
from surestep.engine.data.order import Cut
from surestep.engine.data.resume import declared_of
from surestep.engine.loop import Loop
from surestep.engine.losses.several import code_of_losses
from surestep.engine.losses.state import state_of_loss
from surestep.engine.model.checkpointing import activation_checkpointing
from surestep.engine.model.compiled import Graphs, compiled, eager
from surestep.engine.model.frozen import base_of
from surestep.engine.model.generators import (
    Seeded,
    check_own_generators,
    find_late,
    own_generators,
)
from surestep.engine.model.nonpersistent import built
from surestep.engine.optim.freezing import Watch, freezing, trained_modules
from surestep.engine.parallel.ways import laid_out
from surestep.engine.parallel.world import ALONE, World
from surestep.engine.precision import autocast
from surestep.trainer.alike import Drift
from surestep.trainer.planning import Planned
from surestep.trainer.together import settle
from surestep.trainer.wire import parts_of


def build(
    planned: Planned,
    settings: ExitStack,
    callbacks: Sequence[Callback],
    *,
    fresh: bool,
    world: World = ALONE,
) -> Loop:
    """Lay the model out on its device and wire the parts around it.

    Args:
        planned: what was decided.
        settings: takes in what is to be put back when the session closes.
        callbacks: watchers.
        fresh: the weights are new.
        world: the processes that make a step together.

    Raises:
        TaskError, DataError: the parts do not fit each other.
    """
    plan, task, loss = planned.plan, planned.task, planned.loss
    check_model(planned.model)
    check_carried(task, planned.model, plan)
    check_teacher(loss.teacher, planned.model)
    of_teacher = () if loss.teacher is None else loss.teacher.modules()
    of_both = (*planned.model.modules(), *of_teacher)
    modes = [(module, module.training) for module in of_both]
    compiles, watched = plan.compile != "off", list[OwnGenerator]()
    rematerialised = activation_checkpointing(
        planned.model, plan.activation_checkpointing, compiles=compiles, watched=watched
    )
    settings.enter_context(rematerialised)  # within what gathers a block
    model = laid_out(planned.model, plan)
    loss.to(plan.device)
    training = feed(task.train, "train", task=task, loss=loss, plan=plan, training=True)
    settings.callback(training.close)
    judged_by, casting = plan.validation_metric, autocast(plan)
    with eager(model):
        narrow = check_first_batch(
            model, training, task, autocast=casting, fresh=fresh, judged_by=judged_by
        )
    settings.enter_context(compiled(model, plan))
    parts, groups = parts_of(plan, task, model, loss, settings, world)
    check_norms(
        planned, model, trained_modules(parts.modes, model, plan, groups), narrow, training.cut
    )
    parts.state.base, parts.state.built = base_of(model, plan), built(model)
    parts.state.declared = (
        declared(callbacks) | declared_of(training.source, plan, parts.state) | state_of_loss(loss)
    )
    found = own_generators(model, {**code_of_losses(loss), "step": task.step})
    watched += check_own_generators(found, plan.activation_checkpointing, compiles)
    parts.randomness.generators += map(Seeded, found.found)
    parts.transform = training.transform
    for module, mode in modes:
        settings.callback(setattr, module, "training", mode)
    if world.size > 1 and task.step is None and plan.parallel_kind != "deepspeed":
        settle(parts, training, plan)
    loop = Loop(parts, training, plan, callbacks=list(callbacks), on_log=[Watch(model)])
    loop.after_first.append(find_late(found, parts.randomness.generators))
    if world.size > 1 and plan.parallel_check_every is not None:
        loop.compare = Drift(world, parts.state, plan, every=plan.parallel_check_every)
    if plan.compile != "off":
        loop.notices.append(Graphs().notice)
    parts.freeze = freezing(model, plan, groups, parts.modes)
    return loop


def check_norms(
    planned: Planned, model: nn.Module, trained: set[nn.Module], narrow: set[nn.Module], cut: Cut
) -> None:
    """Check that BatchNorm gets more than one value per channel in training and validation.

    Args:
        planned: what was decided.
        model: on its device.
        trained: modules that are in training mode at some step.
        narrow: layers that see one value per sample and channel.
        cut: of the training data.

    Raises:
        DataError: it gets one in some batch; which one, and the ways out.
    """
    if not narrow:
        return
    plan = planned.plan
    check_training(model, narrow & trained, cut, plan.total_steps)
    for part, data in planned.task.val_sets().items():
        own = loader_settings(data)
        size = (own or {}).get("batch_size") or plan.validation_batch_size
        ranks = plan.parallel_ranks
        samples, limit = samples_of(data, part), plan.limit_val_batches
        cut = Cut(samples, size * ranks, size, ranks=ranks, limit=limit)
        check_validation(model, narrow, part, cut)
