"""A resumed run restores the model, but not its optimizer or its GradScaler.

The script loads a checkpoint and continues at the saved epoch, but the optimizer starts without its
moments. The first updates of Adam are then much larger than before, and momentum is lost. The loss
jumps after each resume, and the run differs from one that was never stopped. A new GradScaler
starts again at its first scale and skips steps.

Ignore it if only the weights are wanted. Plain SGD without momentum has no state and is not
reported, nor is a script that does not continue at a saved epoch or step. In a run, the epochs or
steps that are saved after the resume show this.

Source: https://docs.pytorch.org/tutorials/recipes/recipes/saving_and_loading_a_general_checkpoint.html

Wrong:

    import os

    import torch

    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.AdamW(model.parameters())
    start = 0
    if os.path.exists("missing.pt"):
        checkpoint = torch.load("missing.pt", map_location="cpu")
        model.load_state_dict(checkpoint["model"])
        start = checkpoint["epoch"] + 1
    for epoch in range(start, 3):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).pow(2).mean().backward()
        optimizer.step()
        print(epoch)

Right:

    import os

    import torch

    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.AdamW(model.parameters())
    start = 0
    if os.path.exists("missing.pt"):
        checkpoint = torch.load("missing.pt", map_location="cpu")
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        start = checkpoint["epoch"] + 1
    for epoch in range(start, 3):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).pow(2).mean().backward()
        optimizer.step()
        print(epoch)
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from surestep.doctor.problem import NOWHERE, Location, Problem, at_event
from surestep.doctor.runtime.resumes import Parameters, ResumeWatcher, Training, list_first, trains
from surestep.doctor.runtime.tally import Occurrence
from surestep.doctor.source.checkpoints import EPOCH_KEY, entry_of, find_restores
from surestep.doctor.source.steps import is_enabled
from surestep.doctor.source.trace import Program, Trace
from surestep.doctor.source.training import (
    describe,
    find_actions,
    is_model,
    is_optimizer,
    is_scheduler,
    options_of,
)
from surestep.doctor.source.values import ANY, Call, Constant, Value, is_made_from, walk
from surestep.doctor.watcher import Script

if TYPE_CHECKING:
    from torch.optim import Optimizer

SEVERITY = "error"
FIX = "Save optimizer.state_dict() in the checkpoint, and give it to optimizer.load_state_dict()."
_SCALE = re.compile("scale(?!r)", re.IGNORECASE)
_MAY_RESTORE = re.compile(r"load|restore|resume|set|copy_")
_HARMLESS = frozenset("step update unscale_ zero_grad print len state_dict scale".split())


def check(program: Program) -> Iterator[Problem]:
    """Find optimizers that step after a resume, and whose state no line restores."""
    for trace in program.traces:
        restores = find_restores(trace)
        for event, model, state in restores:
            if not is_model(model) or not _is_resumed(trace, state):
                continue
            for value, kind in _find_stateful(trace).items():
                is_restored = any(_overlaps(receiver, value) for _, receiver, _ in restores)
                is_restored |= any(_may_restore(call, value) for _, call in trace.calls)
                if not is_restored:
                    yield at_event(
                        event,
                        f"The run resumes with a new {kind}: nothing restores the state of "
                        f"`{describe(value)}`.",
                    )
            break


def _is_resumed(trace: Trace, state: Value) -> bool:
    """Return whether a loop starts at an epoch that was saved with a state."""
    loops = {loop for event in trace.events for loop in event.loops}
    for value in (part for loop in loops if loop.iterated for part in walk(loop.iterated)):
        if isinstance(value, Call) and value.name in ("range", "trange") and len(value.args) > 1:
            for load, name in filter(None, map(entry_of, walk(value.args[0]))):
                if EPOCH_KEY.search(name or "") and is_made_from(state, load):
                    return True
    return False


def _find_stateful(trace: Trace) -> dict[Value, str]:
    """Return the optimizers and scalers that step, with what they are."""
    stateful: dict[Value, str] = {}
    for action in find_actions(trace):
        match action.kind, action.event.call:
            case "scaler_step", Call(receiver=Call() as scaler) if _is_plain(scaler):
                stateful[scaler] = "GradScaler"
        match options_of(action.target):
            case (Call() as optimizer,) if action.is_step and _has_state(optimizer):
                stateful[optimizer] = "optimizer"
    return stateful


def _is_plain(scaler: Call) -> bool:
    """Return whether a scaler is enabled in some runs, with the default scale."""
    return scaler.keywords.keys() <= {"device", "enabled"} and is_enabled(scaler)


def _has_state(optimizer: Call) -> bool:
    momentum = optimizer.argument(2, "momentum")
    has_momentum = isinstance(momentum, Constant) and bool(momentum.value)
    may_be_plain = optimizer.name in ("SGD", ANY)
    return optimizer.path.startswith("torch.optim.") and (has_momentum or not may_be_plain)


def _overlaps(receiver: Value, value: Value) -> bool:
    """Return whether a receiver may be an object, or hold it: a module holds no optimizer."""
    return any(v is value or not (isinstance(v, Call) or is_model(v)) for v in options_of(receiver))


def _may_restore(call: Call, value: Value) -> bool:
    """Return whether a function that is not followed gets an object, and may restore it."""
    if call.name in _HARMLESS or is_scheduler(call) or is_optimizer(call):
        return False
    # A call that saves the state of an object cannot restore it; some write into a state.
    writes = _MAY_RESTORE.search(call.name)
    stop_at = None if writes else lambda part: getattr(part, "path", "") == ".state_dict"
    return any(part is value for entry in call.arguments for part in walk(entry, stop_at=stop_at))


@dataclass(eq=False)
class _Fresh(Occurrence):
    """An optimizer or a scaler that began without its state in a resumed training.

    Attributes:
        location: where the checkpoint was loaded.
        since_step: of the training.
        name: "Adam".
        training: the resumed one.
        is_kept: whether it was used after the first save, so that it has its state for longer.
    """

    location: Location
    since_step: int
    name: str
    training: Training
    is_kept: bool = False


class CheckpointLacksStateWatcher(ResumeWatcher):
    """Find optimizers and scalers that begin without a state when a training is resumed.

    An optimizer that is made again for each epoch, or later, has no state to restore.
    """

    def __init__(self) -> None:
        super().__init__()
        self._fresh: list[_Fresh] = []
        self._of: WeakKeyDictionary[Any, _Fresh] = WeakKeyDictionary()
        self._restored = Parameters()
        self._scalers: WeakKeyDictionary[Any, int] = WeakKeyDictionary()  # steps before their use

    def on_load_state(self, run: Script, owner: Any, state: Any) -> None:
        super().on_load_state(run, owner, state)
        if hasattr(owner, "param_groups"):
            self._restored.add(owner)
        elif hasattr(owner, "unscale_"):
            self._scalers[owner] = -1
        if (fresh := self._of.pop(owner, None)) is not None:
            self._fresh.remove(fresh)

    def on_optimizer(self, run: Script, optimizer: Optimizer) -> None:
        super().on_optimizer(run, optimizer)
        earlier = self.training.before.optimizers if self.training.before else []
        is_alike = self.identify(optimizer) in earlier or not self.training.is_of_this_run
        is_restored = bool(optimizer.state) or self._restored.has_any(list_first(optimizer))
        if is_alike and not is_restored and self._has_just_resumed(optimizer):
            self._add(optimizer)

    def _has_just_resumed(self, optimizer: Optimizer) -> bool:
        """Return whether this is the first epoch after a resume, with the model of an optimizer."""
        training = self.training
        is_first = not training.series and training.finished == 0
        return training.loaded is not None and is_first and trains(optimizer, training.loaded)

    def _add(self, owner: Any) -> None:
        training = self.training
        location = NOWHERE if training.loaded is None else training.loaded.location
        fresh = _Fresh(location, training.step + 1, type(owner).__name__, training)
        self._of[owner] = fresh
        self._fresh.append(fresh)

    def after_step(self, run: Script, optimizer: Optimizer) -> None:
        fresh = self._of.get(optimizer)
        if fresh is not None and not fresh.is_kept and fresh.training.series:
            fresh.is_kept = _keeps_state(optimizer)

    def on_scale(self, run: Script, scaler: Any) -> None:
        self._scalers.setdefault(scaler, run.step)

    def on_scaler_step(self, run: Script, scaler: Any, optimizer: Optimizer) -> None:
        from surestep.doctor import private

        loaded, step = self.training.loaded, self._scalers.get(scaler, -1)
        if loaded is None or step < loaded.step:
            return
        fresh = self._of.get(scaler)
        if fresh is not None:
            fresh.is_kept |= bool(fresh.training.series)
        elif any(map(_SCALE.search, map(str, loaded.names))):
            return  # an entry may restore it
        elif self._has_just_resumed(optimizer) and private.has_first_scale(scaler):
            self._add(scaler)

    def observe(self, run: Script) -> Iterator[Problem]:
        for fresh in self._fresh:
            continued = fresh.training.find_continued() if fresh.is_kept else ()
            for series, number, _ in islice(continued, 1):
                yield fresh.report(
                    f'The run continues from "{series.name}" {number} of a checkpoint with a new '
                    f"{fresh.name}, whose state is not restored.",
                    {"name": series.name, "number": number, "new": fresh.name},
                )


def _keeps_state(optimizer: Optimizer) -> bool:
    """Return whether an optimizer has more than counts of its steps."""
    from torch import Tensor

    states = [s for s in list(optimizer.state.values())[:4] if isinstance(s, Mapping)]
    parts = [state[name] for state in states for name in state if name != "step"]
    return any(isinstance(part, Tensor) for part in parts)
