"""Where the tensors of a checkpoint lie: the same from one to the next, unless the State changes.

What depends on nothing else is made once: training waits for the time that a save takes of Python.
"""

import copy
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from surestep.base.errors import CheckpointError
from surestep.engine.buffers import changed_buffers
from surestep.engine.distributed.shards import (
    Sizes,
    TensorShard,
    is_sharded,
    local_shard,
)
from surestep.engine.model.frozen_weights import omitted_weights
from surestep.engine.optim.trial import try_step
from surestep.engine.state.state import State
from surestep.record.checkpoint.encoding import (
    KIND,
    as_json,
    collect_shards,
    encode_states,
    is_sparse,
    layout_of,
    take_apart,
)
from surestep.record.checkpoint.manifest import TensorEntry, TensorSlice, tensors_text
from surestep.record.checkpoint.optimizer_state import encode_optimizer, encode_state
from surestep.record.checkpoint.options import is_of_torch
from surestep.record.io import dumps
from surestep.record.safetensors_writer import (
    TensorFileLayout,
    allocate_buffer,
    safetensors_dtype,
)


class ShardExtent(NamedTuple):
    """Where a tensor of this rank's lies in the whole one."""

    full_shape: Sizes
    offset: Sizes


Found = Mapping[str, Tensor | TensorShard]


Extents = Mapping[str, Mapping[str, ShardExtent]]  # by kind, by name


def is_shared(state: State) -> bool:
    """Say whether no rank has all of the state, so that all of them write and read it."""
    return state.keeper is not None or any(map(is_sharded, state.model.parameters()))


def local_tensors(
    tensors: Mapping[str, Found], *, is_first: bool
) -> tuple[dict[str, dict[str, Tensor]], dict[str, dict[str, ShardExtent]]]:
    """Return what this rank writes, by kind and name, and where each of it lies in the whole.

    The first rank has every kind, so that one in which there is nothing is there all the same.
    """
    own: dict[str, dict[str, Tensor]] = {}
    boxes: dict[str, dict[str, ShardExtent]] = {}
    for kind, named in tensors.items():
        pieces = {
            name: each if isinstance(each, TensorShard) else local_shard(each, is_first=is_first)
            for name, each in named.items()
        }
        written = {name: each for name, each in pieces.items() if each.writes}
        if written or is_first:
            own[kind] = {name: each.local for name, each in written.items()}
            boxes[kind] = {
                name: ShardExtent(each.full_shape, each.offset) for name, each in written.items()
            }
    return own, boxes


Named = Mapping[str, Mapping[str, Tensor]]  # by kind ("model", "optimizer", ...) and name
_NO_FILES: Mapping[str, TensorFileLayout] = MappingProxyType({})
_NO_EXTENTS: Extents = MappingProxyType({})


class StagingBuffers:
    """Host buffers that a snapshot is copied into, and the layout of the files made of them.

    Args:
        tensors: what the buffers hold, by kind and name.
        extents: the position of each tensor in the full one; none if all are full.
        suffix: of the file names, such as ".rank-00001".
        old: files of the layout before, whose memory is reused if it fits.

    Attributes:
        buffers: by kind and name; contiguous.
        blocks: the content of each file, by file name.
        checked: the rest of the record, and the manifest's text about tensors, of the last save
            with this layout that was verified to be loadable.

    Raises:
        CheckpointError: safetensors has no name for a tensor's type.
    """

    def __init__(
        self,
        tensors: Named,
        extents: Extents = _NO_EXTENTS,
        suffix: str = "",
        old: Mapping[str, TensorFileLayout] = _NO_FILES,
    ) -> None:
        self.extents = extents
        self._files = {kind: f"{kind}{suffix}.safetensors" for kind in tensors}
        self.blocks: Mapping[str, TensorFileLayout] = {
            self._files[kind]: _allocate(named, old.get(self._files[kind]))
            for kind, named in tensors.items()
        }
        self.buffers: Named = {
            kind: self.blocks[file].tensors for kind, file in self._files.items()
        }
        self.checked: tuple[str, str] | None = None
        self._described = list(_describe(tensors))

    @cached_property
    def text(self) -> str:
        """The manifest's text about these tensors, as JSON."""
        return tensors_text(
            {
                kind: {name: self._entry(kind, name, each) for name, each in named.items()}
                for kind, named in self.buffers.items()
            }
        )

    def _entry(self, kind: str, name: str, tensor: Tensor) -> TensorEntry:
        shape = tuple(tensor.shape)
        full = ShardExtent(shape, tuple(0 for _ in shape))
        full_shape, offset = self.extents.get(kind, {}).get(name, full)
        dtype = safetensors_dtype(name, tensor.dtype)
        slices = (TensorSlice(self._files[kind], tuple(offset), shape),)
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
        for device in {each.device for each in sources}:  # not only the current one
            if device.type != "cpu":
                torch.accelerator.synchronize(device)


