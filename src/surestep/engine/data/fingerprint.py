"""What data is known by: a digest of a few of its samples.

A stream is known by how it begins, everything else by samples spread over it. They are loaded under
the seeds of their places, so a random augmentation gives the same digest in every process.
"""

from typing import Any

import torch

from surestep.engine.data.dataset import count_samples, loader_settings
from surestep.engine.data.open_source import make_source, plain_tensors
from surestep.engine.data.stream import digest
from surestep.engine.data.stream_loader import StreamLoader
from surestep.engine.plan.batching import BatchLayout
from surestep.engine.plan.plan import Plan
from surestep.engine.task.task import Task

LOADED = 5  # samples that a dataset loads: the first, the last, and three between
IN_MEMORY = 1024  # rows of tensors that are there already
_SEED = 0  # of its own: another seed of the run does not make other data


def probe_indices(samples: int, looked_at: int) -> list[int]:
    """Spread places over the data, the first and the last among them."""
    if samples <= looked_at:
        return list(range(samples))
    return sorted({round(each * (samples - 1) / (looked_at - 1)) for each in range(looked_at)})


def dataset_fingerprint(data: Any, part: str, *, task: Task, plan: Plan) -> str | None:
    """Return a digest of samples of a map-style part; None where they are never the same.

    Where there are workers, one of them loads: a dataset may open its files in the process that
    loads first, and a file that is open before a worker is forked is shared by all of them.
    """
    samples = count_samples(data, part)
    assert samples is not None
    memory = plain_tensors(data, task)
    if memory is not None:  # with any number of workers: it is the same data
        rows = torch.tensor(probe_indices(samples, IN_MEMORY))
        return digest(next(memory.read(0, rows, [range(len(rows))])))
    own = loader_settings(data) or {}
    one = plan.replace(
        seed=_SEED,
        data_num_workers=min(max(plan.data_num_workers, own.get("num_workers", 0)), 1),
        data_persistent_workers=False,
        data_pin_memory=False,
    )
    cut = BatchLayout(samples, 1, 1)
    source = make_source(data, part, cut, task=task, plan=one, training=True)
    assert not isinstance(source, StreamLoader)
    where = [range(place, place + 1) for place in probe_indices(samples, LOADED)]
    try:
        found = [digest(batch) for batch in source.read(0, None, where * 2)]
    except Exception:  # of the user's dataset, whose reason is told by the first batch
        return None
    finally:
        source.close()
    first, again = found[: len(where)], found[len(where) :]
    return digest(first) if first == again else None
