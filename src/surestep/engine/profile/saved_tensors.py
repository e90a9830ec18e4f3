"""What autograd stores for the backward, found in the graph of tensors that are alive.

Only the nodes of the graph hold it: it is not a Python object. Nothing is recorded while a
model runs.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from surestep.engine import private
from surestep.engine.distributed.shards import to_local
from surestep.engine.model.compile import DispatchMode

_NODES = 200_000  # at most: a second
_MODEL = "(itself)"  # the module that has no name


class StoredInHooksError(RuntimeError):
    """What a graph stores is not known: hooks compute it, and the release of torch hides them."""


class StorageCounter:
    """Adds up the memory of tensors on one type of device, each storage once.

    Args:
        device: other devices are left out.
    """

    def __init__(self, device: torch.device) -> None:
        self._type = device.type
        self._counted: set[int] = set()

    def add(self, arrays: Iterable[Tensor | np.ndarray]) -> int:
        """Return the bytes of the storages of tensors and arrays that were not counted before."""
        total = 0
        for address, size in filter(None, map(self._locate, arrays)):
            if address and address not in self._counted:
                self._counted.add(address)
                total += size
        return total

    def _locate(self, array: Tensor | np.ndarray) -> tuple[int, int] | None:
        """Return the address and the bytes of a storage; None if it is not in this memory."""
        if isinstance(array, Tensor):
            tensor = to_local(array)
            if tensor.device.type != self._type or tensor.layout is not torch.strided:
                return None
            storage = tensor.untyped_storage()
            return storage.data_ptr(), storage.nbytes()
        while isinstance(array.base, np.ndarray):
            array = array.base
        if self._type != "cpu" or isinstance(array, np.memmap):
            return None
        return array.__array_interface__["data"][0], array.nbytes


class GraphCounter:
    """Visits the graphs of tensors, each node once, and counts what their nodes store.

    An operation belongs to the module whose parameters are the nearest before it: an activation
    function to the layer before it.

    Args:
        counter: of what is in memory; it may have counted weights before.
        names: the names of the parameters.
    """

    def __init__(self, counter: StorageCounter, names: Iterable[tuple[str, nn.Parameter]]) -> None:
        self._counter = counter
        self._names: dict[Any, str] = {
            parameter: name.rpartition(".")[0] or _MODEL for name, parameter in names
        }
        self._places: dict[Any, tuple[float, str]] = {}  # distance to the parameters, and module

    def add(self, tensors: Iterable[Tensor]) -> Counter[str]:
        """Return the bytes that the graphs of tensors store, by module."""
        found: Counter[str] = Counter()
        todo = [(tensor.grad_fn, False) for tensor in tensors if tensor.grad_fn is not None]
        while todo and len(self._places) < _NODES:
            node, is_after_inputs = todo.pop()
            before: list[Any] = [other for other, _ in node.next_functions if other is not None]
            if is_after_inputs:
                place = self._places[node] = self._locate(node, before)
                if size := self._counter.add(_list_saved(node)):
                    found[place[1]] += size
            elif node not in self._places:
                self._places[node] = (float("inf"), _MODEL)
                todo.append((node, True))
                todo += [(other, False) for other in before]
        return found

    def _locate(self, node: Any, before: list[Any]) -> tuple[float, str]:
        if (name := self._names.get(getattr(node, "variable", None))) is not None:
            return 0.0, name
        places = [self._places[other] for other in before]
        distance, name = min(places, key=lambda place: place[0], default=(float("inf"), _MODEL))
        return distance + 1, name


def _list_saved(node: Any) -> Iterator[Tensor]:
    """Yield what a node stores, as it is stored: reading it computes nothing.

    A node of activation checkpointing has nothing until its block is recomputed. The inputs of the
    block are in its hook.
    """
    packed = [*getattr(node, "__dict__", {}).values()]  # of a torch.autograd.Function
    if private.saved_tensor_data is None:
        packed += _read_saved(node)
    else:
        packed += [getattr(node, name) for name in dir(node) if name.startswith("_raw_saved_")]
    while packed:
        value = packed.pop()
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            packed += value
        elif hasattr(value, "unpack_hook"):
            for cell in getattr(value.unpack_hook, "__closure__", None) or ():
                packed += getattr(cell.cell_contents, "saved_args", ())
            packed.append(value.data)  # None if it was freed


def _read_saved(node: Any) -> Iterator[Any]:
    """Yield what a node stores, in a release of torch that shows it only as the backward reads it.

    Raises:
        StoredInHooksError: a hook would compute it, as in activation checkpointing.
    """
    for name in dir(node):
        if name.startswith("_saved_") or name == "saved_tensors":
            try:
                with _NoOperations():
                    yield getattr(node, name)
            except StoredInHooksError:
                raise
            except RuntimeError:  # it was freed
                continue


class _NoOperations(DispatchMode):
    """Rejects every operation, except that by which autograd returns what it stores."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not torch.ops.aten.detach.default:
            raise StoredInHooksError("this release of torch does not show what hooks store")
        return func(*args, **(kwargs or {}))
