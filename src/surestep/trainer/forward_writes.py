"""Restore the parameters that a forward changes, during a run."""

import itertools
import json
from collections.abc import Callable, Iterator

from surestep.base.errors import TaskError
from surestep.base.warn import warn
from surestep.engine.buffers import Slot
from surestep.engine.checks.first_batch import FirstBatchResult
from surestep.engine.distributed.communicator import Communicator
from surestep.engine.losses.state import own_module
from surestep.engine.model.attribute_writes import NAME as ATTRIBUTES
from surestep.engine.model.attributes import ObjectSnapshot
from surestep.engine.model.compile import disable_compile
from surestep.engine.model.forward_writes import ForwardWrites
from surestep.engine.model.preserve import BufferSnapshot
from surestep.engine.state.state import State
from surestep.engine.step.lbfgs import lbfgs_update
from surestep.engine.step.log_point import LogPoint
from surestep.engine.step.loop import Loop
from surestep.engine.step.part import Part
from surestep.engine.task.init_weights import summarize_names


class RestoreWrites(Part):
    """Restores what a forward changes beside buffers, around evaluations and skipped steps.

    Until the forward of the first step has been compared, each may be one of them. A manual step
    copies its parameters anyway.
    """

    def __init__(self, first: FirstBatchResult, loop: Loop) -> None:
        writes, attributes = first.writes, first.attributes
        self._calls = first.calls
        self._context, self._world, self._layout = loop.context, loop.world, loop.loader.layout
        context, self._writes, self._attributes = self._context, writes, attributes
        self._is_manual = context.custom_update not in (None, lbfgs_update)
        self._compare: Callable[[], list[Slot]] | None = None
        self._notices: Iterator[str] = iter(())
        self._are_many = self._world.size > 1  # ranks, which may have different attributes
        self._warned: set[str] = set()
        for text in attributes.take_notices():
            warn(text)
        check_same_writes(self._world, writes)
        writes.leave_out_sharded(context.state.model)
        writes.list_not_checked(is_manual=self._is_manual)
        context.written, context.attributes = writes.possible, attributes
        context.state.callback_states[ATTRIBUTES] = attributes
        modules = context.state.model, own_module(context.loss)
        context.buffers = BufferSnapshot(*modules, writes=writes.possible)
        context.buffers.copy_objects(attributes.snapshot)
        context.after_first_backward = self._note_backward

    def _note_backward(self) -> None:
        """Compare what the first forward changed, before the parameters are updated."""
        self._compare = self._context.buffers.compare(self._writes.compared)
        if not self._is_manual:
            self._find_attributes()

    def _find_attributes(self) -> None:
        context, attributes = self._context, self._attributes
        calls = () if self._is_manual else self._calls  # which do not call the user's step
        if isinstance(before := context.buffers.copied, ObjectSnapshot):
            with disable_compile(context.state.model), context.autocast:
                attributes.find(before, calls)
        self._calls = ()
        context.buffers.keep_attributes(attributes.others, attributes.numbers)

    def on_first_step(self, state: State) -> None:
        """Keep what the step changed only."""
        context, writes, is_manual = self._context, self._writes, self._is_manual
        if is_manual:  # it may change attributes until it ends
            self._find_attributes()
        writes.add(self._compare() if self._compare is not None else ())
        check_same_writes(self._world, writes)
        context.written = writes.slots
        self._warn_of_ranks()
        context.buffers.keep_only(writes.slots if is_manual else writes.slots_of_steps)
        notices = writes.describe(self._layout, is_manual=is_manual)
        self._notices = itertools.chain(notices, self._attributes.take_notices())

    def on_due(self, state: State) -> None:
        """Compare the values of the ranks, which may become different later."""
        self._warn_of_ranks()

    def _warn_of_ranks(self) -> None:
        """Warn on rank 0 if attributes that are saved have different values on the ranks."""
        if not self._are_many:
            return
        texts = self._world.all_gather_text(json.dumps(self._attributes.digests()))
        found = [json.loads(text) for text in texts]
        self._are_many = any(found)
        names = sorted({name for own in found for name in own} - self._warned)
        differing = [name for name in names if len({own.get(name) for own in found}) > 1]
        self._warned.update(differing)
        if differing and self._world.is_first:
            warn(
                f"The steps change the attributes {summarize_names(differing, 3)} differently on "
                "each rank. A checkpoint has those of rank 0, so a resumed run differs from an "
                "uninterrupted one. Keep them in buffers, which all ranks get from rank 0."
            )

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
