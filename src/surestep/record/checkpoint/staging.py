"""Copy a State to host buffers, from which a thread writes it while training continues.

Training waits for the copy, so the layout of the files is made once and reused until it changes.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from surestep.engine.buffers import changed_buffers
from surestep.engine.distributed.shards import Sizes, TensorShard, is_sharded, local_shard
from surestep.engine.model.frozen_weights import omitted_weights
from surestep.engine.state.state import State
from surestep.record.checkpoint.encoding import (
    CALLBACK_STATES,
    collect_shards,
    encode,
    encode_states,
)
from surestep.record.checkpoint.manifest import TensorEntry, TensorSlice, tensors_text
from surestep.record.checkpoint.optimizer_state import encode_optimizer
from surestep.record.io import dumps
from surestep.record.safetensors_writer import TensorFile, allocate_file, safetensors_dtype

BUFFERS = "buffers"  # those that the model's state_dict leaves out, if training changed them


class ShardExtent(NamedTuple):
    """The position of this rank's shard in the full tensor."""

    full_shape: Sizes
    offset: Sizes


Named = Mapping[str, Mapping[str, Tensor]]  # by kind ("model", "optimizer", ...) and name
Extents = Mapping[str, Mapping[str, ShardExtent]]
_NO_FILES: Mapping[str, TensorFile] = MappingProxyType({})
_NO_EXTENTS: Extents = MappingProxyType({})


def is_shared(state: State) -> bool:
    """Return whether no rank has all of the state, so that all ranks write and read it."""
    return state.keeper is not None or any(map(is_sharded, state.model.parameters()))


def local_tensors(
    tensors: Mapping[str, Mapping[str, Tensor | TensorShard]], *, is_first: bool
) -> tuple[dict[str, dict[str, Tensor]], dict[str, dict[str, ShardExtent]]]:
    """Return the tensors that this rank writes, and their extents, by kind and name.

    The first rank has every kind, also an empty one.
    """
    own: dict[str, dict[str, Tensor]] = {}
    extents: dict[str, dict[str, ShardExtent]] = {}
    for kind, named in tensors.items():
        shards = {
            name: tensor
            if isinstance(tensor, TensorShard)
            else local_shard(tensor, is_first=is_first)
            for name, tensor in named.items()
        }
        written = {name: tensor for name, tensor in shards.items() if tensor.writes}
        if written or is_first:
            own[kind] = {name: tensor.local for name, tensor in written.items()}
            extents[kind] = {
                name: ShardExtent(tensor.full_shape, tensor.offset)
                for name, tensor in written.items()
            }
    return own, extents


class StagingBuffers:
    """Host buffers that a snapshot is copied into, and the layout of the files made of them.

    Args:
        tensors: what the buffers hold, by kind and name.
        extents: the position of each tensor in the full one; none if all are full.
        suffix: of the file names, such as ".rank-00001".
        old: files of the layout before, whose memory is reused if it fits.

    Attributes:
        buffers: by kind and name; contiguous.
        files: the content of each file, by file name.
        readable: the manifest's text about tensors of the last save that was opened successfully.

    Raises:
        CheckpointError: safetensors has no name for a dtype.
    """

    def __init__(
        self,
        tensors: Named,
        extents: Extents = _NO_EXTENTS,
        suffix: str = "",
        old: Mapping[str, TensorFile] = _NO_FILES,
    ) -> None:
        self.extents = extents
        self._names = {kind: f"{kind}{suffix}.safetensors" for kind in tensors}
        self.files: Mapping[str, TensorFile] = {
            self._names[kind]: _allocate(named, old.get(self._names[kind]))
            for kind, named in tensors.items()
        }
        self.buffers: Named = {kind: self.files[name].tensors for kind, name in self._names.items()}
        self.readable: str | None = None
        self._described = list(_describe(tensors))

    @cached_property
    def text(self) -> str:
        """The manifest's text about these tensors, as JSON."""
        return tensors_text(
            {
                kind: {name: self._entry(kind, name, tensor) for name, tensor in named.items()}
                for kind, named in self.buffers.items()
            }
        )

    def _entry(self, kind: str, name: str, tensor: Tensor) -> TensorEntry:
        shape = tuple(tensor.shape)
        full = ShardExtent(shape, tuple(0 for _ in shape))
        full_shape, offset = self.extents.get(kind, {}).get(name, full)
        dtype = safetensors_dtype(name, tensor.dtype)
        slices = (TensorSlice(self._names[kind], tuple(offset), shape),)
        return TensorEntry(dtype, tuple(full_shape), slices)

    def matches(self, tensors: Named, extents: Extents = _NO_EXTENTS) -> bool:
        """Return whether tensors have the names, shapes, dtypes and extents of the buffers."""
        return self.extents == extents and self._described == list(_describe(tensors))

    def fill(self, tensors: Named) -> None:
        """Copy tensors that match into the buffers; waits for their devices."""
        sources, buffers = _flatten(tensors), _flatten(self.buffers)
        with torch.no_grad():
            if sources:
                torch._foreach_copy_(buffers, sources, non_blocking=True)
        for device in {tensor.device for tensor in sources}:  # not only the current one
            if device.type != "cpu":
                torch.accelerator.synchronize(device)


