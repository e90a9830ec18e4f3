"""Data whose parts are columns, such as a DataFrame, where samples or tensors are read."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from surestep.base.errors import DataError
from surestep.base.warn import warn
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


def as_argument(part: str, value: str) -> str:
    """Return the argument of a Task for data of this name: `val={'clean': value}` for "clean"."""
    if part in ("train", "val", "test"):
        return f"{part}={value}"
    if part.startswith("train["):  # one of a mixture
        return f"train={{{part[len('train[') : -1]}: {value}}}"
    return f"val={{{part!r}: {value}}}"


def check_not_table(data: Any, part: str) -> None:
    """Check that data is not a DataFrame or a Series, whose rows are not read by their number."""
    if is_table(data):
        pair = (
            "(torch.tensor(table[inputs].to_numpy()).float(), "
            "torch.tensor(table[target].to_numpy()))"
        )
        raise DataError(
            f"The {part} data is {describe_data(data)}, whose rows are not samples. Pass tensors: "
            f"{as_argument(part, pair)}."
        )


def check_not_columns(data: Any, part: str) -> None:
    """Check that no tuple or list of columns or of datasets is read as a few samples.

    Tuples of tensors with a row for each sample look the same as samples that are sequences. A
    tuple is columns elsewhere, so it is an error; a list is samples, see `may_be_columns`.
    In a DataLoader, both are samples, as torch reads them.
    """
    if part == "train" and isinstance(data, Mapping):
        for name, one in data.items():
            check_not_columns(one, f"train[{name!r}]")
    members = data.dataset if isinstance(data, DataLoader) else data
    if not isinstance(members, (tuple, list)) or not 1 <= len(members) <= _MOST:
        return
    if all(isinstance(one, (Dataset, DataLoader)) for one in members):
        raise DataError(
            f"The {part} data is {describe_data(members)}, which is read as samples. "
            f"{_for_datasets(len(members), part)}"
        )
    if len(members) == 1:
        check_not_table(members[0], part)
    if isinstance(data, tuple) and all(map(_rows_of_set, members)):
        raise DataError(f"{_explain(data, part)} If they are samples, pass a list of them.")


def may_be_columns(data: Any) -> bool:
    """Return whether data is a list of two or three pairs of columns, or of sequences as long."""
    if not isinstance(data, list) or not 1 <= len(data) <= 3:
        return False
    rows = {0 if isinstance(one, Mapping) else _rows_of_set(one) for one in data}
    return len(rows) == 1 and rows != {0}


def warn_of_columns(data: Any) -> None:
    """Warn that training data is read as samples, although it may be columns."""
    warn(_explain(data, "train"))


def _for_datasets(count: int, part: str) -> str:
    """Return what to pass instead of a list of datasets."""
    if count == 1:
        return f"Pass its element alone: {as_argument(part, '...')}."
    if part == "val":
        return "Give each validation set a name: val={'a': ..., 'b': ...}."
    joined = as_argument(part, "torch.utils.data.ConcatDataset(datasets)")
    mixed = ", or a dict of datasets with Task(sampler=surestep.samplers.mixture(shares))"
    return f"Pass {joined}{mixed if part == 'train' else ''}."


def _rows_of_set(part: Any) -> int:
    """Return the rows of a tuple, list or dict whose tensors have a row for each sample; else 0."""
    return 0 if _is_array(part) or is_table(part) else _rows_of_all(part)


def _rows_of_all(part: Any) -> int:
    """Return the rows that all tensors of a tuple, list or dict have in common; 0 if it differs."""
    if _is_array(part) or is_table(part):
        return part.shape[0] if len(part.shape) and part.shape[0] > 1 else 0
    if not isinstance(part, (tuple, list, Mapping)):
        return 0
    found = {_rows_of_all(one) for one in _members(part)}
    return found.pop() if len(found) == 1 else 0


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
    return DataError(_explain(data, part))


def _explain(data: Any, part: str) -> str:
    what = "dataset" if isinstance(data, Mapping) else "sample"
    return (
        f"The {part} data is {describe_data(data)}, which is read as {len(data)} {what}"
        f"{'s' * (len(data) > 1)}. If its parts are inputs and targets with a row for each sample, "
        f"pass {' '.join(_advice(data, _members(data), part))}"
    )


def check_validation_columns(data: Any, part: str = "val") -> None:
    """Check that a dict of validation data is not one set, of which each entry is a column."""
    if not isinstance(data, Mapping) or all(map(_is_array, data.values())):
        return
    is_one = any(name in TARGETS for name in data)
    if is_one or any(one is None or is_table(one) for one in data.values()):
        error = explain_columns(data, part)
        if error is not None:
            raise error
    for name, one in data.items():
        check_validation_columns(one, name)


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
        found = [f"a dict of tensors: {as_argument(part, f'{{{keys}}}')}."]
    elif any(isinstance(one, Mapping) for one in nested):
        names = [name for one in nested if isinstance(one, Mapping) for name in one]
        keys = "".join(f"{name!r}: ..., " for name in names)
        pair = "{" + keys + "'target': y}"
        found = [f"one dict of tensors: {as_argument(part, pair)}."]
    elif nested:
        found = [
            f"one flat tuple of tensors: {as_argument(part, '(x, t, y)')}. The last part is the "
            "targets, and the others are arguments of the model."
        ]
    else:
        found = [f"a tuple of tensors: {as_argument(part, '(x, y)')}."]
    if len(parts) > 1 and not isinstance(data, Mapping):
        found += _for_several(parts, part)
    return found + _conversions(data, parts, nested, part)


def _for_several(parts: list[Any], part: str) -> list[str]:
    """Return what to pass for several targets, or for several sets of the same form."""
    found = []
    targets = parts[-1]
    if isinstance(targets, tuple) or _is_list_of_columns(targets):
        count = len(targets)
        found.append(
            f"For {count} targets, set Task(inputs=lambda batch: (batch[:-{count}], "
            f"batch[-{count}:])) too, with a loss that takes them as a tuple."
        )
    if part in ("train", "val") and all(map(_rows_of_set, parts)):
        sets = "train=(x, y), val=(xv, yv)" if part == "train" else "val={'a': (x, y), 'b': ...}"
        found.append(f"If its parts are sets of samples, pass {sets}.")
    return found


def _conversions(data: Any, parts: list[Any], nested: list[Any], part: str) -> list[str]:
    found = []
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
            f"Without targets, pass {as_argument(part, '(x,)')} and Task(inputs=lambda batch: "
            "(batch[0], None)), with a loss that needs none; or compare the outputs with the "
            f"inputs: {as_argument(part, '(x, x)')}."
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
