"""Read the events of a run in bulk.

Most lines of a long run are log points that differ in their numbers only. A layout is what such
lines have in common: the text between their numbers. Where all this text is the same, the numbers
of many lines are parsed as one list of JSON. Any other line is parsed on its own, and so is each
line near one that is wrong: the results and the errors are those of `read_events`.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from itertools import chain, count, pairwise, product, starmap
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray

from surestep.base.errors import RunError
from surestep.record.events import parse_event, parse_events, read_lines
from surestep.record.io import parse_line
from surestep.record.schemas import STEPS, UNDOING, validate

_Ints = NDArray[np.int64]
_MOST_LAYOUTS = 4  # a run has one, or two if only some log points have norms of layers
_FEWEST = 16  # lines; fewer are parsed faster one by one
# A text, or the number or numbers of a value.
_TOKEN = re.compile(rb'"[^"]*"|[-\d][-.e\d]*(?:, [-\d][-.e\d]*)*')
# Numbers that replace what else lists have, and are as long. Python writes 7e99 as 7e+99.
_PLACEHOLDERS = {
    b"null": (b"7e99", None),
    b'"nan"': (b"7e199", math.nan),
    b'"inf"': (b"8e199", math.inf),
    b'"-inf"': (b"-6e199", -math.inf),
}


class LogPoints(NamedTuple):
    """Log points in order, of which none repeats a step of those before it.

    Attributes:
        event: as that of one of them, with a column instead of each number and list: an array of a
            number of each log point, (n,), and the values of all steps, (sum of `counts`,), which
            are a list if one is None.
        counts: the steps of each, (n,).
    """

    event: Mapping[str, Any]
    counts: _Ints

    @property
    def last_steps(self) -> _Ints:
        """The last step of each, (n,)."""
        last: _Ints = self.event["first"] + self.counts - 1
        return last

    @property
    def steps(self) -> _Ints:
        """The steps of all, (sum of `counts`,)."""
        ends = np.cumsum(self.counts)
        return np.repeat(self.last_steps + 1 - ends, self.counts) + np.arange(ends[-1])


def read_in_bulk(path: Path) -> Iterator[dict[str, Any] | LogPoints]:
    """Yield what `read_events` yields, with log points together where that is possible.

    Events that undo no steps may come after log points that are written after them.

    Raises:
        RunError: as `read_events`.
    """
    reader = _Reader(path)
    for lines in read_lines(path):
        yield from reader.parse(lines)


class _Reader:
    """Parses the lines of a file, and remembers their layouts.

    Args:
        path: of the file, for messages.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._layouts: list[_Layout] = []
        self._number = 1  # of the next line
        self._memory = np.empty((3, 0), np.uint8)  # new memory is as slow as what is done in it
        self._has_lists = self._has_placeholders = False

    def parse(self, data: bytes) -> list[dict[str, Any] | LogPoints]:
        """Return the events of the next lines."""
        end = data.rfind(b"\n") + 1
        try:
            items = self._parse_lines(data[:end]) if end else []
        except RunError:  # a line before it may be wrong, too
            return [*parse_events(self._path, count(self._number), data)]
        return [*items, *parse_events(self._path, count(self._number), data[end:])]

    def _parse_lines(self, data: bytes) -> list[dict[str, Any] | LogPoints]:
        text = _put_placeholders(data) if self._has_placeholders else data
        if self._memory.shape[1] < len(data):
            self._memory = np.empty((3, len(data)), np.uint8)
        lines = _Lines(
            text, self._memory, has_lists=self._has_lists, has_placeholders=text is not data
        )
        groups, is_left = [], np.ones(len(lines), dtype=np.bool_)
        for layout in self._layouts:
            groups.append(layout.find(lines, np.flatnonzero(is_left)))
            is_left[groups[-1].rows] = False
        items: dict[int, Any] = {}  # by the row of the first line
        has_steps = ~is_left  # or undoes some
        alone: list[bytes] = []

        def parse(rows: _Ints) -> None:
            for row in rows.tolist():
                line = data[lines.begins[row] : lines.ends[row]]
                items[row] = event = parse_event(self._path, 0, line)
                kind = event and event["event"]
                has_steps[row] = kind == "steps" or kind in UNDOING
                alone.extend([line] if kind == "steps" else [])

        parse(np.flatnonzero(is_left))
        for layout, group in zip(self._layouts, groups, strict=True):
            others = has_steps.copy()
            others[group.rows] = False
            breaks = np.flatnonzero(np.diff(np.cumsum(others)[group.rows])) + 1
            for begin, end in pairwise([0, *breaks.tolist(), len(group.rows)]):
                part = group.select(slice(begin, end))
                points = layout.parse(lines, part) if end - begin >= _FEWEST else None
                if points is None:
                    parse(part.rows)
                else:
                    items[int(part.rows[0])] = points
        for line in sorted(alone[-_FEWEST:], key=_has_placeholders)[-1:]:
            self._learn(line)
        self._number += len(lines)
        return [items[row] for row in sorted(items) if items[row] is not None]

    def _learn(self, line: bytes) -> None:
        """Remember the layout of a line of steps."""
        replaced = _put_placeholders(line)
        for form in (replaced, line):
            with suppress(ValueError):
                layout = _Layout(form)
                self._has_placeholders = self._has_placeholders or form != line
                self._has_lists = self._has_lists or layout.has_lists
                same = [other for other in self._layouts if other.texts == layout.texts]
                for other in same:
                    layout.codes = [*map(min, layout.codes, other.codes)]  # "d" if one is
                others = [other for other in self._layouts if other not in same]
                self._layouts = [*others, layout][-_MOST_LAYOUTS:]
                return


