"""Graphs on a CPU: the operations that a function launches are recorded, and called again.

As with CUDA, a recorded function is not executed: what its operations wrote is restored. A replay
calls them with the same tensors and writes the results where the first ones are, so what the host
computed in the function stays as it was. A function that reads the device cannot be recorded.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from surestep.laws.host_reads import KERNELS, host_reads

PERMITTED = "operation not permitted when stream is capturing"


def tensors_of(value: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]


def addresses(tensors: Iterable[Tensor]) -> set[int]:
    return {tensor.untyped_storage().data_ptr() for tensor in tensors}


class _Recording(TorchDispatchMode):
    """Records operations and their results, and what was in each storage before."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any, list[Tensor], list[bool]]] = []
        self._before: dict[int, tuple[Any, Any]] = {}
        self._created: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.overloadpacket.__name__ in KERNELS:
            raise RuntimeError(PERMITTED)
        inputs = tensors_of((args, kwargs))
        for tensor in inputs:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in self._created | self._before.keys():
                self._before[storage.data_ptr()] = storage, storage.clone()
        result = func(*args, **kwargs)
        outputs, known = tensors_of(result), addresses(inputs)
        is_new = [tensor.untyped_storage().data_ptr() not in known for tensor in outputs]
        self._created |= addresses(x for x, new in zip(outputs, is_new, strict=True) if new)
        self.calls.append((func, args, kwargs, outputs, is_new))
        return result

    def undo(self) -> None:
        for storage, before in self._before.values():
            storage.copy_(before)

    @torch.no_grad()
    def replay(self) -> None:
        for func, args, kwargs, outputs, is_new in self.calls:
            results = tensors_of(func(*args, **kwargs))
            for old, new, copied in zip(outputs, results, is_new, strict=True):
                if copied:
                    old.copy_(new)


class OperationGraphs:
    """Records and replays operations, as `CudaGraphs` does kernels.

    Attributes:
        replayed: how many graphs were replayed.
        is_replaying: one is being replayed.
    """

    def __init__(self) -> None:
        self.replayed, self.is_replaying = 0, False

    @contextmanager
    def warm_up(self) -> Iterator[None]:
        yield

    def record(self, function: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
        recording = _Recording()
        with host_reads() as reads, recording:
            result = function()
        recording.undo()
        if reads:
            raise RuntimeError(f"{PERMITTED} ({', '.join(reads)})")

        def replay() -> None:
            self.replayed, self.is_replaying = self.replayed + 1, True
            recording.replay()
            self.is_replaying = False

        return replay, result
