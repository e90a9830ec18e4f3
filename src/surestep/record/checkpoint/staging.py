"""Copy a State to host buffers, from which a thread writes it while training continues.

Training waits for the copy, so the layout of the files is made once and reused until it changes.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from surestep.engine import private
from surestep.engine.buffers import changed_buffers, none_buffers
from surestep.engine.distributed.shards import Sizes, TensorShard, is_sharded, local_shard
from surestep.engine.model.frozen_weights import omitted_weights
from surestep.engine.state.state import State
from surestep.record.checkpoint.encoding import (
    CALLBACK_STATES,
    collect_shards,
    encode,
)
from surestep.record.checkpoint.manifest import BUFFERS
from surestep.record.checkpoint.optimizer_state import encode_optimizer
from surestep.record.io import dumps
from surestep.record.safetensors_writer import TensorFile, allocate_file, safetensors_dtype

Named = Mapping[str, Mapping[str, Tensor]]  # by kind ("model", "optimizer", ...) and name
# Where the shards of this rank begin: the shape of the full tensor, and the offset in it.
Extents = Mapping[tuple[str, str], tuple[Sizes, Sizes]]
_NO_FILES: Mapping[str, TensorFile] = MappingProxyType({})
_ALL_FULL: Extents = MappingProxyType({})


def is_shared(state: State) -> bool:
    """Return whether no rank has all of the state, so that all ranks write and read it."""
    return state.keeper is not None or any(map(is_sharded, state.model.parameters()))


def local_tensors(
    tensors: Mapping[str, Mapping[str, Tensor | TensorShard]], *, is_first: bool
) -> tuple[Named, Extents]:
    """Return the tensors that this rank writes, and their extents.

    The first rank has every kind, also an empty one.
    """
    own: dict[str, dict[str, Tensor]] = {kind: {} for kind in tensors if is_first}
    extents: dict[tuple[str, str], tuple[Sizes, Sizes]] = {}
    for kind, named in tensors.items():
        for name, tensor in named.items():
            shard = tensor
            if not isinstance(shard, TensorShard):
                shard = local_shard(shard, is_first=is_first)
            if shard.writes:
                own.setdefault(kind, {})[name] = shard.local
                extents[kind, name] = shard.full_shape, shard.offset
    return own, extents


class StagingBuffers:
    """Host buffers that a snapshot is copied into, and the layout of the files made of them.

    Args:
        tensors: what the buffers hold, by kind and name.
        extents: of the tensors that are not full.
        suffix: of the file names, such as ".rank-00001".
        old: files of the layout before, whose memory is reused if it fits.

    Attributes:
        buffers: by kind and name; contiguous.
        files: the content of each file, by file name.
        readable: the manifest's text about tensors of the last save that was opened successfully.
    """

    def __init__(
        self,
        tensors: Named,
        extents: Extents = _ALL_FULL,
        suffix: str = "",
        old: Mapping[str, TensorFile] = _NO_FILES,
    ) -> None:
        self.files: dict[str, TensorFile] = {}
        self.buffers: dict[str, Mapping[str, Tensor]] = {}
        self.readable: str | None = None
        self._extents = extents
        self._suffix = suffix
        self._described = list(_describe(tensors))
        for kind, named in tensors.items():
            file, wanted = self._file_of(kind), list(_describe({"": named}))
            reused = old.get(file)
            if reused is None or list(_describe({"": reused.tensors})) != wanted:
                reused = allocate_file(named)
            self.files[file], self.buffers[kind] = reused, reused.tensors

    def _file_of(self, kind: str) -> str:
        return f"{kind}{self._suffix}.safetensors"

    @cached_property
    def text(self) -> str:
        """The manifest's text about these tensors, as JSON."""
        entries: dict[str, dict[str, Any]] = {kind: {} for kind in self.buffers}
        for kind, named in self.buffers.items():
            for name, tensor in named.items():
                shape = tuple(tensor.shape)
                full_shape, offset = self._extents.get((kind, name), (shape, (0,) * len(shape)))
                entries[kind][name] = {
                    "dtype": safetensors_dtype(name, tensor.dtype),
                    "shape": full_shape,
                    "slices": [{"file": self._file_of(kind), "offset": offset, "shape": shape}],
                }
        return dumps(entries)

    def matches(self, tensors: Named, extents: Extents = _ALL_FULL) -> bool:
        """Return whether tensors have the names, shapes, dtypes and extents of the buffers."""
        return self._extents == extents and self._described == list(_describe(tensors))

    def fill(self, tensors: Named) -> None:
        """Copy tensors that match into the buffers; waits for their devices."""
        sources, buffers = (
            [tensor for named in by_kind.values() for tensor in named.values()]
            for by_kind in (tensors, self.buffers)
        )
        with torch.no_grad():
            if sources:
                private.foreach_copy_(buffers, sources, non_blocking=True)
        for device in {tensor.device for tensor in sources}:  # not only the current one
            if device.type != "cpu":
                torch.accelerator.synchronize(device)


def _describe(tensors: Named) -> Iterator[tuple[str, str, torch.Size, torch.dtype]]:
    for kind, named in tensors.items():
        for name, tensor in named.items():
            yield kind, name, tensor.shape, tensor.dtype


