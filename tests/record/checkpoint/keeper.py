"""A way that keeps weights and optimizer state apart, as DeepSpeed does: whole ones on demand."""

import weakref
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from surestep.engine.distributed.shards import TensorMeta, TensorShard
from surestep.engine.state.state import State


class Fake:
    """Takes the parameters out of a model, and the state out of its optimizer.

    Attributes:
        most_alive: how many of the tensors that it gave away were there at once.
    """

    def __init__(self, state: State, rank: int, ranks: int) -> None:
        self.rank, self.ranks = rank, ranks
        named = dict(state.model.named_parameters())
        self.kept = {name: each.detach().clone() for name, each in named.items()}
        self.state = {
            name: {slot: t.clone() for slot, t in state.optimizer.state.get(each, {}).items()}
            for name, each in named.items()
        }
        self.names = list(named)
        for each in named.values():
            each.data = torch.empty(0)
        state.optimizer.state.clear()
        state.optimizer.param_groups[0]["params"] = [torch.zeros(1)]
        self.most_alive = 0
        self._alive: weakref.WeakSet[Tensor] = weakref.WeakSet()

    def described(self) -> Mapping[str, TensorMeta]:
        return {name: TensorMeta(tuple(e.shape), e.dtype) for name, e in self.kept.items()}

    def weights(self) -> Iterator[tuple[str, TensorShard]]:
        for place, (name, each) in enumerate(self.kept.items()):
            yield name, self._gathered(each, place)

    def put_weight(self, name: str, whole: Tensor) -> None:
        self.kept[name].copy_(whole)

    def groups(self, optimizer: str) -> Sequence[Sequence[str]]:
        return [self.names]

    def slots(self, optimizer: str) -> Iterator[tuple[str, str, TensorShard]]:
        for place, (name, slots) in enumerate(self.state.items()):
            for slot, each in slots.items():
                yield name, slot, self._gathered(each, place)

    def put_slots(self, optimizer: str, parameter: str, slots: Mapping[str, Tensor]) -> None:
        self.state[parameter] = {slot: each.clone() for slot, each in slots.items()}

    def whole(self) -> dict[str, Tensor]:
        weights = {f"model/{name}": each for name, each in self.kept.items()}
        of = {f"{n}/{slot}": e for n, slots in self.state.items() for slot, e in slots.items()}
        return {**weights, **of}

    def _gathered(self, tensor: Tensor, place: int) -> TensorShard:
        whole = tensor.clone()
        self._alive.add(whole)
        self.most_alive = max(self.most_alive, len(self._alive))
        shape = tuple(whole.shape)
        return TensorShard(shape, tuple(0 for _ in shape), whole, place % self.ranks == self.rank)
