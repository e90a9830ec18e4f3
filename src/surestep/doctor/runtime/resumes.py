"""Trainings that resume from a checkpoint, and the epochs and steps that they save."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakSet, ref

from surestep.doctor.problem import NOWHERE, Location
from surestep.doctor.runtime.passes import Pass
from surestep.doctor.runtime.tally import Occurrence
from surestep.doctor.source.checkpoints import EPOCH_KEY
from surestep.doctor.watcher import Script, Watcher

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer
    from torch.utils.data import DataLoader

_MOST_LOADED = 8  # checkpoints that no model was trained from yet
_MOST_TRAININGS = 16
_MOST_SERIES = 32  # of a training
_MOST_GROUPS = 16  # of an optimizer, whose parameters are compared
_TEMPORARY = frozenset(("tmp", "temp", "new", "partial"))


@dataclass(eq=False)
class Loaded:
    """A checkpoint that `torch.load` returned.

    Attributes:
        numbers: of epochs and steps, by their names.
        names: of all entries.
        words: in the name of the file.
        tensors: some of each state of a model.
        modules: that got such a state, before they were trained.
        location: of the first `load_state_dict`.
        step: steps of all optimizers before it.
    """

    numbers: dict[str, int]
    names: frozenset[str]
    words: frozenset[str]
    tensors: list[ref[Tensor]]
    modules: list[ref[nn.Module]] = field(default_factory=list)
    location: Location = NOWHERE
    step: int = 0


@dataclass(frozen=True)
class Saved:
    """A number in a file, with the training passes and steps before it, in this training."""

    number: int
    passes: int
    steps: int


@dataclass(eq=False)
class SavedNumbers(Occurrence):
    """The numbers that one line saves under one name.

    Attributes:
        name: "epoch".
        location: the line.
        names: of all entries of the checkpoint.
        words: in the name of the file.
        since_step: the last step before the first one.
        first: what was saved first.
        last: what was saved last.
        follows_passes: whether the number grows by one with each pass over a DataLoader.
        follows_steps: whether it grows by one with each step of an optimizer.
        covers_every_pass: whether it was saved after the first pass, and after each one since.
    """

    name: str
    location: Location
    names: frozenset[str]
    words: frozenset[str]
    since_step: int
    first: Saved
    last: Saved
    follows_passes: bool = True
    follows_steps: bool = True
    covers_every_pass: bool = True

    @property
    def has_grown(self) -> bool:
        """Whether a later number is larger than the first one."""
        return self.last.number > self.first.number

    def add(self, saved: Saved) -> None:
        """Add a number."""
        first = self.first
        grown = saved.number - first.number
        self.follows_passes &= grown == saved.passes - first.passes
        self.follows_steps &= grown == saved.steps - first.steps
        self.covers_every_pass &= saved.passes <= self.last.passes + 1
        self.last = saved

    def compare(self, loaded: int) -> int | None:
        """Return how much larger the numbers are than if each pass or step had added one.

        It is None if they do not follow from the loaded number. 0 is certain after one pass; -1 and
        1 need an earlier number that shows how they grow.
        """
        has_passes = "epoch" in self.name and self.last.passes > 0
        count = self.last.passes if has_passes else self.last.steps
        follows = self.follows_passes if has_passes else self.follows_steps
        offset = self.last.number - count - loaded
        return offset if follows and count > 0 and abs(offset) <= 1 else None


@dataclass(eq=False)
class Training:
    """What the script does from the first step after a resume up to the next resume.

    Attributes:
        loaded: the checkpoint; None if nothing was resumed.
        before: the training before it in this process.
        step: steps of all optimizers before it.
        optimizers: where those that step were made, and with which options.
        passes: over DataLoaders that it trains on.
        finished: how many of them are over.
        saves_between_passes: whether every save was after the end of a pass.
        series: by their names and lines.
    """

    loaded: Loaded | None = None
    before: Training | None = None
    step: int = 0
    optimizers: list[tuple[Location, dict[str, Any]]] = field(default_factory=list)
    passes: int = 0
    finished: int = 0
    saves_between_passes: bool = True
    series: dict[tuple[str, Location], SavedNumbers] = field(default_factory=dict)

    @property
    def is_of_this_run(self) -> bool:
        """Whether something was trained before in this process, perhaps what was loaded."""
        return self.loaded is not None and self.loaded.step > 0

    def find_continued(self) -> Iterator[tuple[SavedNumbers, int, int]]:
        """Yield the series that continue a loaded number, this number, and by how much they differ.

        A script that starts at 0 or 1 again after it has loaded a model is left out.
        """
        for series in self.series.values():
            number = None if self.loaded is None else self.loaded.numbers.get(series.name)
            offset = None if number is None else series.compare(number)
            # A file of another name may be of another stage of the training.
            is_same_file = self.loaded is not None and series.words == self.loaded.words
            if number is None or offset is None or not is_same_file:
                continue
            if self.is_of_this_run:
                is_continued = self._is_continued_in_run(series, number)
            else:
                # A script that counts from 0 or 1 saves at most 1 first. One that saves 2, with the
                # next epoch, has also saved 2 or more before.
                least = 1 if offset == 0 else 2
                is_continued = min(number, number + offset) >= least
                is_continued &= offset == 0 or series.has_grown
            if is_continued:
                yield series, number, offset

    def _is_continued_in_run(self, series: SavedNumbers, number: int) -> bool:
        """Return whether the training before ended with the number that was loaded.

        A second phase of a training may load an earlier checkpoint, or count in its own way.
        """
        before = self.before
        earlier = before and before.series.get((series.name, series.location))
        if not before or not earlier:
            return False
        is_last = earlier.last.number == number and earlier.last.passes == before.passes
        is_steady = earlier.follows_passes or earlier.follows_steps
        return is_last and is_steady and earlier.has_grown


class Parameters:
    """Parameters that something has happened to: one of each group of some optimizers."""

    def __init__(self) -> None:
        self._parameters: dict[int, ref[Tensor]] = {}

    def add(self, optimizer: Optimizer) -> None:
        """Add those of an optimizer."""
        for parameter in list_first(optimizer):
            self._parameters[id(parameter)] = ref(parameter)

    def has_any(self, parameters: Iterable[Tensor]) -> bool:
        """Return whether one of these was added."""
        for parameter in parameters:
            known = self._parameters.get(id(parameter))
            if known is not None and known() is parameter:
                return True
        return False


def list_first(optimizer: Optimizer) -> list[Tensor]:
    """Return the first parameter of each group."""
    groups = optimizer.param_groups[:_MOST_GROUPS]
    return [group["params"][0] for group in groups if group["params"]]


class ResumeWatcher(Watcher):
    """A rule about resumes; `trainings` has the start of the run, and one for each resume.

    A resume is: a new optimizer begins to train a model that was not trained before in this
    process, and whose state came from a checkpoint with the number of an epoch or a step.
    """

    def __init__(self) -> None:
        self.trainings = [Training()]
        self._loaded: list[Loaded] = []
        self._trained = Parameters()
        self._made: WeakKeyDictionary[Optimizer, Location] = WeakKeyDictionary()
        self._passes: WeakKeyDictionary[DataLoader[Any], Pass] = WeakKeyDictionary()
        self._counted: WeakSet[DataLoader[Any]] = WeakSet()  # whose pass is one of the training

    @property
    def training(self) -> Training:
        """The last one."""
        return self.trainings[-1]

    def on_new_optimizer(self, run: Script, optimizer: Optimizer) -> None:
        self._made[optimizer] = run.locate()

    def after_load(self, run: Script, value: Any, file: Any) -> None:
        numbers = _find_numbers(value)
        tensors = _find_tensors(value) if numbers else []
        if tensors:
            loaded = Loaded(numbers, frozenset(value), _list_words(file), tensors)
            self._loaded = [*self._loaded[1 - _MOST_LOADED :], loaded]

    def on_load_state(self, run: Script, owner: Any, state: Any) -> None:
        if not self._loaded or not hasattr(owner, "parameters") or not isinstance(state, Mapping):
            return
        given = set(map(id, state.values()))
        for loaded in self._loaded:
            alive = [tensor() for tensor in loaded.tensors]
            is_from = any(tensor is not None and id(tensor) in given for tensor in alive)
            if is_from and not self._trained.has_any(owner.parameters()):
                if not loaded.modules:
                    loaded.location, loaded.step = run.locate(), run.step
                loaded.modules.append(ref(owner))

    def on_optimizer(self, run: Script, optimizer: Optimizer) -> None:
        resumed = [loaded for loaded in self._loaded if trains(optimizer, loaded)]
        if resumed and len(self.trainings) < _MOST_TRAININGS:
            self.trainings.append(Training(resumed[-1], self.training, run.step))
        self._loaded = [loaded for loaded in self._loaded if loaded not in resumed]
        self._trained.add(optimizer)
        if len(self.training.optimizers) < _MOST_SERIES:
            self.training.optimizers.append(self.identify(optimizer))

    def identify(self, optimizer: Optimizer) -> tuple[Location, dict[str, Any]]:
        """Return where an optimizer was made, and the numbers among its options."""
        kinds = (int, float, type(None))
        defaults = optimizer.defaults.items()
        options = {name: option for name, option in defaults if isinstance(option, kinds)}
        return self._made.get(optimizer, NOWHERE), options

    def on_loader(self, run: Script, loader: DataLoader[Any]) -> None:
        self._counted.discard(loader)
        self._passes[loader] = Pass(NOWHERE, run.step + 1)

    def on_batch(self, run: Script, loader: DataLoader[Any], batch: Any, seconds: float) -> None:
        if loader in self._passes:
            self._passes[loader].begin_batch(run)
            self._count_pass(loader)

    def after_loader(self, run: Script, loader: DataLoader[Any]) -> None:
        if loader in self._passes:
            self._passes[loader].end_batch(run)
            self._count_pass(loader)
            self.training.finished += loader in self._counted
            self._counted.discard(loader)
            del self._passes[loader]

    def _count_pass(self, loader: DataLoader[Any]) -> None:
        if self._passes[loader].trained and loader not in self._counted:
            self._counted.add(loader)
            self.training.passes += 1

    def on_save(self, run: Script, value: Any, file: Any) -> None:
        training, numbers = self.training, _find_numbers(value)
        if not numbers:
            return
        location = run.locate()
        training.saves_between_passes &= not self._counted
        for name, number in numbers.items():
            saved = Saved(number, training.passes, run.step - training.step)
            series = training.series.get((name, location))
            if series is not None:
                series.add(saved)
            elif len(training.series) < _MOST_SERIES:
                names, words = frozenset(value), _list_words(file)
                made = SavedNumbers(name, location, names, words, run.step, saved, saved)
                made.covers_every_pass = saved.passes == 1
                training.series[name, location] = made


def trains(optimizer: Optimizer, loaded: Loaded) -> bool:
    """Return whether an optimizer has parameters of a model that got its state from a file."""
    modules = [module for reference in loaded.modules if (module := reference()) is not None]
    held = {id(parameter) for module in modules for parameter in module.parameters()}
    return any(id(parameter) in held for parameter in list_first(optimizer))


def _find_numbers(value: Any) -> dict[str, int]:
    """Return the numbers of epochs and steps in a checkpoint, by their names."""
    if not isinstance(value, Mapping):
        return {}
    return {
        name: number
        for name, number in value.items()
        if isinstance(name, str) and type(number) is int and EPOCH_KEY.search(name)
    }


def _find_tensors(value: Mapping[Any, Any]) -> list[ref[Tensor]]:
    """Return some tensors of each state dict in a checkpoint."""
    from torch import Tensor

    states = [state for state in value.values() if isinstance(state, Mapping)]
    found = [[part for part in state.values() if isinstance(part, Tensor)] for state in states]
    return [ref(tensor) for tensors in found for tensor in tensors[:4]]


def _list_words(file: Any) -> frozenset[str]:
    """Return the words in the name of a file, without numbers and such as `tmp`."""
    path = file if isinstance(file, (str, os.PathLike)) else getattr(file, "name", "")
    name = os.path.basename(os.fspath(path)) if isinstance(path, (str, os.PathLike)) else ""
    words = re.findall("[a-z]+", os.fsdecode(name).lower())
    return frozenset(words) - _TEMPORARY
