"""What ranks can share of a Task: streams that all of them read alike, metrics to put together."""

import json

from surestep.base.errors import DataError
from surestep.engine.data.dataset import dataset_of
from surestep.engine.data.stream import Reader, fingerprint, is_stream
from surestep.engine.evaluation.ranks import check_metrics
from surestep.engine.parallel.world import World
from surestep.engine.plan import Plan
from surestep.engine.task import Task
from surestep.trainer.planning import data_of


def check_shared(world: World, task: Task, plan: Plan) -> None:
    """Check that ranks can share the metrics and the streams, of which all must read the same.

    Raises:
        TaskError: what ranks have seen of a metric cannot be put together.
        DataError: a stream begins otherwise on another rank.
    """
    if world.size == 1:
        return
    check_metrics(task.metrics)
    begins = {
        part: fingerprint(Reader(dataset_of(data, part), plan.seed))
        for part, data in data_of(task).items()
        if is_stream(data)
    }
    each = [json.loads(text) for text in world.texts(json.dumps(begins))]
    for rank, others in enumerate(each):
        for part, other in others.items():
            if other != each[0].get(part, other):
                raise DataError(
                    f"The {part} stream begins with other samples on rank {rank} than on rank 0, "
                    "so it is split among the ranks already. surestep shares out each batch, and "
                    "every rank reads the whole stream: take out what looks at the rank, such as "
                    "split_by_node, split_dataset_by_node or torch.distributed.get_rank()."
                )