def _has_placeholders(line: bytes) -> bool:
    return _put_placeholders(line) != line


def _put_placeholders(data: bytes) -> bytes:
    """Return data of the same length, unless it has one of these numbers."""
    if not any(number in data for number, _ in _PLACEHOLDERS.values()):
        for before, (text, (number, _)) in product((b"[", b", "), _PLACEHOLDERS.items()):
            data = data.replace(before + text, before + number)
    return data


class _Lines:
    """Lines, and where numbers are in them.

    Args:
        data: the lines.
        memory: for what is computed, (3, at least bytes of data).
        has_lists: whether the numbers of a list are one.
        has_placeholders: whether the placeholders are not numbers.
    """

    def __init__(
        self,
        data: bytes,
        memory: NDArray[np.uint8],
        *,
        has_lists: bool,
        has_placeholders: bool = False,
    ) -> None:
        self.data, self.has_placeholders = data, has_placeholders
        self.bytes = np.frombuffer(data, np.uint8)
        self._space, space, found = (space[: len(data)] for space in memory)
        self.is_number, mask = found.view(np.bool_), space.view(np.bool_)
        np.subtract(self.bytes, ord("-"), out=space)
        np.less(space, 13, out=self.is_number)  # -./0123456789
        np.equal(self.bytes[1:], ord("e"), out=mask[1:])
        mask[1:] &= self.is_number[:-1]
        self.is_number[1:] |= mask[1:]
        self.commas = self._join_lists() if has_lists else np.empty(0, dtype=np.int64)
        np.not_equal(self.is_number[1:], self.is_number[:-1], out=mask[1:])
        self.edges = np.flatnonzero(mask[1:]) + 1
        np.equal(self.bytes, ord("\n"), out=mask)
        self.ends = np.flatnonzero(mask) + 1
        self.begins = np.concatenate(([0], self.ends[:-1]))
        self.last_edge = np.searchsorted(self.edges, self.ends)
        self.first_edge = np.concatenate(([0], self.last_edge[:-1]))

    def __len__(self) -> int:
        return len(self.ends)

    def _join_lists(self) -> _Ints:
        """Count commas between numbers, and the spaces after them, as numbers; return where."""
        data, found = self.bytes, self.is_number
        is_comma = (data[1:-2] == ord(",")) & (data[2:-1] == ord(" ")) & found[:-3] & found[3:]
        found[1:-2] |= is_comma
        found[2:-1] |= is_comma
        return np.flatnonzero(is_comma) + 1

    @cached_property
    def numbers(self) -> NDArray[np.uint8]:
        """The data with spaces instead of what is not a number; it may be changed."""
        space: NDArray[np.uint8] = self._space
        np.multiply(self.bytes, self.is_number.view(np.uint8), out=space)
        space |= ord(" ")  # each byte of a number has its bit
        return space

    def texts(self, length: int) -> NDArray[np.bytes_]:
        """Return the text of a length from each byte on."""
        count = len(self.data) - length + 1
        return np.ndarray(count, np.dtype(f"S{length}"), self.data, strides=(1,))

    def sizes(self, group: _Group) -> _Ints:
        """Return how many numbers lines of a group have for each of a line, (numbers, n)."""
        if not len(self.commas):
            return np.broadcast_to(np.int64(1), group.starts.shape)
        commas = np.searchsorted(self.commas, group.ends)
        return 1 + commas - np.searchsorted(self.commas, group.starts)


