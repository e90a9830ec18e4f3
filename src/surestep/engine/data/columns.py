"""Data whose parts are columns, such as a DataFrame, where samples or tensors are read."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import Dataset

from surestep.base.errors import DataError
from surestep.engine.batch import TARGETS

_MOST = 8  # parts that may be columns; more are samples
_SCALARS = (int, float, complex, str, bytes, np.generic)


def is_table(value: Any) -> bool:
    """Return whether a value is a DataFrame or a Series, of pandas, polars or a similar library."""
    has_type = hasattr(value, "dtype") or hasattr(value, "dtypes")
    return has_type and hasattr(value, "to_numpy") and not isinstance(value, Dataset)


def describe_data(value: Any, most: int | None = 3) -> str:
    """Describe data by what torch's `default_collate` needs to be equal: parts, names and shapes.

    At most `most` parts of a tuple, list or dict are named, if it is given, and no numbers.
    """
    if value is None:
        return "None"
    kind = type(value).__name__
    if isinstance(value, (Mapping, tuple, list)):
        is_dict, count = isinstance(value, Mapping), len(value)
        names = sorted(value, key=repr) if is_dict else range(count)
        if most is not None and all(isinstance(value[name], _SCALARS) for name in names[:most]):
            return f"a {'dict' if is_dict else kind} of {count}"
        parts = [
            (f"{name!r}: " if is_dict else "") + describe_data(value[name], most)
            for name in names[:most]
        ]
        more = f", ... {count} in all" if len(parts) < count else ""
        return f"a {'dict' if is_dict else kind} of ({', '.join(parts)}{more})"
    shape = getattr(value, "shape", None)
    article = "an" if kind[0].lower() in "aeio" or kind == "ndarray" else "a"
    return f"{article} {kind}" + ("" if shape is None else f" of shape {tuple(shape)}")


def check_not_table(data: Any, part: str) -> None:
    """Check that data is not a DataFrame or a Series, whose rows are not read by their number."""
    if is_table(data):
        raise DataError(
            f"The {part} data is {describe_data(data)}, whose rows are not samples. Pass tensors: "
            f"{part}=(torch.tensor(table[inputs].to_numpy()).float(), "
            "torch.tensor(table[target].to_numpy()))."
        )


def explain_columns(data: Any, part: str) -> DataError | None:
    """Return the error for data that failed, and whose parts may be columns; else None.

    Several samples may look the same, so it is only asked when reading them as samples failed.
    """
    is_dict = isinstance(data, Mapping)
    if not isinstance(data, (Mapping, tuple, list)) or not 2 <= len(data) <= _MOST:
        return None
    parts = _members(data)
    are_samples = all(isinstance(one, (tuple, dict)) for one in parts)
    lengths = [_possible_rows(one) for one in parts if one is not None]
    rows = set.intersection(*lengths) if lengths else set()
    lacks = any(one is None or isinstance(one, _SCALARS) for one in parts)
    if are_samples or not (rows - {0, 1} or (is_dict and lacks)):
        return None
    what = "datasets" if is_dict else "samples"
    return DataError(
        f"The {part} data is {describe_data(data)}, which is read as {len(data)} {what}. If its "
        "parts are inputs and targets with a row for each sample, pass "
        f"{' '.join(_advice(data, parts, part))}"
    )


def check_validation_columns(data: Any) -> None:
    """Check that a dict of validation data is not one set, of which each entry is a column."""
    if not isinstance(data, Mapping) or all(map(_is_array, data.values())):
        return
    is_one = any(name in TARGETS for name in data)
    if is_one or any(one is None or is_table(one) for one in data.values()):
        error = explain_columns(data, "val")
        if error is not None:
            raise error


def _is_array(value: Any) -> bool:
    return isinstance(value, (Tensor, np.ndarray))


def _possible_rows(part: Any) -> set[int]:
    """Return how many rows a column can have: of a list of columns, also theirs."""
    if _is_array(part) or is_table(part):
        return {part.shape[0]} if len(part.shape) else set()
    if isinstance(part, Mapping):
        return set.intersection(*map(_possible_rows, part.values())) if part else set()
    if not isinstance(part, (tuple, list)) or not part:
        return set()
    if isinstance(part, list) and isinstance(part[0], (tuple, Mapping)):
        return set()  # these are samples
    inner = [
        set[int]() if isinstance(one, _SCALARS) else _possible_rows(one) for one in part[:_MOST]
    ]
    of_parts = set.intersection(*inner) if len(part) <= _MOST else set()
    return of_parts if isinstance(part, tuple) else {len(part)} | of_parts


def _advice(data: Any, parts: list[Any], part: str) -> list[str]:
    """Return what to pass instead, and how to convert what is in the data."""
    nested = [one for one in parts if isinstance(one, (tuple, Mapping)) or _is_list_of_columns(one)]
    if isinstance(data, Mapping):
        keys = ", ".join(f"{name!r}: ..." for name in data)
        found = [f"a dict of tensors: {part}={{{keys}}}."]
    elif any(isinstance(one, Mapping) for one in nested):
        names = [name for one in nested if isinstance(one, Mapping) for name in one]
        keys = ", ".join(f"{name!r}: ..." for name in names)
        found = [f"one dict of tensors: {part}={{{keys}, 'target': y}}."]
    elif nested:
        found = [
            f"one flat tuple of tensors: {part}=(x, t, y). The last part is the targets, and the "
            "others are arguments of the model."
        ]
    else:
        found = [f"a tuple of tensors: {part}=(x, y)."]
    flat = [*parts, *(one for inner in nested for one in _members(inner))]
    if any(map(is_table, flat)):
        found.append(
            "Convert a DataFrame or a Series with torch.tensor(table.to_numpy()), and inputs with "
            ".float() too."
        )
    if any(isinstance(one, list) and not _is_list_of_columns(one) for one in flat):
        found.append("Convert lists with torch.tensor(data).")
    if parts[-1] is None and not isinstance(data, Mapping):
        found.append(
            f"Without targets, pass {part}=(x,) and Task(inputs=lambda batch: (batch[0], None)), "
            f"with a loss that needs none; or compare the outputs with the inputs: {part}=(x, x)."
        )
    elif any(one is None or isinstance(one, _SCALARS) for one in parts):
        found.append("Each part needs a row for each sample; leave out what is None.")
    are_lists = all(isinstance(one, (list, tuple)) for one in parts)
    if isinstance(data, Mapping) and part == "train" and are_lists:
        datasets = ", ".join(map(repr, data))
        found.append(
            f"For a mixture of the datasets {datasets}, set "
            "Task(sampler=surestep.samplers.mixture({name: share, ...}))."
        )
    return found


def _members(part: Any) -> list[Any]:
    return list(part.values()) if isinstance(part, Mapping) else list(part)


def _is_list_of_columns(part: Any) -> bool:
    return isinstance(part, list) and any(_is_array(one) or is_table(one) for one in part[:_MOST])
