"""Restore the buffers and attributes of a model."""

import sys
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from surestep.engine.buffers import every_buffer
from surestep.engine.own_generators import is_generator
from surestep.engine.step_outcome import StepOutcome

_OF_MODULES = vars(nn.Module()).keys()  # what torch keeps in every module
_NOT_OF_USERS = sys.stdlib_module_names | {"numpy", "torch", "surestep"}
_COLLECTIONS = (list, dict, set, deque)
NORMS = nn.modules.batchnorm._NormBase  # those with running statistics


class BufferSnapshot:
    """The buffers of a model and of a loss, to restore them if a step is skipped.

    A forward updates BatchNorm's statistics before it is known whether the step counts. Buffers are
    found by owner and name, since some modules replace the tensor, or None.
    """

    def __init__(self, *modules: nn.Module | None) -> None:
        self.slots = [
            (module._buffers, name)
            for root in modules
            if root is not None
            for _, module, name in every_buffer(root)
            if not (module._buffers[name] is None and isinstance(module, NORMS))
            and not isinstance(module._buffers[name], nn.UninitializedBuffer)
        ]
        self._kept: list[_Kept | None] = []

    def save(self) -> None:
        """Copy the buffers."""
        with torch.no_grad():
            before = self._kept or [None] * len(self.slots)
            self._kept = [
                _copy(owner[name], kept)
                for (owner, name), kept in zip(self.slots, before, strict=True)
            ]

    @torch.no_grad()
    def restore(self, outcome: StepOutcome) -> None:
        """Restore the copy if the step was not taken; on the device if only the device knows.

        The device is read for a buffer that was None: once, in the step that filled it.
        """
        if outcome.nonfinite_flag is None and outcome.took_step:
            return
        good = None if outcome.nonfinite_flag is None else outcome.nonfinite_flag == 0
        for (owner, name), kept in zip(self.slots, self._kept, strict=True):
            now = owner[name]
            if kept is None or now is None or now.layout is not torch.strided:
                has_changed = now is not None if kept is None else kept.has_changed(now)
                if has_changed and (good is None or not bool(good)):
                    owner[name] = None if kept is None else kept.copy
            elif now.shape != kept.copy.shape:  # a table that grew: only its values are new
                owner[name] = kept.copy if good is None else now
            elif good is None:
                now.copy_(kept.copy)
            else:
                torch.where(good, now, kept.copy.to(now.dtype), out=now)


class _Kept(NamedTuple):
    """A copy of a buffer, and what shows whether a sparse one has changed."""

    copy: Tensor
    tensor: Tensor
    version: int

    def has_changed(self, now: Tensor | None) -> bool:
        """Return whether the buffer was replaced or written to."""
        return now is not self.tensor or _version(self.tensor) != self.version


def _copy(now: Tensor | None, before: _Kept | None) -> _Kept | None:
    """Copy a buffer; a sparse one, which is large and rarely changes, only if it has changed."""
    if now is None:
        return None
    if now.layout is not torch.strided and before is not None and not before.has_changed(now):
        return before
    return _Kept(now.clone(), now, _version(now))


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


@contextmanager
def preserve_buffers(*modules: nn.Module | None) -> Iterator[None]:
    """Restore the buffers that a forward changes."""
    buffers = BufferSnapshot(*modules)
    buffers.save()
    tensors = [owner[name] for owner, name in buffers.slots]
    try:
        yield
    finally:
        for (owner, name), tensor in zip(buffers.slots, tensors, strict=True):
            owner[name] = tensor  # the same object: a forward may have replaced it
        buffers.restore(StepOutcome(False))


@contextmanager
def preserve_attributes(*codes: Any) -> Iterator[None]:
    """Restore attributes of modules with their parts, or of other objects, and of objects in them.

    A model or a loss may count its calls, or collect values in a list or a tensor. Parameters,
    buffers and modes are restored elsewhere. If a layer, a buffer or a hook was added, which an
    attribute may describe, nothing of that model or loss is restored. A generator that was made
    stays, since it is seeded from now on.
    """
    before = []
    for code in (getattr(code, "__self__", code) for code in codes):
        owners = [*filter(_has_attributes, code.modules() if _is_module(code) else [code])]
        owners += [part for one in owners for part in vars(one).values() if _has_attributes(part)]
        values = [(vars(owner), dict(vars(owner))) for owner in owners]
        copies = _copy_parts(old[name] for _, old in values for name in old.keys() - _OF_MODULES)
        before.append((code, owners, values, copies, _structure(code, owners)))
    try:
        yield
    finally:
        for code, owners, values, copies, structure in before:
            if _structure(code, owners) == structure:
                for now, old in values:
                    for name in now.keys() - old.keys():
                        if not is_generator(now[name]):
                            del now[name]
                    now.update(
                        {
                            name: old[name]
                            for name in old.keys() - _OF_MODULES
                            if old[name] is not None or not is_generator(now.get(name))
                        }
                    )
                for part, kept in copies:
                    _put_back(part, kept)


def _is_module(code: Any) -> bool:
    return isinstance(code, nn.Module)


def _has_attributes(value: Any) -> bool:
    """Return whether a value is an object of a class of the user, or of another package."""
    home = type(value).__module__.partition(".")[0]
    return home not in _NOT_OF_USERS and hasattr(value, "__dict__")


def _copy_parts(values: Iterable[Any]) -> list[tuple[Any, Any]]:
    """Return what may be changed in place, also in collections, each with a copy on the host."""
    found: list[tuple[Any, Any]] = []
    seen, left = set(), list(values)
    while left:
        part = left.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        if type(part) is Tensor and not (part.requires_grad or part.is_meta):
            found.append((part, (part.to("cpu", copy=True), _version(part))))
        elif isinstance(part, np.ndarray):
            found.append((part, part.copy()))
        elif isinstance(part, _COLLECTIONS):
            kept = dict(part) if isinstance(part, dict) else list(part)
            found.append((part, kept))
            left += kept.values() if isinstance(kept, dict) else kept
    return found


def _put_back(part: Any, kept: Any) -> None:
    """Give a part the content that it had."""
    if isinstance(part, Tensor):
        values, version = kept
        if _version(part) != version:
            part.copy_(values)
    elif isinstance(part, np.ndarray):
        if part.flags.writeable:
            part[...] = kept
    else:
        part.clear()
        part.extend(kept) if isinstance(part, (list, deque)) else part.update(kept)


def _structure(code: Any, owners: list[Any]) -> list[int]:
    """Return the layers and parameters of code, and how many buffers and hooks its parts have."""
    parts = [*map(id, code.modules()), *map(id, code.parameters())] if _is_module(code) else []
    for name, value in (item for owner in owners for item in vars(owner).items()):
        if name in _OF_MODULES:
            parts += [len(value)] if isinstance(value, dict) else []
            continue
        members = value.values() if isinstance(value, dict) else value
        for member in members if isinstance(value, _COLLECTIONS) else [value]:
            parts += [id(member)] if isinstance(member, (nn.Module, nn.Parameter)) else []
    return parts