def _allocate(tensors: Mapping[str, Tensor], old: TensorFileLayout | None) -> TensorFileLayout:
    if old is not None and list(_describe({"": tensors})) == list(_describe({"": old.tensors})):
        return old
    return allocate_buffer(tensors)


def _describe(tensors: Named) -> Iterator[tuple[str, str, torch.Size, torch.dtype]]:
    for kind, named in tensors.items():
        for name, each in named.items():
            yield kind, name, each.shape, each.dtype


def _flatten(tensors: Named) -> list[Tensor]:
    return [each for named in tensors.values() for each in named.values()]


BUFFERS = "buffers"  # those that the model's state_dict leaves out, where training moved them


@dataclass(frozen=True)
class StateSnapshot:
    """A State on the host.

    Attributes:
        step: global batches consumed.
        layout: of its tensors, by kind ("model", "optimizer", "average", "callback_states",
        "buffers").
        numbers: of the rest, what the engine itself keeps: the place, the counts and the like.
        others: of the rest, what the parts of a training put into it, as JSON.
    """

    step: int
    layout: StagingBuffers
    numbers: Mapping[str, Any]
    others: str

    @property
    def record(self) -> bytes:
        """All that is no tensor, as JSON."""
        return f"{dumps(self.numbers)[:-1]}, {self.others[1:]}\n".encode()


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
            CheckpointError: a part has no plain form.
        """
        base = omitted_weights(state) if state.base else {}
        model, aliases, extra = _model_tensors(state, base)
        optimizers = {name: encode_optimizer(name, state) for name in state.optimizers}
        declared, said = encode_states(state.callback_states)
        others = {
            "metadata": state.metadata,
            "aliases": aliases,
            "extra": extra,
            "base": base,
            "optimizers": {name: each for name, (_, each) in optimizers.items()},
            KIND: said,
        }
        tensors: dict[str, Found] = {
            "model": model,
            "optimizer": {k: each for found, _ in optimizers.values() for k, each in found.items()},
        }
        if declared:
            tensors[KIND] = declared
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
        return StateSnapshot(state.progress.step, layout, _numbers(state, cycle), dumps(others))

    def _copy(self, tensors: Named, extents: Extents) -> StagingBuffers:
        """Copy tensors to the host, reusing the buffers of the last snapshot if they fit."""
        if not self._layout.matches(tensors, extents):
            old, self._layout = self._layout.blocks, StagingBuffers({})
            self._layout = StagingBuffers(tensors, extents, self._suffix, old)
        self._layout.fill(tensors)
        return self._layout


def check_can_be_saved(state: State, *, declared: bool = True) -> None:
    """Check that a checkpoint can hold the model, the optimizers as they are, and the average.

    Nothing is copied. What a way keeps apart of the model is of types that it saves itself.

    Args:
        state: what is to be saved.
        declared: check the states that callbacks declare too.

    Raises:
        CheckpointError: a tensor of a type or layout, or a value, that has no form there.
    """
    tensors: list[Mapping[str, Tensor | TensorShard]] = []
    if declared:
        tensors.append(encode_states(state.callback_states)[0])
    if state.keeper is None:
        model, _, extra = _model_tensors(state, {})
        dumps(extra)
        tensors += [model, *(encode_optimizer(name, state)[0] for name in state.optimizers)]
        tensors += [{} if state.average is None else state.average.tensors]
    _check_types(chain.from_iterable(named.items() for named in tensors))


def check_before_first_step(state: State) -> None:
    """Check what a checkpoint must hold after the first step, as far as that is known before it.

    A copy of each optimizer that is not of torch takes a step on small parameters. What cannot be
    tried is not checked.

    Raises:
        CheckpointError: as of `check_can_be_saved`.
    """
    check_can_be_saved(state, declared=False)
    for name, owner in state.callback_states.items():
        # A callback may make its state in on_start: then it is checked after the first step.
        try:
            saved = _Fixed(dict(owner.state_dict()))
        except Exception:
            continue
        _check_types(encode_states({name: saved})[0].items())
    names = {id(parameter): name for name, parameter in state.model.named_parameters()}
    for called, optimizer in state.optimizers.items():
        apart = state.keeper is not None or optimizer.state or is_of_torch(optimizer)
        trial = None if apart else try_step(optimizer)
        if trial is None:
            continue
        after = copy.copy(state)
        after.optimizers = {**state.optimizers, called: trial.optimizer}
        stand_ins = {stand_in: names[first] for stand_in, first in trial.originals.items()}
        _check_types(encode_state(called, trial.optimizer, after, stand_ins)[0].items())


@dataclass(frozen=True)
class _Fixed:
    """A state that was asked for once."""

    saved: dict[str, Any]

    def state_dict(self) -> dict[str, Any]:
        return self.saved

    def load_state_dict(self, state: Any, /) -> None:
        raise AssertionError("nothing is loaded into it")


def _check_types(tensors: Iterable[tuple[str, Tensor | TensorShard]]) -> None:
    for name, each in tensors:
        if isinstance(each, Tensor):
            safetensors_dtype(name, each.dtype)


def _numbers(state: State, cycle: int | None) -> dict[str, Any]:
    """Return copies of what the engine keeps besides tensors: training goes on with its own."""
    return {
        "progress": state.progress._asdict(),
        "counts": {**vars(state.counts)},
        "best": {**vars(state.best), "latest": {**state.best.latest}},
        "plateau": {**vars(state.plateau)},
        "spikes": {
            **vars(state.spikes),
            "losses": [*state.spikes.losses],
            "skipped_steps": [[*each] for each in state.spikes.skipped_steps],
        },
        "cycle": cycle,
        "scaler": state.scaler.state_dict(),
    }


def _model_tensors(
    state: State, base: Mapping[str, str]
) -> tuple[dict[str, Tensor | TensorShard], dict[str, str], dict[str, Any]]:
    """Return tensors by name, the names of tied ones, and extra state that is not a tensor."""
    tensors: dict[str, Tensor | TensorShard] = {}
    aliases: dict[str, str] = {}
    extra: dict[str, Any] = {}
    first: dict[Any, str] = {}
    kept_apart = {} if state.keeper is None else collect_shards(state.keeper.weights())
    # What is cut, or kept apart, may have no memory here to be known by.
    ids = {name: id(p) for name, p in state.model.named_parameters(remove_duplicate=False)}
    for name, value in state.model.state_dict().items():
        if name in base:
            continue
        if not isinstance(value, Tensor):
            extra[name] = as_json(name, value)
            continue
        if is_sparse(value):
            parts, extra[name] = take_apart(name, value)
            tensors |= parts
            continue
        if value.layout is not torch.strided:
            raise CheckpointError(
                f"{name} has the layout {layout_of(value)}, which a checkpoint cannot hold. Keep a "
                "dense or a sparse tensor, or set persistent=False."
            )
        key: Any = (value.data_ptr(), value.shape, value.stride())
        if state.keeper is not None or is_sharded(value):
            key = ids.get(name, name)
        elif not value.numel():
            key = name
        if key in first:
            aliases[name] = first[key]
            continue
        first[key] = name
        tensors[name] = kept_apart.get(name, value)
    return tensors, aliases, extra