@dataclass(frozen=True)
class StateSnapshot:
    """A State on the host: its tensors are the layout's, and the record is the rest, as JSON."""

    step: int
    layout: StagingBuffers
    record: bytes


class SnapshotStager:
    """Copies a State into host buffers; each snapshot overwrites the one before.

    Args:
        rank: of this process, among those that write the checkpoint together.
        size: how many processes write it. Rank 0 writes what all of them have.
    """

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        self._is_first = rank == 0
        self._suffix = f".rank-{rank:05d}" if size > 1 else ""
        self._layout = StagingBuffers({})

    def take(self, state: State, *, cycle: int | None = None) -> StateSnapshot:
        """Copy the state to the host, waiting for its device; `cycle` is one that ended here.

        Raises:
            CheckpointError: part of the state cannot be encoded.
        """
        base = omitted_weights(state) if state.base else {}
        model, aliases, extra = _model_tensors(state, base)
        tensors: dict[str, Mapping[str, Tensor | TensorShard]] = {"model": model}
        optimizers, slots = {}, dict[str, Tensor | TensorShard]()
        for name in state.optimizers:
            found, optimizers[name] = encode_optimizer(name, state)
            slots |= found
        tensors["optimizer"] = slots
        callbacks: dict[str, Tensor] = {}
        record = {
            "progress": state.progress._asdict(),
            "counts": vars(state.counts),
            "best": vars(state.best),
            "plateau": vars(state.plateau),
            "spikes": vars(state.spikes),
            "cycle": cycle,
            "scaler": state.scaler.state_dict(),
            "metadata": state.metadata,
            "aliases": aliases,
            "extra": extra,
            "base": base,
            "empty": sorted(none_buffers(state.model)),
            "optimizers": optimizers,
            CALLBACK_STATES: {
                name: encode(name, owner.state_dict(), callbacks)
                for name, owner in state.callback_states.items()
            },
        }
        if frozen := state.read_frozen():
            record["requires_grad"] = frozen
        if callbacks:
            tensors[CALLBACK_STATES] = callbacks
        if buffers := changed_buffers(state.model, state.built):
            tensors[BUFFERS] = buffers
        average = state.average
        if average is not None and average.n_updates(state.progress.step):
            tensors["average"] = average.tensors
        local: Any = tensors
        extents = _ALL_FULL
        if is_shared(state):
            local, extents = local_tensors(tensors, is_first=self._is_first)
        layout = self._copy(local, extents)
        return StateSnapshot(state.progress.step, layout, f"{dumps(record)}\n".encode())

    def _copy(self, tensors: Named, extents: Extents) -> StagingBuffers:
        """Copy tensors to the host, reusing the buffers of the last snapshot if they fit."""
        if not self._layout.matches(tensors, extents):
            old, self._layout = self._layout.files, StagingBuffers({})
            self._layout = StagingBuffers(tensors, extents, self._suffix, old)
        self._layout.fill(tensors)
        return self._layout


def check_can_be_saved(state: State, *, is_started: bool = True) -> None:
    """Check that a checkpoint can hold the state as it is; nothing is copied.

    A strategy that keeps parameters outside of the model knows how to save them.

    Args:
        state: of the run.
        is_started: False before `on_start`, in which a callback may create its state.

    Raises:
        CheckpointError: a tensor has a dtype or layout, or a value a type, that cannot be saved.
    """
    tensors: dict[str, Any] = {}
    for name, owner in state.callback_states.items():
        try:
            saved = owner.state_dict()
        except Exception:
            if is_started:
                raise
            continue
        encode(name, saved, tensors)
    if state.keeper is None:
        tensors |= _model_tensors(state, {})[0]
        for name in state.optimizers:
            tensors |= encode_optimizer(name, state)[0]
        tensors |= {} if state.average is None else state.average.stored
    for name, tensor in tensors.items():
        safetensors_dtype(name, tensor.dtype)


def _model_tensors(
    state: State, base: Mapping[str, str]
) -> tuple[dict[str, Tensor | TensorShard], dict[str, str], dict[str, Any]]:
    """Return tensors by name, the first name of each tied one, and extra state as JSON."""
    tensors: dict[str, Tensor | TensorShard] = {}
    aliases: dict[str, str] = {}
    extra: dict[str, Any] = {}
    parts: dict[str, Tensor] = {}
    first: dict[Any, str] = {}
    kept = {} if state.keeper is None else collect_shards(state.keeper.weights())
    # A sharded parameter, or a keeper's, may have no memory here that identifies it.
    ids = {name: id(p) for name, p in state.model.named_parameters(remove_duplicate=False)}
    for name, value in state.model.state_dict().items():
        if name in base:
            continue
        if not isinstance(value, Tensor) or value.layout is not torch.strided:
            extra[name] = encode(name, value, parts)
            continue
        key: Any = (value.data_ptr(), value.shape, value.stride())
        if state.keeper is not None or is_sharded(value):
            key = ids.get(name, name)
        elif not value.numel():
            key = name
        if key in first:
            aliases[name] = first[key]
            continue
        first[key] = name
        tensors[name] = kept.get(name, value)
    return {**tensors, **parts}, aliases, extra
