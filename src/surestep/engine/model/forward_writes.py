"""Parameters that a forward changes, such as the table of an Embedding with max_norm.

Only the forwards of steps may change them. A write through `.data` changes no version of a tensor,
so values are compared: those before and after the checks of the first batch, in eval mode, and
before and after the forward of the first step, in train mode. Operations are watched too, since
what limits weights may change none at first.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from surestep.base.text import format_bytes
from surestep.engine.batch import flatten_tensors
from surestep.engine.buffers import Slot, every_parameter
from surestep.engine.distributed.shards import is_model_sharded
from surestep.engine.model.compile import DispatchMode
from surestep.engine.model.frozen_weights import fingerprint
from surestep.engine.model.preserve import BufferSnapshot
from surestep.engine.plan.batching import BatchLayout
from surestep.engine.plan.not_checked import not_checked
from surestep.engine.step_outcome import StepOutcome
from surestep.engine.task.init_weights import summarize_names

MOST_OF_STEPS = 0.1  # the largest share of the weights that is copied before each step
_MOST_COMPARED = 2**32  # bytes of parameters that are copied to be compared, on the host
_MOST_OF_GPU = 16  # on a GPU, its memory divided by this, which the first step has to spare


class ForwardWrites(DispatchMode):
    """Collects the parameters that forwards change; as a mode, it watches their operations.

    Args:
        model: the model.
        others: other modules that a step calls, such as a teacher.

    Attributes:
        slots: the parameters that were changed.
        digests: of the values after the change, in hexadecimal, by name.
        compared: the parameters whose values are compared.
        not_compared: why the values of others are not, with their number.
        limited: the names of embeddings with max_norm, which each forward changes.
    """

    def __init__(self, model: nn.Module, *others: nn.Module | None) -> None:
        super().__init__()
        every = list(every_parameter(model, *others))
        slots = [slot for slot in every if _is_plain(parameter_of(slot))]
        self.weights = sum(parameter_of(slot).numel() for slot in slots)
        self.compared, self.not_compared = _choose_compared(slots, len(every) - len(slots))
        self.slots = [slot for slot in slots if _limits_norm(slot[1])]
        self.limited = [slot[0] for slot in every if _limits_norm(slot[1])]
        self.digests: dict[str, str] = {}
        self._by_address: dict[int, list[Slot]] = {}
        for slot in slots:
            self._by_address.setdefault(_address(parameter_of(slot)), []).append(slot)
        self.leave_out_sharded(model)

    def leave_out_sharded(self, model: nn.Module) -> None:
        """Compare and restore no parameters if a strategy has sharded those of the model."""
        if is_model_sharded(model):
            self.not_compared = {"they are sharded": len(list(model.parameters()))}
            self.compared, self.slots = [], []

    @property
    def possible(self) -> list[Slot]:
        """The parameters that were changed or are compared."""
        return [*self.compared, *(slot for slot in self.slots if slot not in self.compared)]

    @property
    def slots_of_steps(self) -> list[Slot]:
        """Those to copy before each step: all, or none if they are too large."""
        return self.slots if self.share < MOST_OF_STEPS else []

    @property
    def share(self) -> float:
        """Their share of all weights."""
        changed = sum(parameter_of(slot).numel() for slot in self.slots)
        return changed / max(1, self.weights)

    @contextmanager
    def compare(self) -> Iterator[None]:
        """Find what forwards in the body change, and restore it; modes do not change in it."""
        before = BufferSnapshot(writes=self.compared)
        before.save()
        try:
            yield
        finally:
            self.add(changed := before.compare(self.compared)())
            before.keep_only(changed)
            before.restore(StepOutcome(False))

    def add(self, changed: Sequence[Slot]) -> None:
        """Add parameters that a forward has changed."""
        for slot in changed:
            self._append(slot)
            self.digests[slot[0]] = fingerprint(parameter_of(slot))

    def _append(self, slot: Slot) -> None:
        if slot not in self.slots:
            self.slots.append(slot)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func._schema.is_mutable:
            given = {**dict(enumerate(args)), **(kwargs or {})}
            for place, argument in enumerate(func._schema.arguments):
                if argument.alias_info is not None and argument.alias_info.is_write:
                    value = given.get(argument.name if argument.kwarg_only else place)
                    for tensor in flatten_tensors(value):
                        for slot in self._by_address.get(_address(tensor) or -1, ()):
                            self._append(slot)
        return func(*args, **(kwargs or {}))

    def describe(self, layout: BatchLayout, *, is_manual: bool) -> Iterator[str]:
        """Yield what does not hold for this model.

        Args:
            layout: of a step.
            is_manual: the Task has its own step, which copies its parameters anyway.
        """
        names, kept = self._names, self._describe_kept()
        is_split = layout.micro_batch_size < -(-layout.batch_size // layout.ranks)
        if self.slots and is_split and not is_manual:
            yield (
                f"Each forward changes {names}, so the update may depend on micro_batch_size: a "
                "micro-batch gets what the one before has changed."
            )
        if self.slots and not (is_manual or self.slots_of_steps):
            yield f"A skipped step keeps what its forward changed of {names}: {kept}."

    def list_not_checked(self, *, is_manual: bool) -> None:
        """List in the Plan what is not compared, and what a skipped step does not restore."""
        for reason, count in self.not_compared.items():
            not_checked(f"whether a forward changes {count} of the parameters", reason)
        if self.slots and not (is_manual or self.slots_of_steps):
            what = f"what a skipped step leaves of {self._names}, which each forward changes"
            not_checked(what, self._describe_kept())

    @property
    def _names(self) -> str:
        return summarize_names([name for name, *_ in self.slots], 3)

    def _describe_kept(self) -> str:
        return (
            f"that is {self.share:.0%} of the weights, and {MOST_OF_STEPS:.0%} are the most that "
            "is copied before each step"
        )


def parameter_of(slot: Slot) -> nn.Parameter:
    """Return the parameter with a name of a module."""
    parameter = slot[1]._parameters[slot[2]]
    assert parameter is not None
    return parameter


def _choose_compared(slots: list[Slot], others: int) -> tuple[list[Slot], dict[str, int]]:
    """Return the parameters to copy, trained ones first, and why the rest is not compared."""
    chosen: list[Slot] = []
    left_out = {"they are not plain tensors": others} if others else {}
    for is_trained in (True, False):
        part = [slot for slot in slots if parameter_of(slot).requires_grad is is_trained]
        size = sum(parameter_of(slot).nbytes for slot in (*chosen, *part))
        if not part or size <= _most_compared(parameter_of(part[0]).device):
            chosen += part
        else:
            kind = "" if is_trained else "frozen and "
            left_out[f"they are {kind}too large to copy ({format_bytes(size)})"] = len(part)
    return chosen, left_out


def _most_compared(device: torch.device) -> int:
    if device.type != "cuda":
        return _MOST_COMPARED
    return int(torch.cuda.get_device_properties(device).total_memory) // _MOST_OF_GPU


def _is_plain(parameter: nn.Parameter) -> bool:
    """Return whether a parameter has its values in memory, on this rank alone."""
    if nn.parameter.is_lazy(parameter) or parameter.is_meta:
        return False
    return type(parameter.detach()) is Tensor and parameter.layout is torch.strided


def _limits_norm(layer: nn.Module) -> bool:
    return isinstance(layer, (nn.Embedding, nn.EmbeddingBag)) and layer.max_norm is not None


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr() if type(tensor) in (Tensor, nn.Parameter) else 0
