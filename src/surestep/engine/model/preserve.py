"""Restore the buffers of a model, and the parameters that its forward changes."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from surestep.engine.buffers import Slot, bits_of, differs, every_buffer, version_of
from surestep.engine.model.attributes import Attribute, AttributeSnapshot
from surestep.engine.step_outcome import StepOutcome

_FLAGS = (bool, int, float)
Write = Slot | Attribute  # what a forward changes beside buffers
NORMS = nn.modules.batchnorm._NormBase  # those with running statistics


class BufferSnapshot:
    """The buffers of a model and of a loss, to restore them if a step is skipped.

    A forward updates BatchNorm's statistics before it is known whether the step counts. Buffers are
    found by owner and name, since some modules replace the tensor, or None.

    Args:
        modules: the model and the loss.
        writes: parameters and attributes that a forward changes, which are restored too.

    Attributes:
        has_attributes: whether there are attributes to copy.
        copied: their copy; None if there is none. If only the device knows whether a step counts,
            it is read.
        numbers: a copy of attributes that are numbers; a log point restores it after such a step.
    """

    def __init__(self, *modules: nn.Module | None, writes: Iterable[Write] = ()) -> None:
        self.slots: list[tuple[dict[str, Any], str]] = [
            (module._buffers, name)
            for root in modules
            if root is not None
            for _, module, name in every_buffer(root)
            if not (module._buffers[name] is None and isinstance(module, NORMS))
            and not isinstance(module._buffers[name], nn.UninitializedBuffer)
        ]
        self._n_buffers, self._writes = len(self.slots), list[Slot]()
        attributes = list[Attribute]()
        for write in writes:
            if isinstance(write, Attribute):
                attributes.append(write)
            else:
                self._writes.append(write)
        self._copy_attributes: Callable[[], AttributeSnapshot] | None = None
        self.copied: AttributeSnapshot | None = None
        self.numbers: AttributeSnapshot | None = None
        self.keep_attributes(attributes)
        self.slots += [(module._parameters, name) for _, module, name in self._writes]
        self._kept: list[_Kept | None] = []
        roots = [root for root in modules if root is not None and self._writes]
        self._attributes = [vars(part) for root in roots for part in root.modules()]
        self._flags: list[dict[str, Any]] = []

    def save(self) -> None:
        """Copy the attributes, the buffers and the parameters."""
        self.save_attributes()
        self.save_tensors()

    def save_attributes(self) -> None:
        """Copy the attributes."""
        if self._copy_attributes is not None:
            self.copied = self._copy_attributes()
        if self._numbers:
            self.numbers = AttributeSnapshot(self._numbers)

    def save_tensors(self) -> None:
        """Copy the buffers, and the parameters.

        A forward may change parameters once, and note that in an attribute, which is restored too.
        """
        self._flags = [
            {name: value for name, value in now.items() if type(value) in _FLAGS}
            for now in self._attributes
        ]
        with torch.no_grad():
            before = self._kept or [None] * len(self.slots)
            self._kept = [
                _copy(owner[name], kept)
                for (owner, name), kept in zip(self.slots, before, strict=True)
            ]

    def compare(self, parameters: Sequence[Slot]) -> Callable[[], list[Slot]]:
        """Compare the bits of parameters with the copy; nothing is read from the device yet.

        Returns what reads the result: the parameters that were written to.
        """
        kept = {
            (id(owner), name): kept
            for (owner, name), kept in zip(self.slots, self._kept, strict=True)
        }
        pairs = [(kept[id(slot[1]._parameters), slot[2]], slot) for slot in parameters]
        flags = [
            before is not None and before.is_written(owner._parameters[name])
            for before, (_, owner, name) in pairs
        ]
        return lambda: [
            slot for slot, flag in zip(parameters, _read_flags(flags), strict=True) if flag
        ]

    def keep_only(self, parameters: Iterable[Slot]) -> None:
        """Restore only these parameters from now on, with the buffers."""
        self._writes = list(parameters)
        kept = {(id(module._parameters), name) for _, module, name in self._writes}
        chosen = [
            number
            for number, (owner, name) in enumerate(self.slots)
            if number < self._n_buffers or (id(owner), name) in kept
        ]
        self.slots = [self.slots[number] for number in chosen]
        self._kept = [self._kept[number] for number in chosen]
        if not kept:
            self._attributes, self._flags = [], []

    def keep_attributes(
        self, attributes: Sequence[Attribute], numbers: Sequence[Attribute] = ()
    ) -> None:
        """Restore only these attributes from now on, and numbers."""
        if self.copied is not None:
            self.numbers = self.copied.select(numbers) if numbers else None
            self.copied = self.copied.select(attributes) if attributes else None
        self._copy_attributes = partial(AttributeSnapshot, attributes) if attributes else None
        self._numbers, self.has_attributes = numbers, bool(attributes or numbers)

    def copy_objects(self, copy: Callable[[], AttributeSnapshot]) -> None:
        """Restore all attributes that are copied by a function, until some are chosen."""
        self._copy_attributes, self.has_attributes = copy, True

    def restore_attributes(self) -> None:
        """Restore attributes, and if parameters were changed all of modules that are numbers."""
        for copied in (self.copied, self.numbers):
            if copied is not None:
                copied.restore()
        if self._attributes and self.compare(self._writes)():
            for now, flags in zip(self._attributes, self._flags, strict=True):
                now.update(flags)

    @torch.no_grad()
    def restore(self, outcome: StepOutcome) -> None:
        """Restore the copy if the step was not taken; on the device if only the device knows.

        The device is read in a step that fills a buffer, changes its shape or dtype, or changes an
        attribute that is not a number.
        """
        if outcome.nonfinite_flag is None and outcome.took_step:
            return
        good = None if outcome.nonfinite_flag is None else outcome.nonfinite_flag == 0
        if good is None or (self.copied is not None and not bool(good)):
            self.restore_attributes()
        replaced: dict[int, Tensor] = {}  # by what was one tensor
        for (owner, name), kept in zip(self.slots, self._kept, strict=True):
            now = owner[name]
            if kept is None or now is None or now.layout is not torch.strided:
                has_changed = now is not None if kept is None else kept.has_changed(now)
                if has_changed and (good is None or not bool(good)):
                    owner[name] = None if kept is None else kept.copy
            elif differs(now, kept.copy):
                if good is None or not bool(good):
                    owner[name] = replaced.setdefault(id(kept.tensor), kept.copy)
            elif good is None:
                now.copy_(kept.copy)
            else:
                torch.where(good, now, kept.copy, out=now)


class _Kept(NamedTuple):
    """A copy of a buffer, and what shows whether a sparse one has changed."""

    copy: Tensor
    tensor: Tensor
    version: int

    def has_changed(self, now: Tensor | None) -> bool:
        """Return whether the buffer was replaced or written to."""
        return now is not self.tensor or version_of(self.tensor) != self.version

    def is_written(self, now: Tensor | None) -> bool | Tensor:
        """Return whether the tensor was replaced or written to, also through `.data`.

        A tensor, () bool, is not read from the device.
        """
        before, after = self.copy, self.tensor
        if self.has_changed(now) or (before.dtype, before.shape) != (after.dtype, after.shape):
            return True
        return torch.ne(bits_of(after), bits_of(before)).any()


def _read_flags(flags: Sequence[bool | Tensor]) -> list[bool]:
    """Read flags that are on a device, all at once."""
    device = next((flag.device for flag in flags if isinstance(flag, Tensor)), None)
    if device is None:
        return [bool(flag) for flag in flags]
    return torch.stack([torch.as_tensor(flag, device=device) for flag in flags]).tolist()


def _copy(now: Tensor | None, before: _Kept | None) -> _Kept | None:
    """Copy a buffer; a sparse one, which is large and rarely changes, only if it has changed."""
    if now is None:
        return None
    if now.layout is not torch.strided and before is not None and not before.has_changed(now):
        return before
    return _Kept(now.clone(), now, version_of(now))


@contextmanager
def preserve_buffers(*modules: nn.Module | None, writes: Iterable[Write] = ()) -> Iterator[None]:
    """Restore the buffers, parameters and attributes that a forward changes."""
    buffers = BufferSnapshot(*modules, writes=writes)
    buffers.save()
    tensors = [owner[name] for owner, name in buffers.slots]
    try:
        yield
    finally:
        buffers.restore_attributes()
        for (owner, name), tensor in zip(buffers.slots, tensors, strict=True):
            owner[name] = tensor  # the same object: a forward may have replaced it
        buffers.restore(StepOutcome(False))
