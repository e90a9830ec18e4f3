"""Weights and optimizer state of DeepSpeed: flat fp32 tensors, sharded over the ranks.

They are gathered, and set, one tensor at a time; the engine knows where the shard of a parameter
is. DeepSpeed's own checkpoints are pickles, and are not used.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from surestep.engine.distributed.communicator import Communicator
from surestep.engine.distributed.shards import TensorMeta, TensorShard


class ZeroSlice(NamedTuple):
    """The position of this rank's shard of a parameter; both may be empty.

    Attributes:
        flat: of the optimizer, in fp32, with the shards of other parameters beside it.
        at: in it.
        begin: in the parameter, as one row.
        length: of the shard.
    """

    flat: Tensor
    at: int
    begin: int
    length: int


class ZeroState:
    """What ZeRO 1, 2 and 3 keep: the checkpoint access to the shards."""

    def __init__(
        self, engine: Any, model: nn.Module, groups: Sequence[Sequence[str]], world: Communicator
    ) -> None:
        self.engine, self.world = engine, world
        self.named = dict(model.named_parameters())
        self.in_groups = groups
        self.is_cut = engine.zero_optimization_stage() == 3
        self.group_of = {name: i for i, names in enumerate(groups) for name in names}

    def described(self) -> Mapping[str, TensorMeta]:
        """Describe the parameters that are trained; under stage 3 all of them."""
        return {
            name: TensorMeta(
                self._shape(parameter),
                torch.float32 if parameter.requires_grad else parameter.dtype,
            )
            for name, parameter in self.named.items()
            if self.is_cut or parameter.requires_grad
        }

    def weights(self) -> Iterator[tuple[str, TensorShard]]:
        """Yield the fp32 weights; of what is not trained, the only ones."""
        for index, name in enumerate(self.described()):
            parameter = self.named[name]
            if parameter.requires_grad:
                cut = self._cut(name)
                yield name, self._gathered(parameter, cut, cut.flat, index)
            else:
                with self._whole(parameter):
                    yield name, self._shard(parameter.detach(), index)

    def put_weight(self, name: str, whole: Tensor) -> None:
        """Give a parameter its value: the fp32 weights, and those that the model computes with."""
        parameter = self.named[name]
        if parameter.requires_grad:
            self._put(self._cut(name), self._cut(name).flat, whole)
        if not self.is_cut:
            parameter.data.copy_(whole)
            return
        with self._whole(parameter, modified=True):
            parameter.data.copy_(whole)

    def groups(self, optimizer: str) -> Sequence[Sequence[str]]:
        """Return the names of the parameters in each group."""
        return self.in_groups

    def slots(self, optimizer: str) -> Iterator[tuple[str, str, TensorShard]]:
        """Yield the optimizer's state: gathered, or one number for all shards."""
        index, state = 0, self.engine.optimizer.optimizer.state
        for name in self.group_of:
            cut = self._cut(name)
            for slot, value in sorted(state.get(cut.flat, {}).items()):
                if isinstance(value, Tensor) and value.shape == cut.flat.shape:
                    yield name, slot, self._gathered(self.named[name], cut, value, index)
                elif isinstance(value, Tensor):
                    yield name, slot, self._shard(value, index)
                index += 1

    def put_slots(self, optimizer: str, parameter: str, slots: Mapping[str, Tensor]) -> None:
        """Give a parameter's optimizer state its values, in state that may not be there yet."""
        cut = self._cut(parameter)
        state = self.engine.optimizer.optimizer.state[cut.flat]
        shape = self._shape(self.named[parameter])
        for slot, value in slots.items():
            if tuple(value.shape) != shape:
                state[slot] = value.to(cut.flat.device, copy=True)
                continue
            if slot not in state:
                state[slot] = torch.zeros_like(cut.flat)
            self._put(cut, state[slot], value)

    def _shape(self, parameter: Any) -> tuple[int, ...]:
        return tuple(parameter.ds_shape if self.is_cut else parameter.shape)

    def _cut(self, name: str) -> ZeroSlice:
        """Return the position of this rank's shard of a trained parameter."""
        parameter: Any = self.named[name]
        zero = self.engine.optimizer
        if self.is_cut:
            group, at, length = zero.grad_position[zero.get_param_id(parameter)]
            flat = zero.fp32_partitioned_groups_flat[group]
            return ZeroSlice(flat, at, length * self.world.rank, length)
        flats: Any = getattr(zero, "fp32_groups_flat_partition", None)  # of bf16 with stage 1
        if flats is None:
            flats = zero.single_partition_of_fp32_groups
        flat = flats[self.group_of[name]]
        mapping = parameter._hp_mapping
        if mapping is None:
            return ZeroSlice(flat, 0, 0, 0)
        here, there = mapping.hp_fragment_address, mapping.lp_fragment_address
        return ZeroSlice(flat, here.start, there.start, there.numel)

    def _gathered(
        self, parameter: Tensor, cut: ZeroSlice, values: Tensor, index: int
    ) -> TensorShard:
        """Return the full tensor of the shards of all ranks: each adds its own to zeros."""
        shape = self._shape(parameter)
        row = torch.zeros(torch.Size(shape).numel(), device=self.engine.device)
        length = max(0, min(cut.length, row.numel() - cut.begin))  # stage 3 fills up with zeros
        row[cut.begin : cut.begin + length] = values[cut.at : cut.at + length].to(row.device)
        dist.all_reduce(row)
        return self._shard(row.view(shape), index)

    def _shard(self, whole: Tensor, index: int) -> TensorShard:
        """Return a whole tensor, which the ranks take turns to write."""
        shape = tuple(whole.shape)
        return TensorShard(
            shape, tuple(0 for _ in shape), whole, index % self.world.size == self.world.rank
        )

    @staticmethod
    def _put(cut: ZeroSlice, values: Tensor, whole: Tensor) -> None:
        row = whole.reshape(-1)
        part = row[cut.begin : cut.begin + cut.length]
        values.data[cut.at : cut.at + part.numel()] = part.to(values)

    def _whole(self, parameter: Tensor, *, modified: bool = False) -> Any:
        from deepspeed import zero

        cut: list[Any] = list(self.named.values()) if self.is_cut else []
        if any(parameter.ds_status.name == "INFLIGHT" for parameter in cut):
            # An evaluation ends with the fetches for a backward under way.
            self.engine.empty_partition_cache()
        return zero.GatheredParameters([parameter], modifier_rank=0 if modified else None)
