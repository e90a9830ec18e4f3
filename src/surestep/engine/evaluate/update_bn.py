"""BatchNorm's statistics for averaged weights."""

from itertools import islice

import torch

from surestep.engine.data.batch_loader import make_loader
from surestep.engine.metrics.base import pop_logged
from surestep.engine.model.preserve import preserve_buffers
from surestep.engine.plan.plan import Plan
from surestep.engine.rng import preserve_torch_rng
from surestep.engine.state.average import BATCH_NORM, AveragedWeights
from surestep.engine.step.train_step import StepContext
from surestep.engine.task.task import Task


def recompute_statistics(
    average: AveragedWeights, context: StepContext, task: Task, plan: Plan
) -> None:
    """Compute BatchNorm's statistics from the training data, once for each update of the average.

    They are plain means over the batches, as torch.optim.swa_utils.update_bn computes them. A
    BatchNorm that is kept in eval mode keeps its own. Everything else is restored.
    """
    updates = average.n_updates(context.state.progress.step)
    if average.averaging.buffers != "recompute" or average.computed_at == updates:
        return
    wanted = context.train_modes.wanted
    norms = [module for module, trains in wanted if trains and isinstance(module, BATCH_NORM)]
    momenta = [norm.momentum for norm in norms]
    with (
        context.train_modes.use(),
        preserve_buffers(context.state.model, writes=context.writes),
        preserve_torch_rng(plan.device),
        average.swapped_in(),
        torch.no_grad(),
    ):
        try:
            for norm in norms:
                norm.reset_running_stats()
                norm.momentum = None  # a plain mean
            _forward(context, task, plan)
            average.keep_buffers()
        finally:
            for norm, momentum in zip(norms, momenta, strict=True):
                norm.momentum = momentum
            pop_logged()
    average.computed_at = updates


def _forward(context: StepContext, task: Task, plan: Plan) -> None:
    """Run the batches of the first epoch, read again, through the model.

    Of a stream without a length, as many as the run has read: it may have no end.
    """
    count = None if plan.steps_per_epoch is not None else context.state.progress.step
    whole, loss = plan.single_process(), context.loss
    training = make_loader(task.train, "train", task=task, loss=loss, plan=whole, training=True)
    try:
        for batch in islice(training.batches(epoch=0), count):
            for micro in batch.micro_batches:
                context.randomness.seed_for("statistics", micro.position)
                with context.autocast:
                    context.state.model(*micro.args, **micro.kwargs)
    finally:
        training.close()
