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
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from surestep.doctor.problem import NOWHERE, Problem, at_event
from surestep.doctor.runtime.resumes import (
    Parameters,
    ResumeWatcher,
    Training,
    list_first,
    read_options,
    trains,
)
from surestep.doctor.source.checkpoints import EPOCH_KEY, entry_of, find_restores, is_restored_from
from surestep.doctor.source.trace import Program, SourceLoop, Trace
from surestep.doctor.source.training import (
    describe,
    find_actions,
    is_made_by,
    is_model,
    is_optimizer,
    is_scaler,
    is_scheduler,
    options_of,
)
from surestep.doctor.source.values import Call, Constant, Value, walk
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
            load = _find_resume(trace, state)
            if load is None or not is_model(model):
                continue
            for kind, value in _find_stateful(trace).items():
                restored = [receiver for _, receiver, _ in restores if _overlaps(receiver, kind)]
                if not restored and not _is_given_away(trace, kind):
                    yield at_event(
                        event,
                        f"The run resumes with a new {value}: nothing restores the state of "
                        f"`{describe(kind)}`.",
                    )
            break


def _find_resume(trace: Trace, state: Value) -> Call | None:
    """Return the `torch.load` of a state if a loop starts at an epoch that was saved with it."""
    loops: set[SourceLoop] = {loop for event in trace.events for loop in event.loops}
    numbers = [part for loop in loops if loop.iterated for part in _start_of(loop.iterated)]
    for number in numbers:
        load, name = entry_of(number) or (None, None)
        if load is not None and EPOCH_KEY.search(name or "") and is_restored_from(state, load):
            return load
    return None


def _start_of(iterated: Value) -> Iterator[Value]:
    for part in walk(iterated):
        if isinstance(part, Call) and part.name in ("range", "trange") and len(part.args) > 1:
            yield from walk(part.args[0])


def _find_stateful(trace: Trace) -> dict[Value, str]:
    """Return the optimizers and scalers that step, with what they are."""
    stateful: dict[Value, str] = {}
    for action in find_actions(trace):
        if not action.is_step:
            continue
        call = action.event.call
        scaler = call.receiver if action.kind == "scaler_step" and call is not None else None
        if isinstance(scaler, Call) and is_scaler(scaler) and _is_plain(scaler):
            stateful[scaler] = "GradScaler"
        options = options_of(action.target)
        if len(options) == 1 and _has_state(options[0]):
            stateful[options[0]] = "optimizer"
    return stateful


def _is_plain(scaler: Call) -> bool:
    """Return whether a scaler is enabled in some runs, with the default scale."""
    enabled = scaler.keywords.get("enabled")
    is_off = isinstance(enabled, Constant) and not enabled.value
    return scaler.keywords.keys() <= {"device", "enabled"} and not is_off


def _has_state(optimizer: Value) -> bool:
    if not is_made_by(optimizer, "torch.optim.") or not isinstance(optimizer, Call):
        return False
    momentum = optimizer.argument(2, "momentum")
    has_momentum = isinstance(momentum, Constant) and bool(momentum.value)
    return has_momentum or optimizer.name != "SGD"


def _overlaps(receiver: Value, value: Value) -> bool:
    return any(option is value or not isinstance(option, Call) for option in options_of(receiver))


def _is_given_away(trace: Trace, value: Value) -> bool:
    """Return whether a function that is not followed gets the object, and may restore it."""
    return any(_gets(call, value) for _, call in trace.calls)


def _gets(call: Call, value: Value) -> bool:
    if call.name in _HARMLESS or is_scheduler(call) or is_optimizer(call):
        return False
    # A call that saves the state of an object cannot restore it; some write into a state.
    may_restore = _MAY_RESTORE.search(call.name)
    stop_at = None if may_restore else lambda part: getattr(part, "path", "") == ".state_dict"
    return any(part is value for entry in call.arguments for part in walk(entry, stop_at=stop_at))


@dataclass(eq=False)
class _Fresh:
    """An optimizer or a scaler that began without its state in a resumed training.

    Attributes:
        name: "Adam".
        training: the resumed one.
        is_known: whether one like it was trained with before in this process.
        is_kept: whether it was used after the first save, so that it has its state for longer.
    """

    name: str
    training: Training
    is_known: bool
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
        else:
            return
        if (fresh := self._of.pop(owner, None)) is not None:
            self._fresh.remove(fresh)

    def on_optimizer(self, run: Script, optimizer: Optimizer) -> None:
        super().on_optimizer(run, optimizer)
        is_restored = bool(optimizer.state) or self._restored.has_any(list_first(optimizer))
        if self._has_just_resumed(optimizer) and not is_restored:
            before = self.training.before
            made = self._made.get(optimizer, NOWHERE), read_options(optimizer)
            self._add(optimizer, is_known=before is not None and made in before.optimizers)

    def _has_just_resumed(self, optimizer: Optimizer) -> bool:
        """Return whether this is the first epoch after a resume, with the model of an optimizer."""
        training = self.training
        is_first = not training.series and training.finished == 0
        return training.loaded is not None and is_first and trains(optimizer, training.loaded)

    def _add(self, owner: Any, *, is_known: bool) -> None:
        fresh = _Fresh(type(owner).__name__, self.training, is_known)
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
        elif self._has_just_resumed(optimizer) and private.has_first_scale(scaler):
            if any(_SCALE.search(str(name)) for name in loaded.names):
                return  # of an entry that may restore it
            self._add(scaler, is_known=True)

    def observe(self, run: Script) -> Iterator[Problem]:
        for fresh in self._fresh:
            training = fresh.training
            if not fresh.is_kept or training.loaded is None:
                continue
            is_alike = fresh.is_known or not training.is_of_this_run
            for series, number, _ in training.find_continued() if is_alike else ():
                yield Problem(
                    f'The run continues from "{series.name}" {number} of a checkpoint with a new '
                    f"{fresh.name}, whose state is not restored.",
                    {"name": series.name, "number": number, "new": fresh.name},
                    location=training.loaded.location,
                    since_step=training.step + 1,
                )
                break


def _keeps_state(optimizer: Optimizer) -> bool:
    """Return whether an optimizer has more than counts of its steps."""
    from torch import Tensor

    states = [s for s in list(optimizer.state.values())[:4] if isinstance(s, Mapping)]
    parts = [state[name] for state in states for name in state if name != "step"]
    return any(isinstance(part, Tensor) for part in parts)