def _allocate(tensors: Mapping[str, Tensor], old: TensorFile | None) -> TensorFile:
    if old is not None and list(_describe({"": tensors})) == list(_describe({"": old.tensors})):
        return old
    return allocate_file(tensors)


def _describe(tensors: Named) -> Iterator[tuple[str, str, torch.Size, torch.dtype]]:
    for kind, named in tensors.items():
        for name, tensor in named.items():
            yield kind, name, tensor.shape, tensor.dtype


def _flatten(tensors: Named) -> list[Tensor]:
    return [tensor for named in tensors.values() for tensor in named.values()]


@dataclass(frozen=True)
class StateSnapshot:
    """A State on the host.

    Attributes:
        step: global batches consumed.
        layout: its tensors.
        record: everything that is not a tensor, as JSON.
    """

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
        """Copy the state to the host.

        Args:
            state: what is saved; waits for its device.
            cycle: the cycle of the schedule that ended here, from 1.

        Raises:
            CheckpointError: part of the state cannot be encoded.
        """
        base = omitted_weights(state) if state.base else {}
        model, aliases, extra = _model_tensors(state, base)
        optimizers = {name: encode_optimizer(name, state) for name in state.optimizers}
        callback_tensors, callback_states = encode_states(state.callback_states)
        record = {
            **_numbers(state, cycle),
            "metadata": state.metadata,
            "aliases": aliases,
            "extra": extra,
            "base": base,
            "optimizers": {name: encoded for name, (_, encoded) in optimizers.items()},
            CALLBACK_STATES: callback_states,
        }
        tensors: dict[str, Mapping[str, Tensor | TensorShard]] = {
            "model": model,
            "optimizer": {
                key: tensor for found, _ in optimizers.values() for key, tensor in found.items()
            },
        }
        if callback_tensors:
            tensors[CALLBACK_STATES] = callback_tensors
        if buffers := changed_buffers(state.model, state.built):
            tensors[BUFFERS] = buffers
        average = state.average
        if average is not None and average.n_updates(state.progress.steps_taken):
            tensors["average"] = average.tensors
        extents: Extents = _NO_EXTENTS
        local: Any = tensors
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
        tensors |= {} if state.average is None else state.average.tensors
    for name, tensor in tensors.items():
        safetensors_dtype(name, tensor.dtype)


def _numbers(state: State, cycle: int | None) -> dict[str, Any]:
    return {
        "progress": state.progress._asdict(),
        "counts": vars(state.counts),
        "best": vars(state.best),
        "plateau": vars(state.plateau),
        "spikes": {**vars(state.spikes), "losses": [*state.spikes.losses]},
        "cycle": cycle,
        "scaler": state.scaler.state_dict(),
    }


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
