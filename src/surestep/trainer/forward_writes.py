"""Restore the parameters that a forward changes, during a run."""

import json
from collections.abc import Callable, Iterator

from surestep.base.errors import TaskError
from surestep.engine.buffers import Slot
from surestep.engine.distributed.communicator import Communicator
from surestep.engine.losses.state import own_module
from surestep.engine.model.forward_writes import ForwardWrites
from surestep.engine.model.preserve import BufferSnapshot
from surestep.engine.state.state import State
from surestep.engine.step.lbfgs import lbfgs_update
from surestep.engine.step.log_point import LogPoint
from surestep.engine.step.loop import Loop
from surestep.engine.step.part import Part
from surestep.engine.task.init_weights import summarize_names


class RestoreWrites(Part):
    """Restores the parameters that a forward changes around evaluations and skipped steps.

    Until the forward of the first step has been compared, each may be one of them. A manual step
    copies its parameters anyway.
    """

    def __init__(self, writes: ForwardWrites, loop: Loop) -> None:
        self._context, self._world, self._layout = loop.context, loop.world, loop.loader.layout
        context, self._writes = self._context, writes
        self._is_manual = context.custom_update not in (None, lbfgs_update)
        self._compare: Callable[[], list[Slot]] | None = None
        self._notices: Iterator[str] = iter(())
        check_same_writes(self._world, writes)
        writes.leave_out_sharded(context.state.model)
        writes.list_not_checked(is_manual=self._is_manual)
        context.writes = writes.possible
        modules = context.state.model, own_module(context.loss)
        context.buffers = BufferSnapshot(*modules, writes=writes.possible)
        context.after_first_backward = self._note_backward

    def _note_backward(self) -> None:
        self._compare = self._context.buffers.compare(self._writes.compared)

    def on_first_step(self, state: State) -> None:
        """Keep what the forward changed only."""
        context, writes, is_manual = self._context, self._writes, self._is_manual
        writes.add(self._compare() if self._compare is not None else ())
        check_same_writes(self._world, writes)
        context.writes = writes.slots
        context.buffers.keep_only(writes.slots if is_manual else writes.slots_of_steps)
        self._notices = iter(writes.describe(self._layout, is_manual=is_manual))

    def on_log(self, state: State, point: LogPoint) -> str | None:
        """Return what the forward changes, a sentence at each log point."""
        return next(self._notices, None)


def check_same_writes(world: Communicator, writes: ForwardWrites) -> None:
    """Raise a TaskError if a forward changes parameters in a different way on each rank."""
    if world.size == 1:
        return
    texts = world.all_gather_text(json.dumps(writes.digests))
    if len({*texts}) > 1 or writes.limited:
        names = list(dict.fromkeys([*writes.limited, *(name for name, *_ in writes.slots)]))
        raise TaskError(
            f"The forward changes {summarize_names(names or ['parameters'])}, by the samples of "
            f"each rank: the copies of {world.size} ranks would differ. Leave out max_norm, or "
            "what else changes it, and limit the weights after each step instead, in a callback's "
            "on_step."
        )
