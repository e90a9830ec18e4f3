"""Read a checkpoint: its state.json alone, or verified with tensors assembled from slices."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from safetensors import SafetensorError, safe_open

from surestep.base.errors import CheckpointError
from surestep.engine.distributed.shards import Sizes, distribute_like, is_sharded, shard_extent
from surestep.engine.value import Metrics
from surestep.record.checkpoint.manifest import (
    MANIFEST,
    RECORD,
    Manifest,
    TensorEntry,
    check_sizes,
    checkpoint_error,
    lacks_memory,
    read_manifest,
    verify,
)
from surestep.record.events import recorded_progress
from surestep.record.io import parse_json, read_regular
from surestep.record.safetensors_writer import dtype_of
from surestep.record.schemas import format_value
from surestep.record.state_schema import check_counts, check_progress, parse_state

if TYPE_CHECKING:  # most commands start without torch
    from torch import Tensor

T = TypeVar("T")
_NOTHING: Mapping[str, Tensor] = {}


@dataclass(frozen=True)
class CheckpointInfo:
    """The step of a checkpoint, its metrics and its progress, as in state.json.

    Attributes:
        step: global batches consumed.
        metrics: measured at this step; empty if it was not evaluated.
        path: the folder.
        evaluated: whether the metrics are of the weights or of their average.
        data: digest of the samples that the monitored metric is of; None if it is not known.
        epoch: epochs completed.
        position: samples consumed in the current epoch.
        cycle: the cycle of the schedule that ended there, from 1.
        best_step: the best step until then.
        latest: metrics of the latest evaluation, at this step or before.
    """

    step: int
    metrics: Metrics
    path: Path
    evaluated: Literal["weights", "average"] = "weights"
    data: str | None = None
    epoch: int = 0
    position: int = 0
    cycle: int | None = None
    best_step: int | None = None
    latest: Metrics = field(default_factory=Metrics)

    @property
    def has_average(self) -> bool:
        """Whether it has averaged weights."""
        return "average" in read_manifest(self.path).tensors


@dataclass(frozen=True)
class CheckpointReader:
    """A checkpoint whose every byte was verified; the record is the content of state.json."""

    path: Path
    manifest: Manifest
    record: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The name of its folder, for messages."""
        return self.path.name

    @property
    def saved(self) -> CheckpointInfo:
        """Step and metrics."""
        return info_from_record(self.path, self.record)

    def tensors(self, kind: str, like: Mapping[str, Tensor] = _NOTHING) -> dict[str, Tensor]:
        """Read the tensors of a kind ("model", "optimizer", "average"), by name.

        Args:
            kind: of the tensors.
            like: by name, what they are loaded into. Of a sharded tensor of the same shape, only
                this rank's shard is read, and the result is sharded like it.
        """
        with self.open_tensors(kind) as read:
            return {name: read(name, like.get(name)) for name in self.entries(kind)}

    def entries(self, kind: str) -> Mapping[str, TensorEntry]:
        """Return the manifest's entries of a kind, by name."""
        if kind not in self.manifest.tensors:
            raise CheckpointError(f"{self.path} has no tensors of the {kind}.")
        return self.manifest.tensors[kind]

    def with_aliases(self, by_name: Mapping[str, T], *, partial: bool = False) -> dict[str, T]:
        """Return a mapping with an entry for every name of a tied tensor.

        If `partial`, tied tensors without an entry for the name that was saved are left out.
        """
        aliases = self.record["aliases"]
        try:
            tied = {n: by_name[of] for n, of in aliases.items() if of in by_name or not partial}
        except KeyError as error:
            raise checkpoint_error(self.path, RECORD, f"it lacks the tensor {error}") from error
        return {**by_name, **tied}

    @contextmanager
    def open_tensors(self, kind: str) -> Iterator[Callable[[str, Tensor | None], Tensor]]:
        """Yield a function that reads one tensor of a kind by name; see `tensors` for `like`."""
        stored = self.entries(kind)
        with ExitStack() as stack:
            files = _OpenFiles(self.path, stack)

            def read(name: str, like: Tensor | None) -> Tensor:
                part = stored[name]
                with _reading(self.path, kind):
                    if is_sharded(like) and tuple(like.shape) == part.shape:
                        offset, shape, _ = shard_extent(like)
                        return distribute_like(like, files.read_shard(name, part, (offset, shape)))
                    return files.read(name, part)

            yield read


def read_record(path: Path, manifest: Manifest | None = None) -> dict[str, Any]:
    """Read the state.json of a checkpoint, and its manifest if that is not given."""
    manifest = manifest or read_manifest(path)
    check_sizes(path, manifest)
    try:
        data = read_regular(path / RECORD)
    except (OSError, ValueError) as error:
        raise checkpoint_error(path, RECORD, error) from error
    return parse_state_json(path, data, manifest.step)


