"""Where a script splits its data into parts for training and for evaluation."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass

from surestep.doctor.source.trace import Event, Trace, once_per_trace
from surestep.doctor.source.training import is_made_by, is_same
from surestep.doctor.source.values import Call, Instance, Item, Value, is_made_from, last_name, walk

_SELECTION = "sklearn.model_selection."
_CROSS_VALIDATIONS = frozenset(
    "cross_val_score cross_validate cross_val_predict learning_curve validation_curve "
    "permutation_test_score".split()
)
_SEARCHES = ("GridSearchCV", "RandomizedSearchCV", "HalvingGridSearchCV", "HalvingRandomSearchCV")
_HELD_OUT = re.compile(r"(^|_)(test|val|valid|validation|eval|holdout)(_|\d|$)", re.IGNORECASE)
_SUBSET = re.compile(r"train|mask|idx|index|==|<|>|:\s*\w", re.IGNORECASE)
_TRAINING = re.compile(r"(^|[^a-z])(train|training|tr)([^a-z]|$)", re.IGNORECASE)


@dataclass(frozen=True, eq=False)
class DataSplit:
    """A split of data into parts.

    Attributes:
        event: the call, or the assignment of the second slice.
        data: the values that are split.
        is_random: whether the parts are drawn at random.
    """

    event: Event
    data: tuple[Value, ...]
    is_random: bool

    def is_of(self, data: Value) -> bool:
        """Return whether data, or the same columns of it, are split."""
        return any(is_same_data(data, given) for given in self.data)

    def list_parts(self, trace: Trace) -> list[Value]:
        """Return all that the data was made from, and what its datasets and tables hold."""
        parts = [part for data in self.data for part in walk(data)]
        held = [v for p in parts if isinstance(p, Instance) for v in p.attributes.values()]
        for event in trace.events[: trace.index(self.event)]:
            if event.kind == "store" and event.base and event.target:
                is_rows = last_name(event.base) in ("loc", "iloc") and event.base.inputs
                table = event.base.inputs[0] if is_rows else event.base  # `df.loc[...] = ...`
                if table in parts and not _SUBSET.search(ast.unparse(event.target)):
                    held.append(event.value)
        return [*parts, *(part for value in held for part in walk(value))]

    def has_part(self, value: Value) -> bool:
        """Return whether a value is a part that the split gives, or what its indices select."""
        items = [part for part in walk(value) if isinstance(part, Item)]
        made = self.event.value
        return any(
            item.base is made or is_made_from(item.index, made) or self._is_slice(item)
            for item in items
        )

    def _is_slice(self, item: Item) -> bool:
        """Return whether a value is `X[:n]` of data that is split by slices."""
        is_slice = isinstance(item.node, ast.Subscript) and isinstance(item.node.slice, ast.Slice)
        return is_slice and self.event.kind == "store" and item.base is self.data[0]


@once_per_trace
def find_splits(trace: Trace) -> list[DataSplit]:
    """Return the splits of data in a trace, in order."""
    found = [_find_split(event) for event in trace.events]
    return [split for split in (*found, *_find_slices(trace)) if split is not None]


def _find_split(event: Event) -> DataSplit | None:
    call = event.call
    if call is None:
        return None
    name, first = call.name, call.argument(0, "X")
    if call.path == f"{_SELECTION}train_test_split":
        shuffle = call.keywords.get("shuffle")
        return DataSplit(event, call.args, is_random=shuffle is None)
    if call.path == "torch.utils.data.random_split":
        dataset = call.argument(0, "dataset")
        return None if dataset is None else DataSplit(event, (dataset,), is_random=True)
    if call.path.startswith(_SELECTION) and name in _CROSS_VALIDATIONS:
        data = call.argument(1, "X")
        return None if data is None else DataSplit(event, (data,), is_random=False)
    is_search = is_made_by(call.receiver, *(f"{_SELECTION}{entry}" for entry in _SEARCHES))
    is_folds = is_made_by(call.receiver, _SELECTION) and not is_search
    is_split = (name == "fit" and is_search) or (name == "split" and is_folds)
    if is_split and call.is_method and first is not None:
        return DataSplit(event, (first,), is_random=False)
    return None


def _find_slices(trace: Trace) -> list[DataSplit]:
    """Return the splits that are written as `X[:n]` and `X[n:]`."""
    firsts: dict[tuple[int, str], Value] = {}
    found = []
    for event in trace.events:
        value, target = event.value, event.target
        if event.kind != "store" or not isinstance(value, Item) or target is None:
            continue
        bounds = _bounds(value)
        if bounds is None:
            continue
        lower, upper = bounds
        if not lower:
            firsts[id(value.base), upper] = value
        elif not upper and (id(value.base), lower) in firsts and is_held_out(ast.unparse(target)):
            found.append(DataSplit(event, (value.base,), is_random=False))
    return found


def _bounds(item: Item) -> tuple[str, str] | None:
    """Return the source of the bounds of a slice of the samples."""
    node = item.node.slice if isinstance(item.node, ast.Subscript) else None
    if not isinstance(node, ast.Slice) or node.step is not None:
        return None
    lower, upper = (ast.unparse(entry) if entry else "" for entry in (node.lower, node.upper))
    return (lower, upper) if bool(lower) != bool(upper) else None


def is_held_out(name: str) -> bool:
    """Return whether a name is that of data for evaluation, such as "X_test"."""
    return bool(_HELD_OUT.search(name))


def is_training_name(name: str) -> bool:
    """Return whether a name is that of data for training, such as "X_train"."""
    return bool(_TRAINING.search(name))


def is_training_part(value: Value, text: str) -> bool:
    """Return whether data is only the part for training, by how it was made or by its name.

    Args:
        value: the data.
        text: its expression, such as "X_train".
    """
    if is_training_name(text):
        return True
    return any(
        isinstance(entry, Item)
        and isinstance(entry.base, Call)
        and entry.base.name in ("train_test_split", "random_split")
        for entry in walk(value)
    )


def is_same_data(a: Value, b: Value) -> bool:
    """Return whether two values are the same data, or the same columns of a table."""
    match a, b:
        case Item(node=ast.AST() as x, base=p), Item(node=ast.AST() as y, base=q) if is_same(p, q):
            return ast.unparse(x) == ast.unparse(y)
    return is_same(a, b)


def argument_text(call: Call) -> str:
    """Return the source of the first argument of a call."""
    node = call.node
    return ast.unparse(node.args[0]) if isinstance(node, ast.Call) and node.args else ""
