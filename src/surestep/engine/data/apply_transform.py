"""A transform of global training batches: after the move to the device, seeded by step.

It gets the global batch, so that the size of micro-batches does not change the result.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from surestep.base.errors import TaskError
from surestep.engine.batch import (
    Batch,
    MicroBatch,
    flatten_tensors,
    left_out_hint,
    map_tensors,
    sum_part_items,
)
from surestep.engine.data.batch_transforms import MixTransform
from surestep.engine.data.seeded_call import SeededCalls
from surestep.engine.losses.adapt import Loss
from surestep.engine.losses.mixed import MixedTargets
from surestep.engine.losses.multi import with_items
from surestep.engine.model.attributes import preserve_attributes
from surestep.engine.plan.plan import Plan
from surestep.engine.rng import derive_seed
from surestep.engine.task.task import Task

BatchFunction = Callable[..., tuple[Any, Any]]
_FIX = "Leave micro_batch_size out, so that the batch is not split"


class BatchTransform:
    """Changes global batches by the Task's `batch_transform`.

    That is a function of (inputs, targets), and of `generator` if it has such a parameter; the
    inputs are one argument, a tuple or a dict. Each rank gets the micro-batches of all ranks, and
    returns its own.
    """

    def __init__(self, task: Task, loss: Loss, plan: Plan) -> None:
        assert task.batch_transform is not None
        function = task.batch_transform
        self.function: BatchFunction = function
        if isinstance(function, MixTransform) and task.step is None:  # a step has its own losses
            self.function = function.for_loss(loss)
        self.loss = loss
        self.counts_targets = task.counts_targets()
        self.seed = plan.seed
        self.device = plan.device
        self.rank, self.ranks = plan.parallel_rank, plan.parallel_ranks
        self._calls = SeededCalls("batch_transform", self.function, self.device)
        self._wants_generator = "generator" in inspect.signature(self.function).parameters

    @torch.no_grad()
    def __call__(self, batch: Batch, step: int) -> Batch:
        """Return the batch of `step` (from 0), changed."""
        if not batch.items:
            return batch
        full = tuple(micro for micro in batch.micro_batches if micro.samples)
        inputs = _concatenate([micro.inputs for micro in full], full)
        targets = _concatenate([micro.targets for micro in full], full)
        before = _versions(targets)
        new_inputs, new_targets = self._call(
            inputs, targets, derive_seed("transform", self.seed, step)
        )
        self._check(new_inputs, full, "inputs")
        if new_targets is not targets:
            self._check(new_targets, full, "targets")
        changed_targets = new_targets is not targets or _versions(targets) != before
        recount = self.counts_targets and changed_targets
        if isinstance(new_targets, MixedTargets):  # a permutation has as many items
            recount, batch = False, _with_items_for_all(batch, self.function)
        changed, row = [], 0
        own = len(batch.micro_batches) // self.ranks
        for index, micro in enumerate(batch.micro_batches):
            start = min(row, batch.samples - 1)  # one without samples gets a row of another
            rows = slice(start, start + max(micro.samples, 1)) if len(full) > 1 else None
            row += micro.samples
            if index // own != self.rank:
                continue
            inputs, targets = _rows(new_inputs, rows), _rows(new_targets, rows)
            is_named = isinstance(inputs, Mapping)
            args = () if is_named else inputs if isinstance(inputs, tuple) else (inputs,)
            kwargs = inputs if is_named else {}
            micro = micro._replace(args=args, kwargs=kwargs, targets=targets)
            if recount and micro.samples:
                micro = with_items(micro, self.loss, None)
            changed.append(micro)
        return batch._replace(
            micro_batches=tuple(changed),
            items=sum((micro.items for micro in changed), 0.0),
            part_items=sum_part_items(changed),
        )

    def preview(self, batch: Batch, step: int) -> Batch:
        """Return the changed batch of a step that is not taken: attributes are restored."""
        with preserve_attributes(self.function):
            return self(batch, step)

    def _call(self, inputs: Any, targets: Any, seed: int) -> tuple[Any, Any]:
        more = {}
        if self._wants_generator:
            own = derive_seed("generator", seed)  # the function may draw from torch's as well
            more["generator"] = torch.Generator(self.device).manual_seed(own)
        with self._calls.seeded(seed):
            found = self.function(inputs, targets, **more)
        if not isinstance(found, tuple) or len(found) != 2:
            raise TaskError(
                f"batch_transform returned a {type(found).__name__}. Return (inputs, targets)."
            )
        return found

    def _check(self, value: Any, full: tuple[MicroBatch, ...], what: str) -> None:
        samples = sum(micro.samples for micro in full)
        first = next(iter(flatten_tensors(value)), None)
        if first is None or first.dim() == 0 or len(first) != samples:
            found = type(value).__name__ if first is None else f"shape {tuple(first.shape)}"
            hint = left_out_hint(len(first), samples) if first is not None and first.dim() else ""
            raise TaskError(
                f"batch_transform returned {what} of {found} for {samples} samples. Return "
                f"(inputs, targets) with a row for each sample.{hint}"
            )


def _with_items_for_all(batch: Batch, function: BatchFunction) -> Batch:
    """Return a batch whose micro-batches with samples all have items: one with none is skipped."""
    full = [micro for micro in batch.micro_batches if micro.samples]
    items = batch.items
    if isinstance(function, MixTransform) and function.counts_all:
        items = sum(micro.targets.numel() for micro in full)
    elif all(micro.items for micro in full):
        return batch
    per_sample = items / sum(micro.samples for micro in full)
    return batch._replace(
        micro_batches=tuple(
            micro._replace(items=per_sample * micro.samples) for micro in batch.micro_batches
        )
    )


def _versions(value: Any) -> list[int]:
    """Return counters that change if tensors are written to; reads no device."""
    return [tensor._version for tensor in flatten_tensors(value)]


def _concatenate(parts: list[Any], micro_batches: tuple[MicroBatch, ...]) -> Any:
    """Concatenate the content of micro-batches along the samples."""
    first = parts[0]
    if len(parts) == 1:
        return first
    if isinstance(first, Tensor):
        pairs = zip(parts, micro_batches, strict=True)
        have_rows = all(part.dim() and len(part) == micro.samples for part, micro in pairs)
        if not have_rows or len({part.shape[1:] for part in parts}) > 1:
            shapes = ", ".join(str(tuple(part.shape)) for part in parts[:4])
            raise TaskError(
                f"Micro-batches of {micro_batches[0].samples} samples with tensors of shapes "
                f"{shapes} cannot be concatenated, and batch_transform gets global batches. "
                f"{_FIX}; or pad to one length in collate_fn."
            )
        return torch.cat(parts)
    if isinstance(first, Mapping):
        return {key: _concatenate([part[key] for part in parts], micro_batches) for key in first}
    if isinstance(first, (tuple, list)):
        found = [_concatenate(list(part), micro_batches) for part in zip(*parts, strict=True)]
        return type(first)(*found) if hasattr(first, "_fields") else type(first)(found)
    if any(part is not first and part != first for part in parts):
        raise TaskError(
            f"Micro-batches hold different {type(first).__name__} objects, which cannot be "
            f"concatenated for batch_transform. {_FIX}."
        )
    return first


def _rows(value: Any, rows: slice | None) -> Any:
    """Copy these samples; None returns all of them as they are."""
    return value if rows is None else map_tensors(value, lambda tensor: tensor[rows].clone())


def name_of(function: BatchFunction | None) -> str | None:
    """Return the name of a transform in the Plan."""
    if function is None or isinstance(function, MixTransform):
        return None if function is None else str(function)
    return str(getattr(function, "__name__", type(function).__name__))
