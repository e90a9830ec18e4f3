"""Read the training data of a program as a run does, without its model."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from surestep.config.config import Config
from surestep.engine.batch import Batch, flatten_tensors
from surestep.engine.data.batch_loader import BatchLoader, make_loader
from surestep.engine.data.stream import is_stream
from surestep.engine.task.task import Task
from surestep.laws.record import RunRecord, StepRecord, digest_value
from surestep.laws.run import list_sources, set_workers
from surestep.trainer.incidents import epoch_index
from surestep.trainer.planning import PreparedTask, plan_task

BATCHES = 4  # that are read from a place
_STEPS = 1000  # of a stream, whose length is not known
# Options of a config that reading depends on; the rest is about models, steps and evaluations.
_OPTIONS = ("seed", "batch_size", "exclude_samples", "limit_train_batches")
_NOTHING: Mapping[str, Any] = {
    **{"loss": None, "val": None, "test": None, "metrics": {}, "items": "samples", "init": None},
    **{"optimizer": None, "optimizers": {}, "schedule": None, "teacher": None, "groups": {}},
    **{"batch_transform": None, "keep_eval": (), "loss_weights": {}, "reduction": "mean"},
    **{"times": {}, "loss_is_separable": True, "inputs": None},
}


@dataclass(frozen=True)
class Reading:
    """How the data of a program are read.

    Attributes:
        name: for people.
        epoch: from 0.
        start: the number of the first batch of the epoch, from 0.
        workers: that load the data; None is the number of the config.
        rank: of the process.
        ranks: that share each batch.
    """

    name: str = "no change"
    epoch: int = 0
    start: int = 0
    workers: int | None = None
    rank: int = 0
    ranks: int = 1


@dataclass(frozen=True)
class DataFacts:
    """What data are, as far as checks depend on it.

    Attributes:
        batch_size: of a batch.
        batches: of an epoch; None for a stream.
        is_in_memory: they are tensors, which no worker loads.
        source: file and line of the code that reads a sample; "" if it is not known.
    """

    batch_size: int
    batches: int | None
    is_in_memory: bool
    source: str


@dataclass(frozen=True)
class DataProgram:
    """Data that can be made again and again.

    Attributes:
        make_task: makes the task that has them.
        config: how they are read.
    """

    make_task: Callable[[], Task]
    config: Config

    def plan(self, options: Mapping[str, Any], *, workers: int | None = None) -> PreparedTask:
        """Plan how the data are read, for a model and a step that do nothing.

        Raises:
            ConfigError, TaskError, DataError: they cannot be read so.
        """
        task = replace(self.make_task(), model=_build_nothing, step=_take_no_step, **_NOTHING)
        length = {"max_steps": _STEPS} if is_stream(task.train) else {"epochs": 2}
        kept = {
            name: value
            for name, value in self.config.set_options().items()
            if name in _OPTIONS or name.startswith("data.")
        }
        if isinstance(task.train, DataLoader):
            kept.pop("batch_size", None)
        kept = {**length, "device": "cpu", **kept, **options}
        if workers is not None:
            task, own = set_workers(task, workers)
            kept |= own
        return plan_task(task, Config().replace_options(kept))

    def describe(self) -> DataFacts:
        """Return what the data are."""
        planned = self.plan({})
        plan, info = planned.plan, planned.info
        is_endless = info.is_stream or info.no_data
        return DataFacts(
            batch_size=plan.batch_size,
            batches=None if is_endless else plan.steps_per_epoch,
            is_in_memory=info.in_memory,
            source=list_sources(planned.task)["data"],
        )


def _build_nothing() -> nn.Module:
    return nn.Linear(1, 1)


def _take_no_step(manual_step: Any) -> None:
    """Do nothing: only the data of the task are read."""


def describe_data(program: DataProgram) -> DataFacts:
    """Return what the data of a program are; see `DataProgram.describe`."""
    return program.describe()


def _read(program: DataProgram, reading: Reading) -> Iterator[tuple[Batch, BatchLoader]]:
    """Yield the batches from the start of a reading on, with their loader."""
    planned = program.plan({}, workers=reading.workers)
    plan = planned.plan.replace(parallel_rank=reading.rank, parallel_ranks=reading.ranks)
    task, loss = planned.task, planned.loss
    loader = make_loader(task.train, "train", task=task, loss=loss, plan=plan, training=True)
    try:
        start = reading.start * plan.batch_size
        for batch in islice(loader.batches(reading.epoch, start), BATCHES):
            yield batch, loader
    finally:
        loader.close()


def record_data(program: DataProgram, reading: Reading) -> RunRecord:
    """Return the samples and the data of some batches, as steps numbered in their epoch, from 1."""
    record = RunRecord()
    for number, (batch, loader) in enumerate(_read(program, reading), reading.start + 1):
        index = epoch_index(loader, batch.epoch)
        rows = range(batch.position, batch.end)
        samples = rows if index is None else index[batch.position : batch.end]
        data = {
            f"tensor {place} of micro-batch {micro_number}": digest_value(tensor)
            for micro_number, micro in enumerate(batch.micro_batches, 1)
            for place, tensor in enumerate(_list_tensors(micro), 1)
        }
        indices = {"indices": digest_value(torch.as_tensor(samples))}
        record.steps.append(StepRecord(number, {"sample indices": indices, "data": data}))
    return record


def record_rows(program: DataProgram, reading: Reading) -> list[list[str]] | None:
    """Return a digest of each sample of some batches; None if their tensors have no rows."""
    batches = []
    for batch, _ in _read(program, reading):
        rows: list[str] = []
        for micro in batch.micro_batches:
            tensors = [tensor for tensor in _list_tensors(micro) if micro.samples]
            if any(not tensor.dim() or len(tensor) != micro.samples for tensor in tensors):
                return None
            rows += [
                " ".join(digest_value(tensor[row]).bits for tensor in tensors)
                for row in range(micro.samples if tensors else 0)
            ]
        batches.append(rows)
    return batches


def _list_tensors(micro: Any) -> list[Tensor]:
    return list(flatten_tensors((micro.args, micro.kwargs, micro.targets)))
