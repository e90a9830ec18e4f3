"""The loss counts the padding of targets as if it were to be predicted.

Sequences of different lengths are padded to be stacked. A cross-entropy without `ignore_index`
counts the padding as well: the model learns to predict padding, the loss looks lower than it
is, and it depends on which lengths are in a batch. Nothing fails.

A loss with `reduction="none"`, which you can mask, is not reported, nor is a value for padding that
the loss ignores already (-100). While a script runs, padding is a value that fills the ends of
sequences of different lengths, and is at no other position.

Source: https://docs.pytorch.org/docs/stable/generated/torch.nn.CrossEntropyLoss.html
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from surestep.doctor.problem import Problem, at_event
from surestep.doctor.source.losses import Loss, find_losses
from surestep.doctor.source.trace import Program
from surestep.doctor.source.training import describe, options_of, tensor_of
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
from surestep.doctor.watcher import Call as Called
from surestep.doctor.watcher import Location, Observation, Run, Watcher

if TYPE_CHECKING:
    from torch import Tensor

SEVERITY = "error"
FIX = "Pad targets with -100, or give the loss ignore_index=PADDING."
_PAD = "torch.nn.utils.rnn.pad_sequence"
_KEEPS = frozenset(
    "view reshape flatten transpose permute contiguous to cuda cpu long squeeze t clone".split()
)
_IGNORED = -100
_MOST_VALUES = 20_000  # of targets that are stored at a time
_MOST_TABLES = 20
_FEWEST_TABLES = 5
WATCH_SKIPS = ("bad_collated", "bad_language_model", "bad_in_methods")  # one or two batches
CHECK_SKIPS = ("bad_padded_with_zeros",)


def check(program: Program) -> Iterator[Problem]:
    """Find cross-entropies of padded targets that ignore nothing."""
    returned = _find_collated(program)
    for trace in program.traces:
        for loss in find_losses(trace, "cross_entropy", "nll_loss"):
            if _ignores_nothing(loss):
                pad = _find_padding(loss.target, returned)
                if pad is not None and not _is_changed(loss.target, program):
                    yield at_event(
                        loss.event,
                        f"`{describe(loss.event.value)}` counts the padding of "
                        f"`{describe(pad)}`: it has no `ignore_index`.",
                        padding_line=getattr(pad.node, "lineno", None),
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


def _find_collated(program: Program) -> dict[int, list[Value]]:
    """Return what each function returns, by the identity of its source."""
    found: dict[int, list[Value]] = {}
    for trace in program.traces:
        for event in trace.events:
            if event.kind == "return" and event.stack:
                found.setdefault(id(event.stack[-1].definition), []).append(event.value)
    return found


def _find_padding(value: Value, returned: dict[int, list[Value]]) -> Call | None:
    """Return the call that padded a target with a value that is not ignored."""
    for _ in range(20):
        options = options_of(value)
        if len(options) != 1:
            return None
        value = options[0]
        if isinstance(value, Item):
            inner = _find_in_batch(value, returned)
            if inner is None and not _is_slice(value.index):
                return None
            value = value.base if inner is None else inner
        elif isinstance(value, Call) and value.path == _PAD:
            return value if _is_counted(value) else None
        elif isinstance(value, Call) and value.name in _KEEPS:
            inner = tensor_of(value)
            if inner is None:
                return None
            value = inner
        else:
            return None
    return None


def _is_slice(index: Value) -> bool:
    """Return whether an index keeps a range, unlike a mask."""
    parts = index.elements if isinstance(index, Collection) else [index]
    return all(isinstance(entry, Operation) and entry.operator == ":" for entry in parts)


def _is_counted(pad: Call) -> bool:
    padding = pad.argument(2, "padding_value")
    if pad.has_unknown_arguments:
        return False
    return padding is None or not (isinstance(padding, Constant) and padding.value == _IGNORED)


def _find_in_batch(item: Item, returned: dict[int, list[Value]]) -> Value | None:
    """Return what a `collate_fn` returns at an index of a batch."""
    if not isinstance(item.base, Element) or not isinstance(item.index, Constant):
        return None
    loaders = options_of(item.base.of)
    loader = loaders[0] if len(loaders) == 1 else None
    if not isinstance(loader, Call) or loader.path != "torch.utils.data.DataLoader":
        return None
    collate = loader.argument(6, "collate_fn")
    batches = returned.get(id(collate.definition), []) if isinstance(collate, Function) else []
    index = item.index.value
    if len(batches) != 1 or not isinstance(batches[0], Collection) or not batches[0].is_complete:
        return None
    batch = batches[0]
    if batch.keys:
        pairs = zip(batch.keys, batch.elements, strict=False)
        return next(
            (v for key, v in pairs if isinstance(key, Constant) and key.value == index), None
        )
    if not isinstance(index, int) or not -len(batch.elements) <= index < len(batch.elements):
        return None
    return batch.elements[index]


def _is_changed(target: Value, program: Program) -> bool:
    """Return whether a script may write other values into its targets: `y[y == 0] = -100`."""
    names = ("masked_fill_", "masked_fill", "where", "fill_", "masked_scatter_")
    for trace in program.traces:
        for event in trace.events:
            if event.kind == "store" and event.base is not None:
                if isinstance(event.value, Constant) and event.value.value == _IGNORED:
                    return True
            if event.call is not None and event.call.name in names:
                return True
    return False


@dataclass
class _Targets:
    """The targets of the loss of one line.

    Attributes:
        location: the line.
        since_step: of the first, from 1.
        tables: some of them, with a row for each sequence.
    """

    location: Location
    since_step: int
    tables: list[Tensor] = field(default_factory=list)


class Watch(Watcher):
    """Store some targets that no value is ignored of, and find the padding at their ends."""

    FUNCTIONS = ("cross_entropy", "nll_loss")

    def __init__(self) -> None:
        self._rows = 0  # of the sequences that a model got last
        self._targets: dict[Location, _Targets] = {}

    def on_forward(self, run: Run, module: Any, inputs: tuple[Any, ...]) -> None:
        if len(run.modules) == 1 and run.is_sampled:
            sizes = [value.shape for value in inputs if hasattr(value, "untyped_storage")]
            self._rows = next((size[0] for size in sizes if len(size) >= 2), 0)

    def on_call(self, run: Run, call: Called) -> None:
        target = call["target"].detach()
        is_reduced = call["reduction"] != "none" and call["weight"] is None
        is_small = 0 < target.numel() <= _MOST_VALUES and not target.is_floating_point()
        if not (run.is_sampled and is_reduced and is_small and call.result.requires_grad):
            return
        rows = len(target) if target.dim() == 2 else self._rows
        if target.dim() > 2 or rows < 2 or target.numel() % rows or target.numel() < 3 * rows:
            return
        seen = _Targets(run.locate(), run.step + 1)
        seen = self._targets.setdefault(seen.location, seen)
        if len(seen.tables) < _MOST_TABLES:
            ignored = target.reshape(rows, -1) == call["ignore_index"]
            seen.tables.append(target.reshape(rows, -1).masked_fill(ignored, _IGNORED))

    def observe(self, run: Run) -> Iterator[Observation]:
        for seen in self._targets.values():
            found = [_find_padding_in(table.tolist()) for table in seen.tables]
            values = {value for value, _ in found}
            if len(found) < _FEWEST_TABLES or len(values) != 1 or None in values:
                continue
            padded = sum(count for _, count in found)
            total = sum(table.numel() for table in seen.tables)
            yield Observation(
                seen.location,
                f"The loss counts the padding: {padded} of {total} targets are {found[0][0]}, which"
                " is only at the ends of sequences, and is not ignored.",
                seen.since_step,
                {"padding": found[0][0], "padded": padded, "targets": total},
            )


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
    is_padding = len(set(lengths)) > 1 and max(lengths) > 1 and value != _IGNORED
    return (value, sum(lengths)) if is_padding and not is_elsewhere else (None, 0)


def _count_last(row: list[int], value: int) -> int:
    return next((i for i, entry in enumerate(reversed(row)) if entry != value), len(row))


def bad_collated():
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


def bad_language_model():
    import torch
    import torch.nn.functional as F
    from torch.nn.utils.rnn import pad_sequence

    PAD = 0
    model = torch.nn.Sequential(torch.nn.Embedding(9, 8), torch.nn.Linear(8, 9))
    texts = [torch.randint(1, 9, (n,)) for n in (3, 5, 4)]
    tokens = pad_sequence(texts, batch_first=True, padding_value=PAD)
    logits = model(tokens[:, :-1])
    F.cross_entropy(logits.reshape(-1, 9), tokens[:, 1:].reshape(-1)).backward()


def bad_in_methods():
    import torch
    from torch import nn
    from torch.nn.utils import rnn

    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Embedding(9, 8), nn.Linear(8, 4), nn.LogSoftmax(-1))
            self.loss = nn.NLLLoss(reduction="sum")

        def forward(self, inputs, tags):
            targets = rnn.pad_sequence(tags, batch_first=True)
            output = self.net(rnn.pad_sequence(inputs, batch_first=True))
            return self.loss(output.flatten(0, 1), targets.flatten())

    inputs = [torch.randint(1, 9, (n,)) for n in (3, 5)]
    Tagger()(inputs, [torch.randint(1, 4, (n,)) for n in (3, 5)]).backward()


def good_ignored():
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
    criterion = nn.CrossEntropyLoss(ignore_index=0)
    optimizer = torch.optim.AdamW(model.parameters())
    for tokens, labels in loader:
        optimizer.zero_grad()
        criterion(model(tokens).transpose(1, 2), labels).backward()
        optimizer.step()


def good_padded_with_ignored_value():
    import torch
    import torch.nn.functional as F
    from torch.nn.utils.rnn import pad_sequence

    model = torch.nn.Sequential(torch.nn.Embedding(9, 8), torch.nn.Linear(8, 5))
    tokens = pad_sequence([torch.randint(1, 9, (n,)) for n in (3, 5)], batch_first=True)
    labels = [torch.randint(5, (n,)) for n in (3, 5)]
    targets = pad_sequence(labels, batch_first=True, padding_value=-100)
    F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten()).backward()


def good_masked():
    import torch
    import torch.nn.functional as F
    from torch.nn.utils.rnn import pad_sequence

    model = torch.nn.Sequential(torch.nn.Embedding(9, 8), torch.nn.Linear(8, 9))
    tokens = pad_sequence([torch.randint(1, 9, (n,)) for n in (3, 5, 4)], batch_first=True)
    logits, targets = model(tokens[:, :-1]), tokens[:, 1:]
    losses = F.cross_entropy(logits.transpose(1, 2), targets, reduction="none")
    mask = targets != 0
    ((losses * mask).sum() / mask.sum()).backward()
    F.cross_entropy(model(tokens[:, :-1])[mask], targets[mask]).backward()


def good_label_of_a_sequence():
    import torch
    import torch.nn.functional as F
    from torch.nn.utils.rnn import pad_sequence

    embed, out = torch.nn.Embedding(9, 8, padding_idx=0), torch.nn.Linear(8, 3)
    texts = [torch.randint(1, 9, (n,)) for n in (3, 5, 4)]
    tokens = pad_sequence(texts, batch_first=True)
    hidden = embed(tokens).sum(1) / (tokens != 0).sum(1, keepdim=True)
    F.cross_entropy(out(hidden), torch.tensor([0, 2, 1])).backward()


def bad_padded_with_zeros():
    import torch
    from torch import nn

    model = nn.Sequential(nn.Embedding(12, 16), nn.Linear(16, 12))
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(8):
        tokens = torch.zeros(6, 10, dtype=torch.long)
        for row in tokens:
            length = int(torch.randint(3, 10, ()))
            row[:length] = torch.randint(1, 12, (length,))
        logits = model(tokens[:, :-1])
        loss = nn.functional.cross_entropy(logits.reshape(-1, 12), tokens[:, 1:].reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def good_value_that_is_also_elsewhere():
    import torch
    from torch import nn

    model = nn.Sequential(nn.Embedding(12, 16), nn.Linear(16, 3))
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(8):
        words = torch.randint(12, (6, 10))
        tags = (words > 9).long()  # most words have the tag 0, also at the ends
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(words).transpose(1, 2), tags).backward()
        optimizer.step()


def good_padding_is_ignored_in_a_loop():
    import torch
    from torch import nn

    model = nn.Sequential(nn.Embedding(12, 16, padding_idx=0), nn.Linear(16, 12))
    criterion = nn.CrossEntropyLoss(ignore_index=0)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(8):
        tokens = torch.zeros(6, 10, dtype=torch.long)
        for row in tokens:
            length = int(torch.randint(3, 10, ()))
            row[:length] = torch.randint(1, 12, (length,))
        optimizer.zero_grad()
        criterion(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()).backward()
        optimizer.step()
