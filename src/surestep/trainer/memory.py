"""The memory that a task takes, which `surestep plan` shows."""

from surestep.engine.data.batch_loader import make_loader
from surestep.engine.model.precision import torch_settings
from surestep.engine.modes import preserve_modes
from surestep.engine.parallel.wrap_policy import select_wrap_units
from surestep.engine.profile.activation_memory import ActivationMemory, measure_activations
from surestep.engine.profile.memory_estimate import (
    MemoryEstimate,
    RankMemory,
    estimate_rank_memory,
)
from surestep.trainer.planning import PreparedTask


def measure_task_activations(planned: PreparedTask) -> ActivationMemory | str:
    """Measure what the forward of a micro-batch stores for its backward, or return why not."""
    task, plan, loss = planned.task, planned.plan, planned.loss
    if task.step is not None:
        return "the Task has a manual step"
    if any(p.is_meta for p in planned.model.parameters()):
        return "parallel.meta_init built the shapes of the model, and a forward needs its values"
    with preserve_modes(() if loss.teacher is None else tuple(loss.teacher.modules())):
        loss.to(plan.device)
        loader = make_loader(task.train, "train", task=task, loss=loss, plan=plan, training=True)
        try:
            with torch_settings(plan):
                return measure_activations(planned.model, loader, plan, tuple(task.keep_eval))
        except Exception as error:  # of the user's forward
            return f"the first batch fails: {type(error).__name__}: {error}"
        finally:
            loader.close()


def estimate_memory_per_rank(planned: PreparedTask, takes: MemoryEstimate) -> list[RankMemory]:
    """Return the memory of each rank for the model's state, by strategy."""
    model, plan = planned.model, planned.plan
    names = plan.parallel_wrap_policy or select_wrap_units(model, "auto").names
    hybrid = plan.parallel_shard_size if plan.parallel_shard == "hybrid" else 0
    return estimate_rank_memory(
        model,
        takes,
        blocks=[model.get_submodule(name) for name in names],
        ranks=plan.parallel_ranks,
        local=hybrid or planned.system.launched.local_size,
        precision=plan.precision,
    )
