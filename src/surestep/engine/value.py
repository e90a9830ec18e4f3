"""Values of metrics: what they are, and how they are read and printed. It needs no torch."""

from collections import OrderedDict
from collections.abc import Mapping
from copy import deepcopy
from typing import Any, Self

from surestep.base.text import one_line

Value = float | list[Any]  # a table is a list of lists


class Metrics(dict[str, float]):
    """The numbers of an evaluation, by "split/metric".

    Attributes:
        tables: metrics that are not a number but a list, such as a confusion matrix, which is a
            list of rows.

    Args:
        values: numbers and tables.
    """

    def __init__(self, values: Mapping[str, Value] | None = None) -> None:
        values = values or {}
        super().__init__(
            {name: value for name, value in values.items() if not isinstance(value, list)}
        )
        self.tables = {name: value for name, value in values.items() if isinstance(value, list)}

    def __missing__(self, name: str) -> float:
        """Name the attribute that has a table.

        Raises:
            KeyError: there is no number of this name.
        """
        is_table = name in self.tables
        raise KeyError(f"{name} is a table: use metrics.tables[{name!r}]" if is_table else name)

    def __eq__(self, other: object) -> bool:
        """Compare numbers and tables; with a plain dict, only the numbers."""
        has_equal_tables = not isinstance(other, Metrics) or self.tables == other.tables
        return super().__eq__(other) if has_equal_tables else False

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = None  # as of a dict

    def __repr__(self) -> str:
        return repr(self.with_tables())

    def __copy__(self) -> Self:
        return type(self)(self.with_tables())

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return type(self)(deepcopy(self.with_tables(), memo))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle a dict of numbers and tables, which `torch.load` accepts with `weights_only`."""
        return OrderedDict, (), None, None, iter(self.with_tables().items())

    def with_tables(self) -> dict[str, Value]:
        """Return numbers and tables in one dict."""
        return {**self, **self.tables}


def number(value: Value) -> float:
    """Return a value that is a number; NaN for a table."""
    return float("nan") if isinstance(value, list) else value


def shown(metrics: Mapping[str, Value]) -> str:
    """Return metrics as a line of text, without tables."""
    numbers = {name: value for name, value in metrics.items() if not isinstance(value, list)}
    return "  ".join(f"{one_line(name)} {value:.4g}" for name, value in numbers.items())
