"""The loss counts the padding of targets as if it were to be predicted.

Sequences of different lengths are padded to be stacked. A cross-entropy without `ignore_index`
counts the padding as well: the model learns to predict padding, the loss looks lower than it
is, and it depends on which lengths are in a batch. Nothing fails.

A loss with `reduction="none"`, which you can mask, is not reported, nor is a value for padding that
the loss ignores already (-100). While a script runs, padding is a value that fills the ends of
sequences of different lengths, and is at no other position.

Source: https://docs.pytorch.org/docs/stable/generated/torch.nn.CrossEntropyLoss.html

Wrong:

    import torch
    from torch import nn
    from torch.nn.utils.rnn import pad_sequence
    from torch.utils.data import DataLoader


    def collate(batch):
        inputs, labels = zip(*batch, strict=True)
        return pad_sequence(inputs, batch_first=True), pad_sequence(labels, batch_first=True)


    data = [(torch.randint(1, 9, (n,)), torch.randint(1, 5, (n,))) for n in (3, 5, 4, 2)]
    loader = DataLoader(data, batch_size=2, shuffle=True, collate_fn=collate)
    model = nn.Sequential(nn.Embedding(9, 8), nn.Linear(8, 5))
    criterion, optimizer = nn.CrossEntropyLoss(), torch.optim.AdamW(model.parameters())
    for tokens, labels in loader:
        optimizer.zero_grad()
        loss = criterion(model(tokens).transpose(1, 2), labels)
        loss.backward()
        optimizer.step()

Right:

    import torch
    from torch import nn
    from torch.nn.utils.rnn import pad_sequence
    from torch.utils.data import DataLoader


    def collate(batch):
        inputs, labels = zip(*batch, strict=True)
        targets = pad_sequence(labels, batch_first=True)
        targets.masked_fill_(targets == 0, -100)
        return pad_sequence(inputs, batch_first=True), targets


    data = [(torch.randint(1, 9, (n,)), torch.randint(1, 5, (n,))) for n in (3, 5, 4, 2)]
    loader = DataLoader(data, batch_size=2, shuffle=True, collate_fn=collate)
    model = nn.Sequential(nn.Embedding(9, 8), nn.Linear(8, 5))
    criterion, optimizer = nn.CrossEntropyLoss(), torch.optim.AdamW(model.parameters())
    for tokens, labels in loader:
        optimizer.zero_grad()
        criterion(model(tokens).transpose(1, 2), labels).backward()
        optimizer.step()
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from surestep.doctor.problem import Location, Problem, at_event
from surestep.doctor.rules.ss508_padding_counted.padding import (
    IGNORED,
    find_base,
    find_collated,
    find_padding,
)
from surestep.doctor.runtime.tally import Occurrence
from surestep.doctor.runtime.values import is_tensor
from surestep.doctor.source.losses import Loss, find_losses
from surestep.doctor.source.trace import Program
from surestep.doctor.source.training import describe
from surestep.doctor.source.values import Attribute, Call, Constant, Either, Unknown, Value
from surestep.doctor.watcher import Script, TorchCall, Watcher

if TYPE_CHECKING:
    from torch import Tensor

SEVERITY = "error"
FIX = "Pad targets with -100, or give the loss ignore_index=PADDING."
_FILLS = ("masked_fill_", "fill_", "masked_scatter_", "index_fill_", "copy_")
_MASKS = ("masked_fill", "where", "masked_select", "masked_scatter", *_FILLS)
_MOST_VALUES = 20_000  # of targets that are stored at a time
_MOST_TABLES = 20
_FEWEST_TABLES = 5
# One or two batches are too few for `watch`.


def check(program: Program) -> Iterator[Problem]:
    """Find cross-entropies of padded targets that ignore nothing."""
    returned = find_collated(program)
    for trace in program.traces:
        for loss in find_losses(trace, "cross_entropy", "nll_loss"):
            if _ignores_nothing(loss):
                aliases = find_padding(loss.target, returned)
                if aliases and not _is_changed(aliases, program) and not _masks_input(loss):
                    pad = aliases[-1]
                    yield at_event(
                        loss.event,
                        f"`{loss.event.text}` counts the padding of "
                        f"`{describe(pad)}`: it has no `ignore_index`.",
                        padding_line=pad.line,
                    )


def _ignores_nothing(loss: Loss) -> bool:
    """Return whether a loss has no `ignore_index`, and is a mean or a sum."""
    reduction = loss.option("reduction")
    is_reduced = reduction is None or (
        isinstance(reduction, Constant) and reduction.value in ("mean", "sum")
    )
    limit = 3 if loss.settings is loss.event.value else 1
    is_plain = loss.option("reduce") is None and loss.option("weight") is None
    return (
        is_reduced
        and is_plain
        and loss.option("ignore_index") is None
        and len(loss.settings.args) < limit
    )


def _is_changed(aliases: list[Value], program: Program) -> bool:
    """Return whether a script may write other values into its targets: `y[y == 0] = -100`."""
    for trace in program.traces:
        for event in trace.events:
            call = event.call
            if event.kind == "store" and event.base is not None and _is_ignored(event.value):
                return True
            if isinstance(event.target, ast.Attribute) and event.target.attr == "ignore_index":
                return True
            is_in_place = call is not None and call.name.endswith("_")
            if is_in_place and call is not None and _may_be(call.receiver, aliases):
                return True
    return False


def _is_ignored(value: Value | None) -> bool:
    """Return whether a value is the one that a loss ignores."""
    is_attribute = isinstance(value, Attribute) and value.name == "ignore_index"
    return is_attribute or (isinstance(value, Constant) and value.value == IGNORED)


def _may_be(value: Value | None, aliases: list[Value]) -> bool:
    """Return whether a value, or what it is a part of, is one of these or not known."""
    while value is not None:
        if isinstance(value, (Unknown, Either)) or any(value is alias for alias in aliases):
            return True
        value = find_base(value)
    return False


def _masks_input(loss: Loss) -> bool:
    """Return whether what the model answers is masked before the loss; inside it, it may be."""
    waiting = [loss.input]
    for _ in range(1000):
        if not waiting:
            return False
        value = waiting.pop()
        if isinstance(value, Call) and value.name in _MASKS:
            return True
        if not (isinstance(value, Call) and value.path == "()"):  # not into modules
            waiting.extend(value.inputs)
    return True


@dataclass
class _Targets(Occurrence):
    """The targets of the loss of one line.

    Attributes:
        location: the line.
        since_step: of the first, from 1.
        tables: some of them, with a row for each sequence.
        repeats: for each table, where the input of the model is that of the position before it;
            None if no input has such positions.
    """

    location: Location
    since_step: int
    tables: list[Tensor] = field(default_factory=list)
    repeats: list[Tensor | None] = field(default_factory=list)


class PaddingCountedWatcher(Watcher):
    """Store some targets that no value is ignored of, and find the padding at their ends."""

    FUNCTIONS = ("cross_entropy", "nll_loss")
    SAMPLED = ("on_forward", "on_call")

    def __init__(self) -> None:
        self._is_known = False  # whether an input of the current model was seen
        self._rows = 0  # of the sequences that a model got last
        self._repeats: list[Tensor] = []  # of its inputs
        self._targets: dict[Location, _Targets] = {}

    def on_forward(self, run: Script, module: Any, inputs: tuple[Any, ...]) -> None:
        if len(run.modules) == 1:
            self._is_known = next(module.parameters(), None) is None  # of a loss
        if self._is_known:
            return
        # A model that is called with keywords gives its tokens to an embedding first.
        given = [v for v in inputs if is_tensor(v) and v.dim() >= 2]
        self._is_known = bool(given)
        self._rows = len(given[0]) if given else 0
        self._repeats = [_find_repeats(v) for v in given if v.numel() <= _MOST_VALUES]

    def on_call(self, run: Script, call: TorchCall) -> None:
        target = call["target"].detach()
        is_reduced = call["reduction"] != "none" and call["weight"] is None
        is_small = 0 < target.numel() <= _MOST_VALUES and not target.is_floating_point()
        if not (is_reduced and is_small and call.result.requires_grad):
            return
        rows = len(target) if target.dim() == 2 else self._rows
        if target.dim() > 2 or rows < 2 or target.numel() % rows or target.numel() < 3 * rows:
            return
        seen = _Targets(run.locate(), run.step + 1)
        seen = self._targets.setdefault(seen.location, seen)
        if len(seen.tables) < _MOST_TABLES:
            table = target.reshape(rows, -1)
            seen.tables.append(table.masked_fill(table == call["ignore_index"], IGNORED))
            matching = (found for found in self._repeats if found.shape == table.shape)
            seen.repeats.append(next(matching, None))

    def observe(self, run: Script) -> Iterator[Problem]:
        for seen in self._targets.values():
            tables = [_drop_ignored_ends(table) for table in seen.tables]
            found = [_find_padding_in(table.tolist()) for table in tables]
            values = {value for value, _ in found}
            if len(found) < _FEWEST_TABLES or len(values) != 1 or None in values:
                continue
            if not all(map(_is_padded_too, seen.repeats, tables)):
                continue
            padded = sum(count for _, count in found)
            total = sum(table.numel() for table in seen.tables)
            yield seen.report(
                f"The loss counts the padding: {padded} of {total} targets are {found[0][0]}, which"
                " is only at the ends of sequences, and is not ignored.",
                {"padding": found[0][0], "padded": padded, "targets": total},
            )


def _drop_ignored_ends(table: Tensor) -> Tensor:
    """Return targets without the last positions if they are ignored in all rows.

    Models that shift their labels ignore the last one.
    """
    length = table.shape[1] - min(_count_last(row, IGNORED) for row in table.tolist())
    return table[:, : max(length, 1)]


def _find_padding_in(rows: list[list[int]]) -> tuple[int | None, int]:
    """Return the value that fills the ends of rows of different lengths, and how often.

    It is in no row before another value.
    """
    last = [row[-1] for row in rows]
    value = max(set(last), key=last.count)
    lengths = [_count_last(row, value) for row in rows]
    is_elsewhere = any(
        value in row[: len(row) - length] for row, length in zip(rows, lengths, strict=True)
    )
    is_padding = len(set(lengths)) > 1 and max(lengths) > 1 and value != IGNORED
    return (value, sum(lengths)) if is_padding and not is_elsewhere else (None, 0)


def _find_repeats(values: Tensor) -> Tensor:
    """Return where an input is the same as at the position before; never at the first one."""
    from torch.nn.functional import pad

    is_same = values.detach()[:, 1:] == values.detach()[:, :-1]
    return pad(is_same.flatten(2).all(-1) if is_same.dim() > 2 else is_same, (1, 0))


def _is_padded_too(repeats: Tensor | None, table: Tensor) -> bool:
    """Return whether an input has padding where its targets have; True if that is not known.

    Targets may stay at their last value without padding, such as "after the event". The targets of
    a language model are one position before its inputs, so padding of the inputs begins later.
    """
    if repeats is None:
        return True
    lengths = [_count_last(row, row[-1]) for row in table.tolist()]
    rows = repeats[:, : table.shape[1]].tolist()
    ends = [row[len(row) - n + 2 :] for row, n in zip(rows, lengths, strict=True)]
    return all(map(all, ends))


def _count_last(row: list[int], value: int) -> int:
    return next((i for i, entry in enumerate(reversed(row)) if entry != value), len(row))
