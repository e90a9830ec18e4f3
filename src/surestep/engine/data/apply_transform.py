"""A transform of whole global batches: after the move to the device, seeded by step.

It sees the global batch and not a micro-batch, so that how the batch is cut changes nothing: the
partners and shares of mixup are the same. Evaluations never see it.
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
    map_tensors,
    sum_part_items,
)
from surestep.engine.data.batch_transforms import MixTransform
from surestep.engine.losses.adapt import Loss
from surestep.engine.losses.multi import with_items
from surestep.engine.plan.plan import Plan
from surestep.engine.rng import ModelRNG, derive_seed, preserve_rng, seed_loading
from surestep.engine.task.task import Task

BatchFunction = Callable[..., tuple[Any, Any]]
_CUT = "Leave micro_batch_size out, so that the batch is whole"


class BatchTransform:
    """Changes global batches by a function of (inputs, targets).

    Args:
        function: gets the model's inputs (its one argument, a tuple of several, or a dict of named
            ones) and the targets, and returns both; `generator`, where it asks for one.
        loss: counts the items of targets that came back changed.
        counted: whether `loss` can count them: not where the user counts whole batches.
        seed: of the run.
        device: where batches are.
        rank: of this process among those that share a batch. Each of them is given all of the
            batch, as micro-batches of one rank after the other, and gets its own back.
        ranks: how many there are.
    """

    def __init__(
        self,
        function: BatchFunction,
        loss: Loss,
        *,
        counted: bool,
        seed: int,
        device: torch.device,
        rank: int = 0,
        ranks: int = 1,
    ) -> None:
        self.function = function
        self.loss = loss
        self.counted = counted
        self.seed = seed
        self.device = device
        self.rank = rank
        self.ranks = ranks
        self._generators = ModelRNG(seed, device).generators
        self._wants_generator = "generator" in inspect.signature(function).parameters

    @torch.no_grad()
    def __call__(self, batch: Batch, step: int) -> Batch:
        """Return the batch of `step` (from 0), changed.

        Raises:
            TaskError: micro-batches that cannot be put together, or another number of samples.
        """
        if not batch.items:
            return batch
        micros = tuple(each for each in batch.micro_batches if each.samples)
        inputs = _together([_inputs(each) for each in micros], micros)
        targets = _together([each.targets for each in micros], micros)
        before = _versions(targets)
        new_inputs, new_targets = self._call(
            inputs, targets, derive_seed("transform", self.seed, step)
        )
        self._check(new_inputs, micros, "inputs")
        if new_targets is not targets:
            self._check(new_targets, micros, "targets")
        changed_targets = new_targets is not targets or _versions(targets) != before
        recount = self.counted and changed_targets
        changed, row = [], 0
        first, end = self._share(len(batch.micro_batches))
        for index, micro in enumerate(batch.micro_batches):
            start = min(row, batch.samples - 1)  # one without samples goes along with some row
            rows = slice(start, start + max(micro.samples, 1)) if len(micros) > 1 else None
            row += micro.samples
            if not first <= index < end:
                continue
            micro = self._cut(micro, _rows(new_inputs, rows), _rows(new_targets, rows))
            if recount and micro.samples:
                micro = with_items(micro, self.loss, None)
            changed.append(micro)
        return batch._replace(
            micro_batches=tuple(changed),
            items=sum((each.items for each in changed), 0.0),
            part_items=sum_part_items(changed),
        )

    def _share(self, micro_batches: int) -> tuple[int, int]:
        """Return which micro-batches this rank keeps: (first, end)."""
        own = micro_batches // self.ranks
        return self.rank * own, (self.rank + 1) * own

    def _call(self, inputs: Any, targets: Any, seed: int) -> tuple[Any, Any]:
        with preserve_rng():
            seed_loading(seed)
            for generator in self._generators[1:]:
                generator.manual_seed(seed)
            more = {}
            if self._wants_generator:
                more["generator"] = torch.Generator(self.device).manual_seed(seed)
            found = self.function(inputs, targets, **more)
        if not isinstance(found, tuple) or len(found) != 2:
            raise TaskError(
                f"batch_transform returned a {type(found).__name__}. Return (inputs, targets)."
            )
        return found

    def _check(self, value: Any, micros: tuple[MicroBatch, ...], what: str) -> None:
        samples = sum(each.samples for each in micros)
        first = next(iter(flatten_tensors(value)), None)
        if first is None or first.dim() == 0 or len(first) != samples:
            found = type(value).__name__ if first is None else f"shape {tuple(first.shape)}"
            raise TaskError(
                f"batch_transform returned {what} of {found} for {samples} samples. Return "
                "(inputs, targets) with a row for each sample."
            )

    def _cut(self, micro: MicroBatch, inputs: Any, targets: Any) -> MicroBatch:
        if isinstance(inputs, Mapping):
            return micro._replace(args=(), kwargs=inputs, targets=targets)
        args = inputs if isinstance(inputs, tuple) else (inputs,)
        return micro._replace(args=args, kwargs={}, targets=targets)


def _versions(value: Any) -> list[int]:
    """Return what tells whether tensors were written into, without reading them."""
    return [tensor._version for tensor in flatten_tensors(value)]


def _inputs(micro: MicroBatch) -> Any:
    if micro.kwargs:
        return dict(micro.kwargs)
    return micro.args[0] if len(micro.args) == 1 else micro.args


def _together(parts: list[Any], micros: tuple[MicroBatch, ...]) -> Any:
    """Put what the micro-batches hold together again, along the samples."""
    first = parts[0]
    if len(parts) == 1:
        return first
    if isinstance(first, Tensor):
        for part, micro in zip(parts, micros, strict=True):
            if part.dim() == 0 or len(part) != micro.samples:
                raise TaskError(
                    f"A micro-batch of {micro.samples} samples holds a tensor of shape "
                    f"{tuple(part.shape)}, and batch_transform sees whole batches. {_CUT}."
                )
        if len({part.shape[1:] for part in parts}) > 1:
            shapes = ", ".join(str(tuple(part.shape)) for part in parts[:4])
            raise TaskError(
                f"Micro-batches of shapes {shapes} cannot be put together, and batch_transform "
                f"sees whole batches. {_CUT}; or pad to one length in collate_fn."
            )
        return torch.cat(parts)
    if isinstance(first, Mapping):
        return {key: _together([part[key] for part in parts], micros) for key in first}
    if isinstance(first, (tuple, list)):
        each = [_together(list(part), micros) for part in zip(*parts, strict=True)]
        return type(first)(*each) if hasattr(first, "_fields") else type(first)(each)
    if any(part is not first and part != first for part in parts):
        raise TaskError(
            f"Micro-batches hold different {type(first).__name__} objects, which cannot be put "
            f"together for batch_transform. {_CUT}."
        )
    return first


def _rows(value: Any, rows: slice | None) -> Any:
    """Return these samples, in memory of their own; all, as they are, where `rows` is None."""
    return value if rows is None else map_tensors(value, lambda tensor: tensor[rows].clone())


def make_batch_transform(task: Task, loss: Loss, plan: Plan) -> BatchTransform | None:
    """Return what changes the Task's global batches, or None."""
    if task.batch_transform is None:
        return None
    return BatchTransform(
        task.batch_transform,
        loss,
        counted=task.counts_targets(),
        seed=plan.seed,
        device=plan.device,
        rank=plan.parallel_rank,
        ranks=plan.parallel_ranks,
    )


def name_of(function: BatchFunction | None) -> str | None:
    """Return what the Plan calls a transform."""
    if function is None:
        return None
    if isinstance(function, MixTransform):
        return str(function)
    return str(getattr(function, "__name__", type(function).__name__))
