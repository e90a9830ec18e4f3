"""Where the padding of targets comes from."""

from __future__ import annotations

from surestep.doctor.source.loaders import find_loader_call
from surestep.doctor.source.trace import Program
from surestep.doctor.source.training import options_of, tensor_of
from surestep.doctor.source.values import (
    Call,
    Collection,
    Constant,
    Element,
    Function,
    Item,
    Operation,
    Value,
)

IGNORED = -100  # by the losses of torch, as the default
_PAD = "torch.nn.utils.rnn.pad_sequence"
_KEEPS = frozenset(
    "view reshape flatten transpose permute contiguous to cuda cpu long squeeze t clone".split()
)


def find_collated(program: Program) -> dict[int, list[Value]]:
    """Return what each function returns, by the identity of its source."""
    found: dict[int, list[Value]] = {}
    for trace in program.traces:
        for event in trace.events:
            if event.kind == "return" and event.stack:
                found.setdefault(id(event.stack[-1].definition), []).append(event.value)
    return found


def find_padding(value: Value, returned: dict[int, list[Value]]) -> list[Value]:
    """Return the values from a target to the call that padded it, which comes last.

    There are none unless the source shows that call, and that the loss does not ignore its value.
    """
    found: list[Value] = []
    for _ in range(20):
        options = options_of(value)
        if len(options) != 1:
            return []
        value = options[0]
        found.append(value)
        if isinstance(value, Call) and value.path == _PAD:
            return found if _is_counted(value) else []
        base = find_base(value)
        inner = _find_in_batch(value, returned) if isinstance(value, Item) else None
        if inner is not None:
            value = inner
        elif base is not None and not (isinstance(value, Item) and not _is_slice(value.index)):
            value = base
        else:
            return []
    return []


def find_base(value: Value) -> Value | None:
    """Return the tensor of which a value is a part or a view."""
    if isinstance(value, Item):
        return value.base
    return tensor_of(value) if isinstance(value, Call) and value.name in _KEEPS else None


def _is_slice(index: Value) -> bool:
    """Return whether an index keeps a range, unlike a mask."""
    parts = index.elements if isinstance(index, Collection) else [index]
    return all(isinstance(entry, Operation) and entry.operator == ":" for entry in parts)


def _is_counted(pad: Call) -> bool:
    padding = pad.argument(2, "padding_value")
    if pad.has_unknown_arguments:
        return False
    return padding is None or not (isinstance(padding, Constant) and padding.value == IGNORED)


def _find_in_batch(item: Item, returned: dict[int, list[Value]]) -> Value | None:
    """Return what a `collate_fn` returns at an index of a batch."""
    loader = find_loader_call(item.base.of) if isinstance(item.base, Element) else None
    collate = None if loader is None else loader.argument(6, "collate_fn")
    batches = returned.get(id(collate.definition), []) if isinstance(collate, Function) else []
    batch = batches[0] if len(batches) == 1 else None
    return batch.find(item.index) if isinstance(batch, Collection) else None