def parse_state_json(path: Path, data: bytes, step: int) -> dict[str, Any]:
    """Return the content of a state.json; it must be of that step."""
    try:
        record = parse_state(parse_json(data))
    except ValueError as error:
        raise checkpoint_error(path, RECORD, error) from error
    if (found := record["progress"]["step"]) != step:
        raise checkpoint_error(path, RECORD, f"it is of step {found}, not {step}")
    return record


def read_info(path: Path) -> CheckpointInfo:
    """Read step and metrics of a checkpoint; its tensors are not read."""
    return info_from_record(path, read_record(path))


def info_from_record(path: Path, record: Mapping[str, Any]) -> CheckpointInfo:
    """Return step and metrics from the content of a state.json."""
    best, progress = record["best"], record["progress"]
    return CheckpointInfo(
        step=progress["step"],
        metrics=Metrics(best["latest"] if best["latest_step"] == progress["step"] else {}),
        path=path,
        evaluated=best["measured"],
        data=best.get("data"),
        epoch=progress["epoch"],
        position=progress["position"],
        cycle=record["cycle"],
        best_step=best["best_step"],
        latest=Metrics(best["latest"]),
    )


def open_checkpoint(path: Path, *, is_verified: bool = False) -> CheckpointReader:
    """Verify a checkpoint and read everything that is not a tensor.

    Args:
        path: its folder.
        is_verified: another rank has just verified every byte.

    Raises:
        CorruptCheckpointError: a byte is not what was written.
        CheckpointError: of another format, or not readable.
    """
    manifest = read_manifest(path) if is_verified else verify(path)
    record = read_record(path, manifest)
    check_readable(path, manifest)
    return CheckpointReader(path, manifest, record)


def check_record(path: Path, record: Mapping[str, Any]) -> None:
    """Check the counts of a state.json against each other, and its progress against the events."""
    progress = record["progress"]
    try:
        check_counts(record)
        events = path.absolute().parents[1] / "events.jsonl"
        check_progress(progress, recorded_progress(events, progress["step"]))
    except ValueError as error:
        raise checkpoint_error(path, RECORD, error) from error


def check_readable(path: Path, manifest: Manifest) -> None:
    """Check that the headers of the files have exactly the tensors of the manifest."""
    expected: dict[str, dict[str, tuple[str, list[int]]]] = {}
    for named in manifest.tensors.values():
        for name, stored in named.items():
            for part in stored.slices:
                within = expected.setdefault(part.file, {})
                if name in within:
                    raise checkpoint_error(path, MANIFEST, f"{name!r} is twice in {part.file}")
                within[name] = (stored.dtype, list(part.shape))
    for file, tensors in expected.items():
        with _reading(path, file), safe_open(path / file, "np") as opened:  # without torch
            slices = {name: opened.get_slice(name) for name in list(opened.keys())}
            actual = {n: (s.get_dtype(), list(s.get_shape())) for n, s in slices.items()}
        for name in actual.keys() | tensors.keys():
            if actual.get(name) != tensors.get(name):
                here, there = (found.get(name, "not there") for found in (actual, tensors))
                what = f"{format_value(name)} is {here} in it instead of {there}"
                raise checkpoint_error(path, file, what)


@contextmanager
def _reading(path: Path, file: str) -> Iterator[None]:
    """Raise a CheckpointError that names the file if the body cannot read it."""
    try:
        yield
    except (OSError, SafetensorError, ValueError) as error:
        raise checkpoint_error(path, file, error) from error
    except (RuntimeError, MemoryError) as error:  # torch's, if the file was deleted
        if path.is_dir() and not lacks_memory(error):
            raise
        raise checkpoint_error(path, file, error) from error


@dataclass
class _OpenFiles:
    """Files of tensors, each opened once."""

    path: Path
    stack: ExitStack
    open: dict[str, Any] = field(default_factory=dict)

    def read(self, name: str, stored: TensorEntry) -> Tensor:
        """Read a tensor; if it is in one slice, it is mapped from the file and not copied."""
        if len(stored.slices) == 1:
            only: Tensor = self._file(stored.slices[0].file).get_tensor(name)
            return only
        return self.read_shard(name, stored, (tuple(0 for _ in stored.shape), stored.shape))

    def read_shard(self, name: str, stored: TensorEntry, shard: tuple[Sizes, Sizes]) -> Tensor:
        """Read a shard, given as offset and shape, from the slices that it overlaps."""
        import torch

        offset, shape = shard
        found = torch.empty(shape, dtype=dtype_of(stored.dtype))
        for part in stored.slices:
            ends = zip(offset, shape, part.offset, part.shape, strict=True)
            common = [(max(a, b), min(a + n, b + m)) for a, n, b, m in ends]
            if any(begin >= end for begin, end in common):
                continue
            here, there = (
                tuple(
                    slice(begin - at, end - at) for (begin, end), at in zip(common, of, strict=True)
                )
                for of in (offset, part.offset)
            )
            file = self._file(part.file)
            found[here] = file.get_slice(name)[there] if there else file.get_tensor(name)
        return found

    def _file(self, name: str) -> Any:
        if name not in self.open:
            self.open[name] = self.stack.enter_context(safe_open(self.path / name, "pt"))
        return self.open[name]
