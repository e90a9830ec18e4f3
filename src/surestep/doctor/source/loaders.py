"""The DataLoaders that a script makes, and the loops over them."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from surestep.doctor.source.trace import Event, Program, SourceLoop, Trace
from surestep.doctor.source.training import find_actions, is_made_by, options_of
from surestep.doctor.source.values import (
    Call,
    Class,
    Collection,
    Constant,
    Element,
    Function,
    Instance,
    Item,
    Value,
)
from surestep.doctor.source.wrapping import PREPARES

_PARAMETERS = (
    "dataset batch_size shuffle sampler batch_sampler num_workers collate_fn pin_memory drop_last "
    "timeout worker_init_fn".split()
)
_PATHS = ("torch.utils.data.DataLoader", "torch.utils.data.dataloader.DataLoader")
_ITERATORS = frozenset("enumerate tqdm trange track iter islice cycle prange progress_bar".split())


@dataclass(frozen=True, eq=False)
class SourceLoader:
    """A DataLoader.

    Attributes:
        event: that makes it.
        call: likewise.
    """

    event: Event
    call: Call

    def option(self, name: str) -> Value | None:
        """Return an argument; None if it is not given."""
        position = _PARAMETERS.index(name) if name in _PARAMETERS else -1
        return self.call.argument(position, name)

    def is_set(self, name: str) -> bool:
        """Return whether an argument is given that is not None or False."""
        value = self.option(name)
        return value is not None and not (isinstance(value, Constant) and not value.value)

    @property
    def workers(self) -> int:
        """The number of workers; 0 if it is not a number in the source."""
        number = self.option("num_workers")
        return number.value if isinstance(number, Constant) and type(number.value) is int else 0

    @property
    def dataset(self) -> Instance | None:
        """The dataset, if it is an object of a class of the project."""
        options = options_of(self.option("dataset"))
        only = options[0] if len(options) == 1 else None
        return only if isinstance(only, Instance) else None


def find_loader_call(iterated: Value | None) -> Call | None:
    """Return the call that made a DataLoader; None if a value may be something else too."""
    match options_of(iterated):
        case (Call(path="torch.utils.data.DataLoader") as call,):
            return call
    return None


def find_collated(part: Value, program: Program) -> Value | None:
    """Return what the `collate_fn` of a loader puts at an index of a batch; None if not known."""
    if not isinstance(part, Item) or not isinstance(part.base, Element):
        return None
    loader = find_loader_call(part.base.of)
    collate = loader and loader.argument(_PARAMETERS.index("collate_fn"), "collate_fn")
    returns = [event for event in program.events if event.kind == "return" and event.stack]
    definition = getattr(collate, "definition", None)
    match [event.value for event in returns if event.stack[-1].definition is definition]:
        case [Collection() as batch]:
            return batch.find(part.index)
    return None


def gives_batches(iterated: Value | None) -> bool:
    """Return whether a value is certainly a DataLoader, of batches and not of single samples."""
    is_loader = is_made_by(iterated, "torch.utils.data.DataLoader")
    made = [option for option in options_of(iterated) if isinstance(option, Call)]
    sizes = [call.argument(1, "batch_size") for call in made]
    return is_loader and not any(isinstance(s, Constant) and s.value is None for s in sizes)


def find_loaders(trace: Trace) -> list[SourceLoader]:
    """Return the DataLoaders that a trace makes; not those whose arguments cannot be seen."""
    return [
        SourceLoader(event, event.call)
        for event in trace.events
        if event.call is not None
        and event.call.path in _PATHS
        and not event.call.has_unknown_arguments
    ]


def find_training_loops(trace: Trace, loader: SourceLoader) -> list[tuple[SourceLoop, ...]]:
    """Return the loops over a loader in which an optimizer steps, each with those around it.

    Loops that make the loader are left out. There are none if an Accelerator or the like replaces
    the loader.
    """
    prepares = (call for _, call in trace.calls)
    given = (arg for call in prepares if call.name in PREPARES for arg in call.args)
    if any(loader.call in options_of(arg) for arg in given):
        return []
    found: dict[int, tuple[SourceLoop, ...]] = {}
    for action in find_actions(trace):
        if not action.is_step:
            continue
        loops = action.event.loops
        for index, loop in enumerate(loops):
            if loader.call in _iterated(loop):
                outside = loader.event.loops
                found[id(loop)] = tuple(
                    entry for entry in loops[: index + 1] if entry not in outside
                )
    return list(found.values())


def is_restarted(trace: Trace, loader: SourceLoader) -> bool:
    """Return whether `iter(loader)` begins a new pass in a loop in which an optimizer steps."""
    stepping = {loop for a in find_actions(trace) if a.is_step for loop in a.event.loops}
    return any(
        call.path == "iter"
        and any(loader.call in options_of(arg) for arg in call.args)
        and any(loop in stepping and loop not in loader.event.loops for loop in event.loops)
        for event, call in trace.calls
    )


def find_loader_of(
    loops: Sequence[SourceLoop], loaders: Sequence[SourceLoader]
) -> SourceLoader | None:
    """Return the loader over which the innermost of some loops iterates."""
    if not loops:
        return None
    iterated = list(_iterated(loops[-1]))
    return next((loader for loader in loaders if loader.call in iterated), None)


def _iterated(loop: SourceLoop) -> Iterator[Value]:
    """Yield what a loop may iterate over: the loader for `enumerate(tqdm(loader))`."""
    waiting = list(options_of(loop.iterated))
    while waiting:
        value = waiting.pop()
        if isinstance(value, Call) and value.name in _ITERATORS and value.args:
            waiting.extend(options_of(value.args[0]))
        else:
            yield value


def method_of(cls: Class, name: str) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    """Return the source of a method of a class or of its bases in the project."""
    found = cls.find(name)
    definition = found.definition if isinstance(found, Function) else None
    return None if isinstance(definition, ast.Lambda) else definition


def source_of(cls: Class) -> str:
    """Return the source of a class and of its bases in the project."""
    return "\n".join(ast.unparse(base.definition) for base in cls.lineage())
