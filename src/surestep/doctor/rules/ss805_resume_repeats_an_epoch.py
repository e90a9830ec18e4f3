"""A resumed run repeats the epoch that was finished, or skips one.

The checkpoint is saved after the epoch with number `epoch`, and the resumed loop starts with that
number again. The run trains one epoch twice with each resume, and all later epochs use the shuffle
and the learning rate of the epoch before. If one is added both when saving and when loading, an
epoch is skipped.

Ignore it if the checkpoint is saved before the epoch is trained. A run shows the mistake if each
pass over the DataLoader is followed by a checkpoint, and no checkpoint is saved during one.

Source: https://docs.pytorch.org/tutorials/recipes/recipes/saving_and_loading_a_general_checkpoint.html

Wrong:

    import os
    import tempfile

    import torch
    from torch.utils.data import DataLoader, TensorDataset


    def train(path: str, epochs: int) -> None:
        loader = DataLoader(TensorDataset(torch.randn(24, 4)), batch_size=8, shuffle=True)
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        start = 0
        if os.path.exists(path):
            checkpoint = torch.load(path, map_location="cpu")
            model.load_state_dict(checkpoint["model"])
            optimizer.load_state_dict(checkpoint["optimizer"])
            start = checkpoint["epoch"]
        for epoch in range(start, epochs):
            for (x,) in loader:
                optimizer.zero_grad()
                model(x).pow(2).mean().backward()
                optimizer.step()
            weights, state = model.state_dict(), optimizer.state_dict()
            torch.save({"model": weights, "optimizer": state, "epoch": epoch}, f"{path}.tmp")
            os.replace(f"{path}.tmp", path)


    checkpoint_path = os.path.join(tempfile.mkdtemp(), "last.pt")
    train(checkpoint_path, 2)
    train(checkpoint_path, 4)  # as a second start of the script would

Right:

    import os
    import tempfile

    import torch
    from torch.utils.data import DataLoader, TensorDataset


    def train(path: str, epochs: int) -> None:
        loader = DataLoader(TensorDataset(torch.randn(24, 4)), batch_size=8, shuffle=True)
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        start = 0
        if os.path.exists(path):
            checkpoint = torch.load(path, map_location="cpu")
            model.load_state_dict(checkpoint["model"])
            optimizer.load_state_dict(checkpoint["optimizer"])
            start = checkpoint["epoch"]
        for epoch in range(start, epochs):
            for (x,) in loader:
                optimizer.zero_grad()
                model(x).pow(2).mean().backward()
                optimizer.step()
            weights, state = model.state_dict(), optimizer.state_dict()
            checkpoint = {"model": weights, "optimizer": state, "epoch": epoch + 1}
            torch.save(checkpoint, f"{path}.tmp")
            os.replace(f"{path}.tmp", path)


    checkpoint_path = os.path.join(tempfile.mkdtemp(), "last.pt")
    train(checkpoint_path, 2)
    train(checkpoint_path, 4)
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from surestep.doctor.problem import Problem, at_node
from surestep.doctor.runtime.resumes import ResumeWatcher, SavedNumbers, Training
from surestep.doctor.source.checkpoints import Save, entry_of, find_saves
from surestep.doctor.source.trace import Program, SourceLoop, Trace
from surestep.doctor.source.training import find_actions, options_of, strip_iterators
from surestep.doctor.source.values import Call, Constant, Element, Operation, Value
from surestep.doctor.watcher import Script

SEVERITY = "warning"
FIX = 'Save "epoch": epoch + 1 after the epoch, and start with the saved number.'
_POSITION = re.compile(r"step|batch|iter|sample|loader|offset|position|done|finish|complete")


def check(program: Program) -> Iterator[Problem]:
    """Compare the number that is saved after an epoch with the number a resume starts at."""
    for trace in program.traces:
        starts = _find_starts(trace)
        for save in find_saves(trace):
            for name, value in save.entries().items():
                number, saved_plus = _split_sum(value)
                if len(starts.get(name, ())) != 1 or not _is_after_epoch(trace, save, number):
                    continue
                (loaded_plus,) = starts[name]
                if saved_plus + loaded_plus == 1:
                    continue
                effect = "repeats the last epoch" if saved_plus + loaded_plus < 1 else "skips one"
                message = (
                    f"A resume {effect}: the checkpoint has epoch{_plus(saved_plus)}, and the loop "
                    f'starts at checkpoint["{name}"]{_plus(loaded_plus)}.'
                )
                yield at_node(save.event.node, save.event.file, message)


def _plus(number: int) -> str:
    return f" + {number}" if number else ""


def _find_starts(trace: Trace) -> dict[str, set[int]]:
    """Return the entries of a checkpoint at which loops start, with what is added to them."""
    starts: dict[str, set[int]] = {}
    for loop in {loop for event in trace.events for loop in event.loops}:
        numbers = _find_range(loop)
        first = numbers.args[0] if numbers is not None and len(numbers.args) > 1 else None
        for option in options_of(first):
            base, plus = _split_sum(option)
            found = entry_of(base)
            if found is not None and found[1] is not None:
                starts.setdefault(found[1], set()).add(plus)
    return starts


def _find_range(loop: SourceLoop | None) -> Call | None:
    """Return the range that a loop iterates over, perhaps in a progress bar."""
    iterated = None if loop is None else strip_iterators(loop.iterated)
    is_range = isinstance(iterated, Call) and iterated.name in ("range", "trange")
    return iterated if is_range and isinstance(iterated, Call) else None


def _split_sum(value: Value) -> tuple[Value, int]:
    """Return `value` and 1 for `value + 1`."""
    match value:
        case Operation(operator="+", operands=(Constant(value=int() as plus), base)):
            return base, plus
        case Operation(operator="+", operands=(base, Constant(value=int() as plus))):
            return base, plus
    return value, 0


def _is_after_epoch(trace: Trace, save: Save, number: Value) -> bool:
    """Return whether a save is after the training of the epoch with this number."""
    loop = save.event.loop
    if not isinstance(number, Element) or loop is None or number.of is not _find_range(loop):
        return False
    index = trace.index(save.event)
    trained = [trace.index(a.event) for a in find_actions(trace) if loop in a.event.loops]
    return bool(trained) and max(trained) < index


class ResumeRepeatsAnEpochWatcher(ResumeWatcher):
    """Compare the epoch of a checkpoint with those that are saved after a resume from it."""

    def observe(self, run: Script) -> Iterator[Problem]:
        for training in self.trainings:
            found = _find_shifted(training)
            if found is not None:
                series, number, offset = found
                first = series.first.number
                effect = "repeats the last epoch" if offset < 0 else "skips one"
                yield series.report(
                    f'A resume {effect}: the checkpoint had "{series.name}" {number}, and the one '
                    f"that was saved after the next epoch has {first}.",
                    {"name": series.name, "loaded": number, "saved": first},
                )


def _find_shifted(training: Training) -> tuple[SavedNumbers, int, int] | None:
    """Return epochs that do not follow from the loaded one, with it, and the difference.

    A checkpoint with a position in the epoch may be from the middle of it. If two lines count in
    different ways, the loaded checkpoint may be from either.
    """
    loaded = training.loaded
    if loaded is None or not training.saves_between_passes:
        return None
    if any(isinstance(name, str) and _POSITION.search(name) for name in loaded.names):
        return None
    continued = {series: (number, shift) for series, number, shift in training.find_continued()}
    for series, (number, shift) in continued.items():
        alike = [other for other in training.series.values() if other.name == series.name]
        is_sure = all(continued.get(other) == (number, shift) for other in alike)
        is_same_form = series.names == loaded.names
        is_of_last = "epoch" in series.name and "best" not in series.name
        is_of_last &= series.covers_every_pass
        if shift != 0 and is_sure and is_same_form and is_of_last:
            return series, number, shift
    return None
