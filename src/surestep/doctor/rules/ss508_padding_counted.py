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

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from surestep.doctor.problem import Location, Problem, at_event
from surestep.doctor.runtime.tally import Occurrence
from surestep.doctor.runtime.tensors import is_tensor
from surestep.doctor.source.loaders import find_collated
from surestep.doctor.source.losses import SourceLoss, find_losses
from surestep.doctor.source.trace import Event, Program
from surestep.doctor.source.training import base_of, describe, options_of
from surestep.doctor.source.values import Attribute, Call, Either, Item, Unknown, Value, walk
from surestep.doctor.watcher import Script, TorchCall, Watcher

if TYPE_CHECKING:
    from torch import Tensor

SEVERITY = "error"
FIX = "Pad targets with -100, or give the loss ignore_index=PADDING."
_IGNORED = -100  # by the losses of torch, as the default
_PAD = "torch.nn.utils.rnn.pad_sequence"
_KEEPS = frozenset(
    "view reshape flatten transpose permute contiguous to cuda cpu long squeeze t clone".split()
)
_MASKS = re.compile(r"masked_(fill_?|select|scatter_?)|where|(index_)?fill_|copy_")
_MOST_PARTS = 1000  # of what a model answers
_MOST_ALIASES = 20
_MOST_VALUES = 20_000  # of targets that are stored at a time
_MOST_TABLES = 20
_FEWEST_TABLES = 5
# One or two batches are too few for `watch`.


def check(program: Program) -> Iterator[Problem]:
    """Find cross-entropies of padded targets that ignore nothing."""
    for trace in program.traces:
        for loss in find_losses(trace, "cross_entropy", "nll_loss"):
            aliases = _find_padding(loss.target, program) if _ignores_nothing(loss) else []
            if not aliases or any(_may_change(event, aliases) for event in program.events):
                continue
            if not _masks_input(loss):
                name, line = describe(aliases[-1]), aliases[-1].line
                message = f"counts the padding of `{name}`: it has no `ignore_index`."
                yield at_event(loss.event, f"`{loss.event.text}` {message}", padding_line=line)


def _ignores_nothing(loss: SourceLoss) -> bool:
    """Return whether a loss has no `ignore_index`, and is a mean or a sum."""
    limit = 3 if loss.settings is loss.event.value else 1
    has_options = {"weight", "reduce", "ignore_index"} & loss.settings.keywords.keys()
    reduction = loss.option("reduction")
    is_reduced = reduction is None or getattr(reduction, "value", "") in ("mean", "sum")
    return is_reduced and not has_options and len(loss.settings.args) < limit


def _find_padding(target: Value, program: Program) -> list[Value]:
    """Return the values from a target to the call that padded it, which comes last.

    There are none unless the source shows that call, and that the loss does not ignore its value.
    """
    found: list[Value] = []
    options = options_of(target)
    while len(options) == 1 and len(found) < _MOST_ALIASES:
        value = options[0]
        found.append(value)
        if isinstance(value, Call) and value.path == _PAD:
            padding = getattr(value.argument(2, "padding_value"), "value", 0)
            return [] if value.has_unknown_arguments or padding == _IGNORED else found
        options = options_of(find_collated(value, program) or base_of(value, _KEEPS))
    return []


def _may_change(event: Event, aliases: list[Value]) -> bool:
    """Return whether an event may write other values into targets: `y[y == 0] = -100`."""
    if event.kind == "store" and event.base is not None:
        name = event.value.name if isinstance(event.value, Attribute) else ""
        if name == "ignore_index" or getattr(event.value, "value", 0) == _IGNORED:
            return True
    value = event.call.receiver if event.call and event.call.name.endswith("_") else None
    while value is not None and not isinstance(value, (Unknown, Either)) and value not in aliases:
        value = value.base if isinstance(value, Item) else base_of(value, _KEEPS)
    return value is not None or getattr(event.target, "attr", "") == "ignore_index"


def _masks_input(loss: SourceLoss) -> bool:
    """Return whether what the model answers is masked before the loss; inside it, it may be."""
    parts = list(walk(loss.input, _MOST_PARTS, stop_at=lambda p: getattr(p, "path", "") == "()"))
    names = (part.name for part in parts if isinstance(part, Call))
    return len(parts) == _MOST_PARTS or any(map(_MASKS.fullmatch, names))


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
            seen.tables.append(table.masked_fill(table == call["ignore_index"], _IGNORED))
            matching = (found for found in self._repeats if found.shape == table.shape)
            seen.repeats.append(next(matching, None))

    def observe(self, run: Script) -> Iterator[Problem]:
        for seen in self._targets.values():
            tables = [_drop_ignored_ends(table.tolist()) for table in seen.tables]
            found = [_find_padding_in(table) for table in tables]
            value, padded = found[0][0], sum(count for _, count in found)
            is_same = value is not None and {other for other, _ in found} == {value}
            is_sure = len(found) >= _FEWEST_TABLES and is_same
            if is_sure and all(map(_is_padded_too, seen.repeats, tables)):
                total = sum(table.numel() for table in seen.tables)
                yield seen.report(
                    f"The loss counts the padding: {padded} of {total} targets are {value}, which "
                    "is only at the ends of sequences, and is not ignored.",
                    {"padding": value, "padded": padded, "targets": total},
                )


def _drop_ignored_ends(rows: list[list[int]]) -> list[list[int]]:
    """Return targets without the last positions if they are ignored in all rows.

    Models that shift their labels ignore the last one.
    """
    length = len(rows[0]) - min(_count_last(row, _IGNORED) for row in rows)
    return [row[: max(length, 1)] for row in rows]


def _find_padding_in(rows: list[list[int]]) -> tuple[int | None, int]:
    """Return the value that fills the ends of rows of different lengths, and how often.

    It is in no row before another value.
    """
    last = [row[-1] for row in rows]
    value = max(set(last), key=last.count)
    lengths = [_count_last(row, value) for row in rows]
    is_at_ends = sum(row.count(value) for row in rows) == sum(lengths)
    is_padding = len(set(lengths)) > 1 and max(lengths) > 1 and value != _IGNORED
    return (value, sum(lengths)) if is_padding and is_at_ends else (None, 0)


def _find_repeats(values: Tensor) -> Tensor:
    """Return where an input is the same as at the position before; never at the first one."""
    from torch.nn.functional import pad

    is_same = values.detach()[:, 1:] == values.detach()[:, :-1]
    return pad(is_same.unsqueeze(-1).flatten(2).all(-1), (1, 0))


def _is_padded_too(repeats: Tensor | None, rows: list[list[int]]) -> bool:
    """Return whether an input has padding where its targets have; True if that is not known.

    Targets may stay at their last value without padding, such as "after the event". The targets of
    a language model are one position before its inputs, so padding of the inputs begins later.
    """
    if repeats is None:
        return True
    starts = [len(row) - _count_last(row, row[-1]) + 2 for row in rows]
    pairs = zip(repeats[:, : len(rows[0])].tolist(), starts, strict=True)
    return all(all(row[start:]) for row, start in pairs)


def _count_last(row: list[int], value: int) -> int:
    return next((i for i, entry in enumerate(reversed(row)) if entry != value), len(row))
