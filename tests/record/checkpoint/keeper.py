"""A strategy that owns weights and optimizer state, as DeepSpeed does."""

import weakref
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from surestep.engine.distributed.shards import TensorMeta, TensorShard
from surestep.engine.state.state import State


class Fake:
    """Takes the parameters from a model, and the state from its optimizer.

    Attributes:
        most_alive: peak number of gathered tensors in memory at once.
    """

    def __init__(self, state: State, rank: int, ranks: int) -> None:
        self.rank, self.ranks = rank, ranks
        named = dict(state.model.named_parameters())
        self.kept = {name: parameter.detach().clone() for name, parameter in named.items()}
        self.state = {
            name: {slot: t.clone() for slot, t in state.optimizer.state.get(parameter, {}).items()}
            for name, parameter in named.items()
        }
        self.names = list(named)
        for parameter in named.values():
            parameter.data = torch.empty(0)
        state.optimizer.state.clear()
        state.optimizer.param_groups[0]["params"] = [torch.zeros(1)]
        self.most_alive = 0
        self._alive: weakref.WeakSet[Tensor] = weakref.WeakSet()

    def described(self) -> Mapping[str, TensorMeta]:
        return {name: TensorMeta(tuple(e.shape), e.dtype) for name, e in self.kept.items()}

    def weights(self) -> Iterator[tuple[str, TensorShard]]:
        for place, (name, tensor) in enumerate(self.kept.items()):
            yield name, self._gathered(tensor, place)

    def put_weight(self, name: str, whole: Tensor) -> None:
        self.kept[name].copy_(whole)

    def groups(self, optimizer: str) -> Sequence[Sequence[str]]:
        return [self.names]

    def slots(self, optimizer: str) -> Iterator[tuple[str, str, TensorShard]]:
        for place, (name, slots) in enumerate(self.state.items()):
            for slot, tensor in slots.items():
                yield name, slot, self._gathered(tensor, place)

    def put_slots(self, optimizer: str, parameter: str, slots: Mapping[str, Tensor]) -> None:
        self.state[parameter] = {slot: tensor.clone() for slot, tensor in slots.items()}

    def whole(self) -> dict[str, Tensor]:
        weights = {f"model/{name}": tensor for name, tensor in self.kept.items()}
        of = {f"{n}/{slot}": e for n, slots in self.state.items() for slot, e in slots.items()}
        return {**weights, **of}

    def _gathered(self, tensor: Tensor, place: int) -> TensorShard:
        whole = tensor.clone()
        self._alive.add(whole)
        self.most_alive = max(self.most_alive, len(self._alive))
        shape = tuple(whole.shape)
        return TensorShard(shape, tuple(0 for _ in shape), whole, place % self.ranks == self.rank)
