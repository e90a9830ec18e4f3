"""Prove what holds of training data alone, in seconds: the model is not built."""

import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn
from torch.utils.data import DataLoader, Dataset

from surestep.base.errors import ConfigError, TaskError
from surestep.base.text import describe_value
from surestep.config.config import Config
from surestep.engine.task.task import Task
from surestep.laws.check import Result, fail, hold, leave_out, leave_untested
from surestep.laws.checks.order import find_problem, list_orders
from surestep.laws.compare import compare_records
from surestep.laws.data import (
    DataFacts,
    DataProgram,
    Reading,
    describe_data,
    record_data,
    record_rows,
)
from surestep.laws.processes import (
    Call,
    Outcome,
    TimeIsOverError,
    call_in_processes,
    count_at_once,
)
from surestep.laws.proof import Proof, Row
from surestep.laws.prove import check_cuda_is_unused, make_row, read_versions, run_check
from surestep.laws.record import RunRecord
from surestep.laws.runner import Finding, get_value
from surestep.trainer.arguments import check_config, check_main_guard

_RANKS = 2
_STREAM = "A stream has no positions: surestep prove RECIPE resumes it from its state."


class Positions(Dataset[int]):
    """The numbers from 0, which a sampler is read with."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> int:
        return index


@dataclass(frozen=True)
class DataTask:
    """Makes a task of what a function returns: a DataLoader, a dataset or a sampler.

    Attributes:
        make_loader: the function.
        batch_size: of a sampler.
    """

    make_loader: Callable[[], Any]
    batch_size: int

    def __call__(self) -> Task:
        """Make the task.

        Raises:
            TaskError: the function returned nothing.
        """
        data = self.make_loader()
        if data is None:
            raise TaskError("make_loader() returned None. Is a return missing?")
        if _is_sampler(data):
            longest = max(data, default=-1) + 1
            data = DataLoader(Positions(longest), self.batch_size, sampler=data)
        return Task(lambda: nn.Linear(1, 1), loss="mse", train=data)


def _is_sampler(data: Any) -> bool:
    """Return whether an object yields indices: it is not data, and has no elements."""
    kind = type(data)
    is_data = isinstance(data, DataLoader | Dataset) or hasattr(kind, "__getitem__")
    return hasattr(kind, "__iter__") and not is_data


def prove_data(
    make_loader: Callable[[], Any], *, batch_size: int = 8, seed: int = 0, minutes: float = 2.0
) -> Proof:
    """Read data many times over, as training does, and compare: order, workers, resuming, ranks.

    No model is needed. Each reading is in a fork of this process. Call it before this process uses
    CUDA, and under `if __name__ == "__main__":`.

    Args:
        make_loader: returns a new DataLoader, dataset, iterable dataset or sampler; called in this
            process once, and in a new one.
        batch_size: of data that have no batches.
        seed: of the order and of each sample.
        minutes: that all of it may take.

    Returns:
        A row for each law or check. If Ctrl-C arrives, those that are known.

    Raises:
        ConfigError, TaskError, DataError: the data cannot be read, or an argument is not valid.
    """
    check_main_guard()
    if not callable(make_loader) or isinstance(make_loader, DataLoader | Dataset):
        raise TaskError(
            f"make_loader is {describe_value(make_loader)}. Pass a function that makes the data, "
            "since each reading needs new ones: prove_data(lambda: DataLoader(...))."
        )
    config = Config(seed=seed, batch_size=batch_size)
    return prove_data_of(DataTask(make_loader, batch_size), config, minutes=minutes)


def prove_data_of(make_task: Callable[[], Task], config: Config, *, minutes: float = 2.0) -> Proof:
    """Read the training data of a task many times over; see `prove_data`.

    Args:
        make_task: makes the task.
        config: how its data are read.
        minutes: that all of it may take.
    """
    check_config(config)
    check_cuda_is_unused("prove_data")
    started, rows = time.monotonic(), list[Row]()
    proof = Proof(versions=read_versions())
    with tempfile.TemporaryDirectory(prefix="surestep-prove-") as folder:
        try:
            reader = _Reader(make_task, config, Path(folder), end=started + 60 * minutes)
            size, batches = reader.facts.batch_size, reader.facts.batches
            proof = replace(proof, samples=None if batches is None else size * batches)
            rows.extend(_list_rows(reader))
        except KeyboardInterrupt:
            proof = replace(proof, stopped="Ctrl-C")
    return replace(proof, rows=rows, seconds=time.monotonic() - started)


class _Reader:
    """Reads data in new processes, until its time is over.

    The task is made once in this process, and each reading is a fork of it: data may take longer to
    make than to read. One reading makes the task from scratch.
    """

    def __init__(
        self, make_task: Callable[[], Task], config: Config, folder: Path, *, end: float
    ) -> None:
        self._folder, self._end, self._count = folder, end, 0
        task = make_task()
        self._program = DataProgram(lambda: task, config)
        self._from_scratch = DataProgram(make_task, config)
        try:
            (described,) = self._call(describe_data, ())
        except TimeIsOverError:
            raise ConfigError(
                "The data were not made when the time was over. Set more minutes (--minutes)."
            ) from None
        if described.error or described.signal:
            raise ConfigError(f"The data cannot be read. {described.error}")
        self.facts: DataFacts = described.value
        self.first = self.record(Reading())[0]

    def record(self, *readings: Reading) -> list[RunRecord]:
        """Return what readings yield, each in a process."""
        return self._read(record_data, readings)

    def record_rows(self, *readings: Reading) -> list[list[list[str]] | None]:
        """Return a digest of each sample of readings, each in a process."""
        return self._read(record_rows, readings)

    def read_orders(self) -> list[dict[str, Any]]:
        """Return the orders of two epochs and two seeds, twice."""
        return [get_value(one, "an order") for one in self._call(_read_orders, (), ())]

    def record_from_scratch(self) -> RunRecord:
        """Return what a reading yields whose process makes the task too."""
        call = Call(record_data, self._make_folder(), (self._from_scratch, Reading()))
        (outcome,) = call_in_processes([call], at_once=1, end=self._end)
        found: RunRecord = get_value(outcome, "data that are made again")
        return found

    def _read(self, function: Callable[..., Any], readings: Sequence[Reading]) -> list[Any]:
        """Return what a function returns of each reading."""
        outcomes = self._call(function, *((one,) for one in readings))
        return [
            get_value(outcome, reading.name)
            for outcome, reading in zip(outcomes, readings, strict=True)
        ]

    def _make_folder(self) -> Path:
        self._count += 1
        return self._folder / str(self._count)

    def _call(self, function: Callable[..., Any], *arguments: Sequence[Any]) -> list[Outcome]:
        calls = [Call(function, self._make_folder(), (self._program, *one)) for one in arguments]
        return call_in_processes(calls, at_once=count_at_once(), end=self._end)

    def compare(self, *readings: Reading) -> Result | None:
        """Return how the first of readings that differs from that of no change does so."""
        for reading, found in zip(readings, self.record(*readings), strict=True):
            difference = compare_records(self.first, found)
            if difference is not None:
                return fail(
                    f"The data differ with {reading.name}", Finding(difference, self.facts.source)
                )
        return None


def _read_orders(program: DataProgram) -> dict[str, Any]:
    return list_orders(lambda: program.plan({"limit_train_batches": None}))


def _list_rows(reader: _Reader) -> Iterator[Row]:
    """Yield the row of each law as soon as it is known."""
    is_stable = True
    for law, name, check in _CHECKS:
        started = time.monotonic()
        if is_stable:
            result = run_check(partial(check, reader))
        else:
            result = leave_untested("The data are not the same when they are read again.")
        is_stable = is_stable and not (name == "same again" and result.status == "fails")
        yield make_row(law, name, result, time.monotonic() - started)


def _check_same_again(reader: _Reader) -> Result:
    differs = reader.compare(Reading("another reading"), Reading("another reading"))
    if differs is not None:
        return differs
    difference = compare_records(reader.first, reader.record_from_scratch())
    if difference is not None:
        text = "The data differ when they are made again"
        return fail(text, Finding(difference, reader.facts.source))
    return hold("3 readings of the first batches, and one of data that were made again")


def _check_order(reader: _Reader) -> Result:
    if reader.facts.batches is None:
        return leave_out("The stream decides its order.")
    problem = find_problem(*reader.read_orders())
    return fail(problem) if problem else hold("two epochs and two seeds, in full")


def _check_workers(reader: _Reader) -> Result:
    if reader.facts.is_in_memory:
        return leave_out("The training data is tensors in memory, which no worker loads.")
    if reader.facts.batches is None:
        return leave_out("Workers share a stream, so its order depends on their number.")
    readings = [Reading(f"data workers: {count}", workers=count) for count in (0, 1, 3)]
    return reader.compare(*readings) or hold("0, 1 and 3 workers")


def _check_resuming(reader: _Reader) -> Result:
    """Read from several positions of two epochs, each in a process that has read nothing before."""
    batches = reader.facts.batches
    if batches is None:
        return leave_out(_STREAM)
    if batches == 1:
        return leave_untested("An epoch has one batch. Set a smaller batch_size.")
    for start in sorted({1, batches // 2, batches - 1} & set(range(1, batches))):
        before = Reading(start=max(0, start - 2))
        after = Reading(f"from batch {start + 1} of an epoch on", start=start)
        whole, resumed = reader.record(before, after)
        first = start + 1
        both = [
            RunRecord([step for step in record.steps if first <= step.step < first + 2])
            for record in (whole, resumed)
        ]
        difference = compare_records(*both)
        if difference is not None:
            text = f"The data differ {after.name}, if nothing before it was read"
            return fail(text, Finding(difference, reader.facts.source))
    return hold(f"from the second, a middle and the last of {batches} batches on")


def _check_shares(reader: _Reader) -> Result:
    """Compare the samples of each batch with those of all ranks, each of them once."""
    if reader.facts.batches is None:
        return leave_out("Processes share a stream, so its order depends on their number.")
    ranks = [Reading(f"rank {rank} of {_RANKS}", rank=rank, ranks=_RANKS) for rank in range(_RANKS)]
    whole, *shares = reader.record_rows(Reading(), *ranks)
    if whole is None or any(share is None for share in shares):
        return leave_untested("The tensors of a batch have no row for each sample.")
    for number, batch in enumerate(whole):
        got = Counter(row for share in shares for row in (share or [])[number])
        if got != Counter(batch):
            missing, more = Counter(batch) - got, got - Counter(batch)
            return fail(
                f"In batch {number + 1}, {missing.total()} samples of one process are not those of "
                f"{_RANKS} ranks, which have {more.total()} others"
            )
    return hold(f"{_RANKS} ranks, which have each sample of a batch once")


_CHECKS: tuple[tuple[str, str, Callable[[_Reader], Result]], ...] = (
    ("check", "same again", _check_same_again),
    ("check", "order", _check_order),
    ("check", "workers", _check_workers),
    ("law 2", "resuming", _check_resuming),
    ("law 10", "shares", _check_shares),
)
