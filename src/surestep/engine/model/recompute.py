"""BatchNorm's statistics under averaged weights, which no training step has seen."""

from itertools import islice

import torch

from surestep.engine.average import BATCH_NORM, Average
from surestep.engine.data.feed import feed
from surestep.engine.metrics import take_logged
from surestep.engine.model.kept import kept_buffers, kept_modes
from surestep.engine.plan import Plan
from surestep.engine.seed import kept_generators
from surestep.engine.step import Parts
from surestep.engine.task import Task


def recompute_statistics(average: Average, parts: Parts, task: Task, plan: Plan) -> None:
    """Compute them from the training data, once for each update of the average.

    They are plain means over the batches, as torch.optim.swa_utils.update_bn makes them; a
    BatchNorm that is kept in eval mode keeps its own. Whatever else the forward moves is put back.
    """
    updates = average.updates(parts.state.place.steps_taken)
    if average.averaging.buffers != "recompute" or average.computed_at == updates:
        return
    wanted = parts.modes.wanted
    norms = [module for module, trains in wanted if trains and isinstance(module, BATCH_NORM)]
    momenta = [norm.momentum for norm in norms]
    with (
        kept_modes(module for module, _ in wanted),
        kept_buffers(parts.state.model),
        kept_generators(plan.device),
        average.in_place(),
        torch.no_grad(),
    ):
        try:
            for module, trains in wanted:
                module.training = trains
            for norm in norms:
                norm.reset_running_stats()
                norm.momentum = None  # torch's word for a plain mean
            _forward(parts, task, plan)
        finally:
            for norm, momentum in zip(norms, momenta, strict=True):
                norm.momentum = momentum
            take_logged()
    average.computed_at = updates


def _forward(parts: Parts, task: Task, plan: Plan) -> None:
    """Run the first epoch's batches through the model, apart from those that the loop is at.

    A stream that does not say how long it is may have no end: of it, as many as the run has read.
    """
    count = None if plan.steps_per_epoch is not None else parts.state.place.step
    whole, loss = plan.alone(), parts.loss
    training = feed(task.train, "train", task=task, loss=loss, plan=whole, training=True)
    try:
        for batch in islice(training.batches(epoch=0), count):
            for micro in batch.micro_batches:
                parts.randomness.at(-1, micro.position)
                with parts.autocast:
                    parts.state.model(*micro.args, **micro.kwargs)
    finally:
        training.close()
