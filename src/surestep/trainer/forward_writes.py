"""Restore the parameters that a forward changes, during a run."""

import json
from collections.abc import Callable
from functools import partial

from surestep.base.errors import TaskError
from surestep.engine.buffers import Slot
from surestep.engine.distributed.communicator import Communicator
from surestep.engine.losses.state import own_module
from surestep.engine.model.forward_writes import ForwardWrites
from surestep.engine.model.preserve import BufferSnapshot
from surestep.engine.step.lbfgs import lbfgs_update
from surestep.engine.step.loop import Loop
from surestep.engine.task.init_weights import summarize_names


def restore_writes(writes: ForwardWrites, loop: Loop) -> None:
    """Restore the parameters that a forward changes around evaluations and skipped steps.

    Until the forward of the first step has been compared, each may be one of them. A manual step
    copies its parameters anyway.
    """
    context, world = loop.context, loop.world
    is_manual = context.custom_update not in (None, lbfgs_update)
    check_same_writes(world, writes)
    writes.leave_out_sharded(context.state.model)
    writes.list_not_checked(is_manual=is_manual)
    context.writes = writes.possible
    modules = context.state.model, own_module(context.loss)
    context.buffers = BufferSnapshot(*modules, writes=writes.possible)
    found: list[Callable[[], list[Slot]]] = []

    def end_comparison() -> None:
        writes.add(found[0]() if found else ())
        check_same_writes(world, writes)
        context.writes = writes.slots
        context.buffers.keep_only(writes.slots if is_manual else writes.slots_of_steps)
        notices = writes.describe(loop.loader.layout, is_manual=is_manual)
        loop.notices.append(partial(next, notices, None))

    context.after_first_backward = lambda: found.append(context.buffers.compare(writes.compared))
    loop.after_first.append(end_comparison)


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
