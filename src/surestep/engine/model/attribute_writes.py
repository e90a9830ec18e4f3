"""Plain attributes that a step changes, such as a counter, if the outputs or the loss need them.

A forward, a loss, a batch_transform or a manual step may change them. Only steps may, and a
checkpoint has them. They are found in the checks of the first batch, in eval mode, and in the first
step, in train mode.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from surestep.base.errors import CheckpointError
from surestep.engine.batch import flatten_tensors, map_tensors
from surestep.engine.buffers import bits_of
from surestep.engine.model.attributes import (
    ABSENT,
    Attribute,
    AttributeSnapshot,
    ObjectSnapshot,
    find_attribute,
    preserve_attributes,
    restore_part,
)
from surestep.engine.plan.not_checked import is_collecting, not_checked
from surestep.engine.task.init_weights import summarize_names

NAME = "the attributes that forwards change"  # of their entry in `callback_states`
_COLLECTIONS: dict[str, type[Any]] = {kind.__name__: kind for kind in (list, dict, set, deque)}
_LEAVES = (bool, int, float, str, type(None))
_NUMBERS = (int, float)
_MOST_CALLS = 32  # of the model, to distinguish the attributes of different objects


class Call(NamedTuple):
    """A call of what a step calls, with its own random numbers; it returns all tensors."""

    function: Callable[[], list[Tensor]]
    root: str = ""  # of the paths of the only attributes on which what is called may depend


class AttributeWrites:
    """Finds the attributes that forwards change; a checkpoint has their values as its state.

    Args:
        codes: the model, the losses and the functions of a step, by the first part of the paths of
            their attributes.

    Attributes:
        slots: those to restore after evaluations and to save.
        dependent: those on which outputs depend.
    """

    def __init__(self, codes: Mapping[str, Any]) -> None:
        self.codes = codes
        self.slots: list[Attribute] = []
        self.dependent: list[Attribute] = []
        self._notices: list[str] = []
        self._listed: set[str] = set()  # those of which it is not known what depends on them
        self._first: dict[str, AttributeSnapshot] = {}

    def snapshot(self) -> ObjectSnapshot:
        """Copy what a forward may change, to compare it later."""
        return ObjectSnapshot(self.codes)

    def find(self, before: ObjectSnapshot, calls: Sequence[Call]) -> None:
        """Add what has changed, with its effect on what `calls` return; no value is restored.

        Args:
            before: a copy of all before the change.
            calls: call what a step calls, with the same seeds; empty if that is not possible.
        """
        settled = {slot.path for slot in self.dependent}
        changed = [slot for slot in before.changed() if slot.path not in settled]
        if not before.is_complete:
            not_checked("some attributes that a forward may change", "there are very many objects")
        if not changed:
            return
        dependent = self._find_dependent(before, changed, calls)
        # Numbers alone may take effect later. Beside other values they may describe a cache.
        by_owner = _group(changed)
        numbers = [slot for group in by_owner if _are_numbers(group, before) for slot in group]
        for slot in changed:
            if slot in dependent or slot in numbers:
                self._add(slot, before.select([slot]))
        self.dependent += dependent
        self._list_left([slot for slot in changed if slot.path not in self._first], bool(calls))
        for slot in dependent:
            if not _can_be_saved(slot.value) and not _has_extra_state(slot.module):
                self._notices.append(
                    f"A step changes {slot.path}, a {type(slot.value).__name__}, and outputs or "
                    "the loss depend on it. A checkpoint does not hold such an object, "
                    "so a resumed run differs from an uninterrupted one. Keep its numbers in "
                    "tensors of self.register_buffer(), or return them in get_extra_state() and "
                    "load them in set_extra_state()."
                )

    def _list_left(self, left: list[Attribute], is_called: bool) -> None:
        """List those that are neither restored nor saved, in the Plan or in a notice."""
        names = [slot.path for slot in left if slot.path not in self._listed]
        if not names:
            return
        self._listed.update(names)
        what = f"whether outputs depend on {summarize_names(names, 3)}, which a step changes"
        if is_called or is_collecting():
            why = "those of the first batch do not" if is_called else "they are not computed again"
            not_checked(what, why)
        else:
            self._notices.append(
                f"It is not checked {what}. A checkpoint does not have it, so a resumed run may "
                "differ from an uninterrupted one. Keep what outputs depend on in a buffer."
            )

    @property
    def numbers(self) -> list[Attribute]:
        """Those that are numbers, which are restored after a skipped step too."""
        return [slot for slot in self.slots if type(slot.value) in _NUMBERS]

    @property
    def others(self) -> list[Attribute]:
        """The other ones to restore after a skipped step, which waits for the device."""
        return [slot for slot in self.dependent if type(slot.value) not in _NUMBERS]

    def _add(self, slot: Attribute, first: AttributeSnapshot) -> None:
        if slot.path not in self._first:
            self.slots.append(slot)
            self._first[slot.path] = first

    def _find_dependent(
        self, before: AttributeSnapshot, changed: list[Attribute], calls: Sequence[Call]
    ) -> list[Attribute]:
        """Return the attributes without whose change a call returns something different."""
        after, groups = AttributeSnapshot(changed), _group(changed)
        dependent: list[Attribute] = []

        def call_from(slots: list[Attribute], call: Call) -> list[Tensor]:
            before.select(slots).restore()
            try:
                with preserve_attributes(*self.codes.values()):
                    return call.function()
            finally:
                after.restore()

        for call in calls:
            if not any(slot.path.startswith(call.root) for slot in changed):
                continue
            try:
                expected = call_from([], call)
                if _are_equal(call_from(changed, call), expected):
                    continue
                if len(groups) in range(2, _MOST_CALLS):
                    for group in groups:
                        if not _are_equal(call_from(group, call), expected):
                            dependent += [slot for slot in group if slot not in dependent]
                else:
                    return changed
            except Exception as error:  # whatever the user's code raises
                not_checked("what the outputs depend on", f"a forward fails: {error}")
        return dependent

    def digests(self) -> dict[str, str]:
        """Return text that shows whether two ranks have the same values, by path."""
        return {path: repr(saved["value"]) for path, saved in self.state_dict().items()}

    def take_notices(self) -> list[str]:
        """Return messages about those that cannot be saved, once."""
        notices, self._notices = self._notices, []
        return notices

    def state_dict(self) -> dict[str, Any]:
        """Return the values by path, as a checkpoint can hold them."""
        return {
            slot.path: _to_saved(slot.value, is_new=self._first[slot.path].had(slot) is ABSENT)
            for slot in self.slots
            if slot.value is not ABSENT and _can_be_saved(slot.value)
        }

    def load_state_dict(self, state: Any) -> None:
        """Load them; the others get their first values.

        Raises:
            CheckpointError: they are those of a different model or loss.
        """
        known = {slot.path: slot for slot in self.slots}
        # Weights alone need no loss, and an evaluation no batch_transform.
        needed = {"model"} if self.codes.keys() == {"model"} else {"model", "loss", *self.codes}
        state = {path: value for path, value in state.items() if _root(path) in needed}
        found = {path: known.get(path) or find_attribute(self.codes, path) for path in state}
        for path, slot in found.items():
            if slot is None or (slot.value is ABSENT and not state[path]["is_new"]):
                raise CheckpointError(
                    f"The checkpoint has a value of {path}, an attribute that the steps changed, "
                    f"and there is no such attribute here. Pass the {_root(path)} that was trained."
                )
        for path, first in self._first.items():
            if path not in found:
                first.restore()
        for path, slot in found.items():
            assert slot is not None
            if path not in known:
                self._add(slot, AttributeSnapshot([slot]))
            _load(slot, state[path])


def _root(path: str) -> str:
    """Return what a path starts at, as "loss" of "loss['a'].calls"."""
    return path.partition(".")[0].partition("[")[0]


def _group(slots: list[Attribute]) -> list[list[Attribute]]:
    """Return the attributes of each object."""
    groups: dict[int, list[Attribute]] = {}
    for slot in slots:
        groups.setdefault(id(slot.owner), []).append(slot)
    return list(groups.values())


def _are_numbers(slots: list[Attribute], before: AttributeSnapshot) -> bool:
    olds = [before.had(slot) for slot in slots]
    return all(type(slot.value) in _NUMBERS for slot in slots) and all(
        old is ABSENT or type(old) in _NUMBERS for old in olds
    )


def _are_equal(now: list[Tensor], expected: list[Tensor]) -> bool:
    """Return whether tensors have equal bits."""
    return len(now) == len(expected) and all(
        (a.shape, a.dtype) == (b.shape, b.dtype) and torch.equal(bits_of(a), bits_of(b))
        for a, b in zip(now, expected, strict=True)
    )


def _has_extra_state(module: nn.Module | None) -> bool:
    """Return whether a module saves more by itself."""
    return module is not None and type(module).get_extra_state is not nn.Module.get_extra_state


def _can_be_saved(value: Any, *, is_inner: bool = False) -> bool:
    """Return whether a value is a number, text, a tensor, an array, or a collection of those."""
    if type(value) in _LEAVES:
        return True
    if isinstance(value, (Tensor, np.ndarray, np.generic)):
        return not isinstance(value, np.ndarray) or value.dtype.kind in "biuf"
    if isinstance(value, dict):
        keys = all(type(key) in (str,) if is_inner else type(key) in _LEAVES for key in value)
        return keys and all(_can_be_saved(member, is_inner=True) for member in value.values())
    if type(value) in (list, tuple) or (isinstance(value, (list, set, deque)) and not is_inner):
        return all(_can_be_saved(member, is_inner=True) for member in value)
    return False


def _to_saved(value: Any, *, is_new: bool) -> dict[str, Any]:
    """Return a value as a checkpoint has it, with its kind of collection."""
    tensors = flatten_tensors(value if not isinstance(value, (set, deque)) else list(value))
    kind = next((name for name, kind in _COLLECTIONS.items() if isinstance(value, kind)), "")
    if kind:
        value = list(value.items()) if kind == "dict" else list(value)
    on_host = all(tensor.device.type == "cpu" for tensor in tensors)
    value = map_tensors(value, Tensor.detach)
    return {"kind": kind, "value": value, "on_host": on_host, "is_new": is_new}


def _load(slot: Attribute, saved: Mapping[str, Any]) -> None:
    """Set an attribute to a saved value, in place if its kind is the same."""
    kind, value, now = saved["kind"], saved["value"], slot.value
    if not saved["on_host"]:
        tensors = [*slot.module.parameters(), *slot.module.buffers()] if slot.module else []
        device = next((t.device for t in [*flatten_tensors(now), *tensors]), torch.device("cpu"))
        value = map_tensors(value, lambda tensor: tensor.to(device))
    if kind and isinstance(now, _COLLECTIONS[kind]):
        restore_part(now, value)
    elif type(now) is Tensor and isinstance(value, Tensor) and _takes(now, value):
        with torch.no_grad():
            now.copy_(value)
    else:
        slot.owner[slot.name] = _COLLECTIONS[kind](value) if kind else value


def _takes(now: Tensor, value: Tensor) -> bool:
    return (now.shape, now.dtype, now.requires_grad) == (value.shape, value.dtype, False)
