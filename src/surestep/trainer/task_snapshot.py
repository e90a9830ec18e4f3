"""The state of all that training changes in the objects of a Task, to restore it afterwards."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from surestep.engine.losses.multi import code_of_losses
from surestep.engine.model.attributes import ObjectSnapshot
from surestep.engine.object_search import roots_of
from surestep.engine.own_generators import copy_states
from surestep.engine.parallel.strategy import strategy_class
from surestep.trainer.planning import PreparedTask


class TaskSnapshot:
    """Copies of weights, buffers, attributes and the states of generators, tensors on the host.

    What builds the steps restores the modes itself. Data is not copied: training only reads it.
    """

    def __init__(self, planned: PreparedTask) -> None:
        task, loss = planned.task, planned.loss
        is_whole = strategy_class(planned.plan.parallel_strategy).copies_model
        codes: dict[str, Any] = {
            "model": planned.model if is_whole else None,  # else a function has built it
            **code_of_losses(loss),
            "teacher": loss.teacher,
            "step": task.step,
            "batch_transform": task.batch_transform,
            "inputs": task.inputs,
        }
        codes = {name: code for name, code in codes.items() if code is not None}
        data = {
            "train": task.train,
            "val": task.val,
            "sampler": task.sampler,
            "collate_fn": task.collate_fn,
        }
        self._generators = copy_states(*roots_of(planned.model, {**codes, **data}))
        modules = {
            id(module): module
            for root in codes.values()
            if isinstance(root, nn.Module)
            for module in root.modules()
        }
        members = [
            members
            for module in modules.values()
            for members in (module._parameters, module._buffers, module._modules)
        ]
        self._members: list[tuple[dict[str, Any], dict[str, Any]]] = [
            (members_of_one, dict(members_of_one)) for members_of_one in members
        ]
        tensors = {
            id(value): value
            for of_one in members
            for value in of_one.values()
            if isinstance(value, Tensor) and _has_memory(value)
        }
        self._tensors = [_copy(tensor) for tensor in tensors.values()]
        self._objects = ObjectSnapshot(codes)

    @torch.no_grad()
    def restore(self) -> None:
        """Restore everything; a call that was interrupted can be repeated."""
        for members, before in self._members:
            members.clear()  # a strategy may have replaced some
            members.update(before)
        for kept in self._tensors:
            kept.restore()
        self._objects.restore()
        for restore in self._generators:
            restore()


@contextmanager
def preserve_task(planned: PreparedTask) -> Iterator[None]:
    """Restore the objects of a Task, even if Ctrl-C arrives while they are restored."""
    snapshot = TaskSnapshot(planned)
    try:
        yield
    finally:
        interrupted: BaseException | None = None
        while True:
            try:
                snapshot.restore()
                break
            except KeyboardInterrupt as error:
                interrupted = error
        if interrupted is not None:
            raise interrupted


class _Kept(NamedTuple):
    """A tensor of a module, its gradient, the memory that it had, and a copy of the values."""

    tensor: Tensor
    grad: Tensor | None
    memory: Tensor
    values: Tensor

    def restore(self) -> None:
        """Restore memory, values and gradient."""
        self.memory.copy_(self.values)
        if self.tensor.data_ptr() != self.memory.data_ptr():  # it was moved to another device
            self.tensor.data = self.memory
        self.tensor.grad = self.grad


def _has_memory(tensor: Tensor) -> bool:
    """Return whether a tensor has values that can be written."""
    if nn.parameter.is_lazy(tensor) or tensor.is_meta or tensor.layout is not torch.strided:
        return False
    return 0 not in tensor.stride() or tensor.numel() < 2


def _copy(tensor: Tensor) -> _Kept:
    return _Kept(tensor, tensor.grad, tensor.data, tensor.data.to("cpu", copy=True))
