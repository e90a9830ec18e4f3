"""Where the tensors of a checkpoint lie: the same from one to the next, unless the State changes.

What depends on nothing else is made once: training waits for the time that a save takes of Python.
"""

import copy
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
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


Boxes = Mapping[str, Mapping[str, ShardExtent]]  # by kind, by name


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
_NOTHING: Mapping[str, TensorFileLayout] = MappingProxyType({})


class StagingBuffers:
    """Buffers on the host that tensors are copied into, and the files that are made of them.

    Args:
        tensors: what they are for, by kind and name.
        old: files of the layout before, whose memory is taken where it fits.

    Attributes:
        buffers: by kind and name; contiguous.
        blocks: what each file holds, by its name.
        known: what lay beside the tensors of one that was laid out like this, and could be opened.

    Raises:
        CheckpointError: safetensors has no name for a tensor's type.
    """

    def __init__(self, tensors: Named, old: Mapping[str, TensorFileLayout] = _NOTHING) -> None:
        self.blocks: Mapping[str, TensorFileLayout] = {
            _file(kind): _block(named, old.get(_file(kind))) for kind, named in tensors.items()
        }
        self.buffers: Named = {kind: self.file_of(kind).tensors for kind in tensors}
        self.known: str | None = None
        self._like = list(_like(tensors))

    @cached_property
    def text(self) -> str:
        """What a manifest says of the tensors, as JSON."""
        return tensors_text(
            {
                kind: {name: _whole(name, each, _file(kind)) for name, each in named.items()}
                for kind, named in self.buffers.items()
            }
        )

    def file_of(self, kind: str) -> TensorFileLayout:
        """Return what the file of a kind holds."""
        return self.blocks[_file(kind)]

    def matches(self, tensors: Named) -> bool:
        """Say whether these tensors have the names, shapes and types of the buffers."""
        return self._like == list(_like(tensors))

    def fill(self, tensors: Named) -> None:
        """Copy tensors that fit into the buffers; waits for their devices."""
        taken, buffers = _all(tensors), _all(self.buffers)
        with torch.no_grad():
            if taken:
                torch._foreach_copy_(buffers, taken, non_blocking=True)
        for device in {each.device for each in taken}:  # not the current one alone
            if device.type != "cpu":
                torch.accelerator.synchronize(device)


def _block(tensors: Mapping[str, Tensor], old: TensorFileLayout | None) -> TensorFileLayout:
    if old is not None and list(_like({"": tensors})) == list(_like({"": old.tensors})):
        return old
    return allocate_buffer(tensors)


def _like(tensors: Named) -> Iterator[tuple[str, str, torch.Size, torch.dtype]]:
    for kind, named in tensors.items():
        for name, each in named.items():
            yield kind, name, each.shape, each.dtype


def _all(tensors: Named) -> list[Tensor]:
    return [each for named in tensors.values() for each in named.values()]


def _file(kind: str) -> str:
    return f"{kind}.safetensors"


def _whole(name: str, tensor: Tensor, file: str) -> TensorEntry:
    """Return a tensor that lies in one piece."""
    shape = tuple(tensor.shape)
    piece = TensorSlice(file, tuple(0 for _ in shape), shape)
    return TensorEntry(safetensors_dtype(name, tensor.dtype), shape, (piece,))


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
        boxes: where each tensor lies in the whole one; nothing where each is whole.
    """

    step: int
    layout: StagingBuffers
    numbers: Mapping[str, Any]
    others: str
    boxes: Boxes = field(default_factory=dict)

    @property
    def record(self) -> bytes:
        """All that is no tensor, as JSON."""
        return f"{dumps(self.numbers)[:-1]}, {self.others[1:]}\n".encode()


class SnapshotStager:
    """Takes snapshots into buffers that it keeps; the snapshot before is overwritten.

    Args:
        is_first: of the ranks that share a state, this is the one that writes what all have.
    """

    def __init__(self, *, is_first: bool = True) -> None:
        self._is_first = is_first
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
        boxes: Boxes = {}
        whole: Any = tensors
        if is_shared(state):
            whole, boxes = local_tensors(tensors, is_first=self._is_first)
        numbers = _numbers(state, cycle)
        return StateSnapshot(
            state.progress.step, self._copied(whole), numbers, dumps(others), boxes
        )

    def _copied(self, tensors: Named) -> StagingBuffers:
        """Copy tensors to the host, into the buffers of the last time where they fit."""
        if not self._layout.matches(tensors):
            old, self._layout = self._layout.blocks, StagingBuffers({})
            self._layout = StagingBuffers(tensors, old)
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
