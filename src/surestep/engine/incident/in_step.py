"""Find on ranks that hold parts of the model what made a step not finite, pass by pass.

A forward gathers the parameters, so no rank can take one without the others. Each rank looks
through its share as in one process, by passes over single micro-batches; for each of them all
ranks go along, those that have nothing more to look at too, with a micro-batch that does not
count. Gradients are judged before they are added up, since then they would be those of all.
"""

import copy
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

from surestep.engine.data.batch import Batch, MicroBatch
from surestep.engine.dispatch import DispatchMode
from surestep.engine.incident.again import Ran, untouched
from surestep.engine.incident.cause import is_bad
from surestep.engine.incident.diagnose import Diagnosis, diagnose, largest_weights
from surestep.engine.incident.samples import Found
from surestep.engine.incident.shares import as_text
from surestep.engine.parallel.pieces import is_cut
from surestep.engine.parallel.world import World
from surestep.engine.plan import Plan
from surestep.engine.step import Parts, forward_backward, update

_GATHERS = ("torch/distributed/fsdp/", "surestep/engine/parallel/fsdp.py")


class OutOfStepError(Exception):
    """A pass failed on this rank, so that the others wait within theirs."""


class Listening(DispatchMode):
    """Hears whether the model talks to other ranks by itself, beside what gathers it."""

    def __init__(self) -> None:
        super().__init__()
        self.talks = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace in ("c10d", "_c10d_functional") and not _gathers():
            self.talks = True
        return func(*args, **(kwargs or {}))


def _gathers() -> bool:
    """Say whether FSDP is what runs, or what sends the buffers before it."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        if any(each in frame.f_code.co_filename for each in _GATHERS):
            return True
        frame = frame.f_back
    return False


def can_look_in_step(parts: Parts, plan: Plan) -> bool:
    """Say whether all ranks together can take parts of their shares again."""
    return plan.parallel_kind == "fsdp" and parts.update is update


def diagnose_in_step(
    parts: Parts, world: World, batch: Batch, *, index: Tensor | range | None, divisor: float
) -> str | None:
    """Diagnose the share of one rank; all ranks call this together.

    Args:
        parts: of this rank, whose state is the one before the step.
        world: the ranks.
        batch: its share, on the device, as it was read.
        index: of the sample at each position of the epoch.
        divisor: of the loss of the whole batch.

    Returns:
        What was found, for the others. None where the model of some rank talks to the others: what
        one rank leaves out is then finite for all.

    Raises:
        OutOfStepError: a pass failed here, or on another rank.
    """
    parallel: Any = copy.copy(parts.parallel)
    parallel.add_up = _own
    alone = replace(parts, parallel=parallel)
    passes = _Passes(world, batch)
    found, failed = Diagnosis(0.0, (), None, Found(), largest_weights(alone)), ""
    try:
        if parts.freeze is not None:
            parts.freeze(parts.state.place.steps_taken)
        if batch.items:
            found = diagnose(alone, batch, index=index, divisor=divisor, again=passes.again)
    except OutOfStepError:
        raise
    # The user's code counts and cuts. Whatever it raises, the others wait for this rank to serve.
    except Exception as error:
        failed = str(error).partition("\n")[0]
    passes.serve(alone)
    talks = world.largest([passes.listening.talks])[0]
    return None if talks else as_text(found, failed)


def _own(loss_sum: Tensor) -> Tensor:
    """Return a rank's own loss, for it to judge."""
    return loss_sum


class _Passes:
    """Passes over single micro-batches, each of which all ranks take together."""

    def __init__(self, world: World, batch: Batch) -> None:
        self.world = world
        self.batch = batch
        self.listening = Listening()

    def again(self, parts: Parts, batch: Batch, divisor: float) -> Ran:
        """Take a batch again, as `again` does, and judge what this rank made of it."""
        total, bad = torch.zeros(()), dict[str, Tensor]()
        for micro in batch.micro_batches:
            if not micro.items:
                continue
            self._any([1.0])
            loss_sum, found = self._pass(parts, batch, micro, divisor)
            bad = {**found, **bad}
            if is_bad(loss_sum):
                bad[""] = loss_sum
            total = total.to(loss_sum) + loss_sum
        return Ran(total, bad)

    def serve(self, parts: Parts) -> None:
        """Go along with the passes of the others, until none of them has any left."""
        spare = self.batch.micro_batches[0]._replace(items=0)
        with untouched(parts):
            while self._any([0.0]):
                self._pass(parts, self.batch, spare, 1.0)

    def _any(self, wants: Sequence[float]) -> bool:
        return bool(self.world.sums(wants)[0])

    def _pass(
        self, parts: Parts, batch: Batch, micro: MicroBatch, divisor: float
    ) -> tuple[Tensor, dict[str, Tensor]]:
        one = batch._replace(micro_batches=(micro,))
        try:
            with local_gradients(parts.state.model) as bad, self.listening:
                loss_sum, _ = forward_backward(parts, one, divisor)
        # Whatever the user's code raises: there is no way back for the others.
        except Exception as error:
            told = self.world.explained(error)
            raise OutOfStepError(f"{type(told).__name__}: {told}") from error
        return loss_sum, bad


@contextmanager
def local_gradients(model: nn.Module) -> Iterator[dict[str, Tensor]]:
    """Collect the gradients of this rank alone that are not finite, by the parameter's name.

    A block's parameters are plain tensors from before its forward until after its backward.
    """
    bad: dict[str, Tensor] = {}
    names = {module: f"{name}." if name else "" for name, module in model.named_modules()}
    seen: dict[int, nn.Parameter] = {}
    handles: list[Any] = []

    def note(name: str, grad: Tensor) -> None:
        if is_bad(grad):
            bad.setdefault(name, grad)

    def forwarded(module: nn.Module, *_: object) -> None:
        if module not in names or not hasattr(module, "unshard"):
            return
        for name, each in module.named_parameters():
            if each.requires_grad and not is_cut(each) and id(each) not in seen:
                seen[id(each)] = each
                handles.append(each.register_hook(partial(note, names[module] + name)))

    handles.append(register_module_forward_hook(forwarded))
    try:
        yield bad
    finally:
        for each in handles:
            each.remove()
