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

from surestep.engine.batch import Batch, MicroBatch
from surestep.engine.diagnose.bisect import BisectResult
from surestep.engine.diagnose.cause import has_nonfinite
from surestep.engine.diagnose.diagnose import Diagnosis, diagnose, largest_parameters
from surestep.engine.diagnose.per_rank import to_json
from surestep.engine.diagnose.rerun import RerunResult, preserve_state
from surestep.engine.dispatch import DispatchMode
from surestep.engine.distributed.communicator import Communicator
from surestep.engine.distributed.shards import is_sharded
from surestep.engine.plan.plan import Plan
from surestep.engine.step.train_step import StepContext, compute_and_apply, forward_backward

_GATHERS = ("torch/distributed/fsdp/", "surestep/engine/parallel/fsdp.py")


class LockstepError(Exception):
    """A pass failed on this rank, so that the others wait within theirs."""


class CollectiveDetector(DispatchMode):
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


def can_diagnose_lockstep(parts: StepContext, plan: Plan) -> bool:
    """Say whether all ranks together can take parts of their shares again."""
    return parts.strategy.gathers_blocks and parts.update is compute_and_apply


def diagnose_in_step(
    parts: StepContext,
    world: Communicator,
    batch: Batch,
    *,
    index: Tensor | range | None,
    divisor: float,
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
    parallel: Any = copy.copy(parts.strategy)
    parallel.reduce_loss = _own
    alone = replace(parts, strategy=parallel)
    passes = _Passes(world, batch)
    found, failed = Diagnosis(0.0, (), None, BisectResult(), largest_parameters(alone)), ""
    try:
        if parts.freeze is not None:
            parts.freeze(parts.state.progress.steps_taken)
        if batch.items:
            found = diagnose(alone, batch, index=index, divisor=divisor, again=passes.again)
    except LockstepError:
        raise
    # The user's code counts and cuts. Whatever it raises, the others wait for this rank to serve.
    except Exception as error:
        failed = str(error).partition("\n")[0]
    passes.join_passes(alone)
    talks = world.all_reduce_max([passes.listening.talks])[0]
    return None if talks else to_json(found, failed)


def _own(loss_sum: Tensor) -> Tensor:
    """Return a rank's own loss, for it to judge."""
    return loss_sum


class _Passes:
    """Passes over single micro-batches, each of which all ranks take together."""

    def __init__(self, world: Communicator, batch: Batch) -> None:
        self.world = world
        self.batch = batch
        self.listening = CollectiveDetector()

    def again(self, parts: StepContext, batch: Batch, divisor: float) -> RerunResult:
        """Take a batch again, as `again` does, and judge what this rank made of it."""
        total, bad = torch.zeros(()), dict[str, Tensor]()
        for micro in batch.micro_batches:
            if not micro.items:
                continue
            self._any([1.0])
            loss_sum, found = self._pass(parts, batch, micro, divisor)
            bad = {**found, **bad}
            if has_nonfinite(loss_sum):
                bad[""] = loss_sum
            total = total.to(loss_sum) + loss_sum
        return RerunResult(total, bad)

    def join_passes(self, parts: StepContext) -> None:
        """Go along with the passes of the others, until none of them has any left."""
        spare = self.batch.micro_batches[0]._replace(items=0)
        with preserve_state(parts):
            while self._any([0.0]):
                self._pass(parts, self.batch, spare, 1.0)

    def _any(self, wants: Sequence[float]) -> bool:
        return bool(self.world.all_reduce_sum(wants)[0])

    def _pass(
        self, parts: StepContext, batch: Batch, micro: MicroBatch, divisor: float
    ) -> tuple[Tensor, dict[str, Tensor]]:
        one = batch._replace(micro_batches=(micro,))
        try:
            with local_gradients(parts.state.model) as bad, self.listening:
                loss_sum, _ = forward_backward(parts, one, divisor)
        # Whatever the user's code raises: there is no way back for the others.
        except Exception as error:
            told = self.world.explain_error(error)
            raise LockstepError(f"{type(told).__name__}: {told}") from error
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
        if has_nonfinite(grad):
            bad.setdefault(name, grad)

    def forwarded(module: nn.Module, *_: object) -> None:
        if module not in names or not hasattr(module, "unshard"):
            return
        for name, each in module.named_parameters():
            if each.requires_grad and not is_sharded(each) and id(each) not in seen:
                seen[id(each)] = each
                handles.append(each.register_hook(partial(note, names[module] + name)))

    handles.append(register_module_forward_hook(forwarded))
    try:
        yield bad
    finally:
        for each in handles:
            each.remove()