class _Group(NamedTuple):
    """Lines of one layout.

    Attributes:
        rows: their indices, (n,).
        starts: where their numbers start, (numbers of a line, n).
        ends: where they end, likewise.
    """

    rows: _Ints
    starts: _Ints
    ends: _Ints

    def select(self, which: Any) -> _Group:
        """Return some of the lines."""
        if isinstance(which, np.ndarray) and which.all():
            return self
        return _Group(self.rows[which], self.starts[:, which], self.ends[:, which])


class _Layout:
    """What lines of log points that differ in their numbers have in common.

    Args:
        line: one of them.

    Raises:
        ValueError: its numbers are not in the form that `EventWriter` writes.
    """

    def __init__(self, line: bytes) -> None:
        self.event = parse_line(line)
        leaves = [*_leaves(self.event)]
        self.is_list = np.array([isinstance(leaf, list) for leaf in leaves])
        self.codes = ["q" if type(leaf) is int else "d" for leaf in leaves]  # of `struct`
        self.has_lists = any(isinstance(leaf, list) and len(leaf) > 1 for leaf in leaves)
        spans = [token.span() for token in _TOKEN.finditer(line) if line[token.start()] != ord('"')]
        if b"\\" in line or len(spans) != len(leaves):
            raise ValueError("its numbers are not those of its event")
        lines = _Lines(line, np.empty((3, len(line)), np.uint8), has_lists=self.has_lists)
        pairs = [*map(tuple, lines.edges.reshape(-1, 2).tolist())]
        self.edges = len(lines.edges)
        self.numbers = [pairs.index(span) for span in spans]  # the others are parts of texts
        begins, ends = [0, *(end for _, end in spans)], [*(start for start, _ in spans), len(line)]
        between = [*starmap(slice, zip(begins, ends, strict=True))]
        self.texts = [line[part] for part in between]
        self.digits = [np.flatnonzero(lines.is_number[part]) for part in between]  # of texts

    def find(self, lines: _Lines, rows: _Ints) -> _Group:
        """Return which lines have this layout, of those of some rows."""
        rows = rows[(lines.last_edge - lines.first_edge)[rows] == self.edges]
        if len(rows) == len(lines):
            edges = lines.edges.reshape(-1, self.edges)
        else:
            edges = lines.edges[lines.first_edge[rows, np.newaxis] + np.arange(self.edges)]
        group = _Group(rows, edges.T[0::2][self.numbers], edges.T[1::2][self.numbers])
        ends_before, afters = [lines.begins[rows], *group.ends], [*group.starts, lines.ends[rows]]
        fits = np.ones(len(rows), dtype=np.bool_)
        for text, before, after in zip(self.texts, ends_before, afters, strict=True):
            fits &= after - before == len(text)
        group = group.select(fits)
        if not len(group.rows):
            return group
        ends_before = [lines.begins[group.rows], *group.ends]
        fits = np.ones(len(group.rows), dtype=np.bool_)
        for text, before in zip(self.texts, ends_before, strict=True):
            found = lines.texts(len(text))[before]
            if found.tobytes() != text * len(found):  # comparing each is slow
                fits &= found == text
        return group.select(fits)

    def parse(self, lines: _Lines, group: _Group) -> LogPoints | None:
        """Return the log points of some lines; None if a line is not as expected.

        The lines have this layout, and there are no other lines with steps between them.
        """
        text, sizes = self._join(lines, group), lines.sizes(group)
        counts = sizes[self.is_list][0]  # the length of all lists of a line
        if len(lines.commas) and (sizes != np.where(self.is_list[:, np.newaxis], counts, 1)).any():
            return None
        with suppress(ValueError, struct.error):
            columns = self._read_columns(orjson.loads(text), sizes)
            for extreme in (np.min, np.max):  # the schema has lower and upper limits
                leaves = (
                    [extreme(column).item()] if is_list else extreme(column).item()
                    for column, is_list in zip(columns, self.is_list, strict=True)
                )
                validate(STEPS, _fill(self.event, leaves))
            if lines.has_placeholders:
                columns = self._restore(columns, text)
            points = LogPoints(_fill(self.event, iter(columns)), counts)
            if (points.event["first"][1:] > points.last_steps[:-1]).all():
                return points
        return None

    def _join(self, lines: _Lines, group: _Group) -> bytes:
        """Return the numbers of some lines as a list of JSON."""
        text = lines.numbers
        ends_before = [lines.begins[group.rows], *group.ends]
        for before, digits in zip(ends_before, self.digits, strict=True):
            if len(digits):
                text[before[:, np.newaxis] + digits] = ord(" ")
        text[group.starts - 1] = ord(",")
        text[group.starts[0, 0] - 1] = ord("[")
        text[lines.ends[group.rows[-1]] - 1] = ord("]")
        gaps = np.flatnonzero(np.diff(group.rows) != 1) + 1
        parts = pairwise([0, *gaps.tolist(), len(group.rows)])
        rows = ((group.rows[begin], group.rows[end - 1]) for begin, end in parts)
        return b"".join(text[lines.begins[first] : lines.ends[last]].data for first, last in rows)

    def _read_columns(self, values: list[Any], sizes: _Ints) -> list[NDArray[Any]]:
        """Return a column of each leaf.

        Raises:
            struct.error: an integer has a fraction, or is too large.
        """
        assert len(values) == sizes.sum()
        if len(values) == sizes.size:
            parts = (values[at :: len(sizes)] for at in range(len(sizes)))
        else:
            ends = np.cumsum(sizes.T).reshape(sizes.shape[::-1]).T
            slices = (map(slice, end - size, end) for end, size in zip(ends, sizes, strict=True))
            parts = ([*chain.from_iterable(map(values.__getitem__, part))] for part in slices)
        return [
            np.frombuffer(struct.pack(f"{len(part)}{code}", *part), code)
            for part, code in zip(parts, self.codes, strict=True)
        ]

    def _restore(self, columns: list[NDArray[Any]], text: bytes) -> list[Any]:
        """Return columns with what the placeholders replaced.

        Raises:
            ValueError: a number has the value of one, or one is not in a list.
        """
        restored: list[Any] = [*columns]
        for number, meaning in _PLACEHOLDERS.values():
            left = text.count(number)
            for at in np.flatnonzero(self.is_list) if left else ():
                is_it = columns[at] == float(number)
                left -= int(np.count_nonzero(is_it))
                if is_it.any():
                    restored[at] = np.where(is_it, meaning, restored[at])
            if left:
                raise ValueError(f"{number!r} is also a number, or is not in a list")
        return [column.tolist() if column.dtype == object else column for column in restored]


def _leaves(value: Any) -> Iterator[Any]:
    """Yield the numbers and the lists of numbers of an event.

    Raises:
        ValueError: a list has something else.
    """
    if isinstance(value, dict):
        for item in value.values():
            yield from _leaves(item)
    elif isinstance(value, list):
        if not {int, float} >= {*map(type, value)} > set():
            raise ValueError("a list does not have numbers only")
        yield value
    elif type(value) in (int, float):
        yield value


def _fill(value: Any, leaves: Iterator[Any]) -> Any:
    """Return an event with these numbers and lists, in order."""
    if isinstance(value, dict):
        return {key: _fill(item, leaves) for key, item in value.items()}
    return next(leaves) if type(value) in (int, float, list) else value
