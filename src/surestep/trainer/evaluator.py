"""Evaluations and predictions: of an open run, and of a checkpoint of a closed one."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from torch import Tensor, nn

from surestep.base.errors import ConfigError, ParallelError
from surestep.config.config import Config
from surestep.engine.data.batch_loader import BatchLoader, make_loader
from surestep.engine.data.dataset import count_samples
from surestep.engine.data.smaller_batches import Retry, retry_in_smaller_batches
from surestep.engine.evaluate.evaluate import (
    check_targets,
    evaluate_parts,
    generators_of,
    inference,
)
from surestep.engine.evaluate.nonfinite_inputs import check_in_memory, forward_of
from surestep.engine.evaluate.predict import Predictions, check_passes, make_predict_loader, predict
from surestep.engine.evaluate.update_bn import recompute_statistics
from surestep.engine.losses.state import own_module
from surestep.engine.model.forward_writes import ForwardWrites
from surestep.engine.model.precision import autocast, place_model, torch_settings
from surestep.engine.model.preserve import preserve_buffers
from surestep.engine.modes import preserve_weights
from surestep.engine.own_generators import OwnGenerators
from surestep.engine.parallel.manual_allreduce import broadcast_module
from surestep.engine.plan.plan import Plan
from surestep.engine.state.average import AveragedWeights
from surestep.engine.step.loop import Loop
from surestep.engine.task.task import Task
from surestep.engine.value import Value
from surestep.record.checkpoint.reader import CheckpointInfo
from surestep.record.pretrained import load_init_weights
from surestep.record.run import Run, Which
from surestep.trainer.explain_memory import explain_memory_errors
from surestep.trainer.memory_failure import Failure
from surestep.trainer.planning import (
    PreparedTask,
    check_split,
    data_splits,
    make_eval_loaders,
    plan_task,
)
from surestep.trainer.rank_zero import choose_checkpoint

if TYPE_CHECKING:  # only with report.samples
    from surestep.engine.evaluate.collect_predictions import PredictionCollector

_ROWS = 1024  # of inputs outside the splits, in a batch
_AGREE_EVERY = 16  # batches between two exchanges of the ranks
Warn = Callable[[str], object]
OnBatch = Callable[[int, int | None], object]
Fitting = Callable[[BatchLoader], Retry]
T = TypeVar("T")


def make_interrupt_check(loop: Loop) -> Callable[[], bool]:
    """Return a check, before each batch of an evaluation, if a signal has arrived on some rank."""
    count = itertools.count(1)

    def is_interrupted() -> bool:
        loop.parts.call("on_eval_batch")
        if loop.world.size > 1 and next(count) % _AGREE_EVERY == 0:  # all have as many batches
            before = loop.world.agreed
            loop.world.exchange([])
            loop.world.agreed |= before
            loop.requests.apply_agreed()
        return bool(loop.requests.interrupted)

    return is_interrupted


class Evaluator:
    """Evaluates and predicts with the current weights of an open run.

    Attributes:
        fitting: sets the micro-batch size of a loader, and returns what decides whether to repeat
            an evaluation in smaller ones; None if the sizes are fixed.
    """

    def __init__(self, plan: Plan, task: Task, loop: Loop, loaders: dict[str, BatchLoader]) -> None:
        self.plan = plan
        self.task = task
        self.loop = loop
        self.loaders = loaders
        self.fitting: Fitting | None = None
        self._generators: OwnGenerators | None = None
        self._closed = False
        for loader in loaders.values():
            loader.leave = self._leaves(make_interrupt_check(loop))
        for loader in (loop.loader, *loaders.values()) if loop.world.size > 1 else ():
            loader.retry = loop.requests.stop_together

    def _leaves(self, is_interrupted: Callable[[], bool]) -> Callable[[], bool]:
        """Return the check of an open run: what stopped a run ends no evaluation after it."""
        return lambda: not self._closed and is_interrupted()

    def check(self, split: str | None) -> None:
        """Raise a ConfigError if a split cannot be evaluated; None is all validation sets."""
        if split is not None:
            check_split(split, self.loaders)
            if self.task.loss is None:
                raise ConfigError("The Task has no loss to evaluate. Set Task(loss=...).")

    def check_val_sets(self) -> None:
        """Raise a DataError if a validation set has no targets, or a NaN in memory."""
        model, context = self.loop.state.model, self.loop.context
        if context.loss.kind in ("none", "in training"):
            return
        forward = forward_of(model, context.autocast)
        for name in self.task.val_sets():
            loader = self.loaders[name]
            check_targets(loader)
            with (
                preserve_weights(model),
                inference(model, loader, context.loss, writes=context.writes),
            ):
                check_in_memory(name, loader, context.loss, forward)

    def evaluate_all(self, split: str, warn: Warn) -> tuple[dict[str, Value], int]:
        """Return the metrics of all of a split, and how many samples of it were measured.

        The run itself may evaluate only the first batches of a validation set.
        """
        limited = self.loaders[split]
        if limited.layout.limit is None:
            return self.evaluate(split, warn), limited.measured
        data, loss = data_splits(self.task)[split], self.loop.context.loss
        plan = self.plan.replace(limit_val_batches=None)
        full = make_loader(data, split, task=self.task, loss=loss, plan=plan)
        full.leave, full.retry = limited.leave, limited.retry
        self.loaders[split] = full
        try:
            return self.evaluate(split, warn), full.measured
        finally:
            self.loaders[split] = limited
            full.close()

    def evaluate(
        self,
        split: str | None,
        warn: Warn,
        collectors: Mapping[str, PredictionCollector] = MappingProxyType({}),
    ) -> dict[str, Value]:
        """Return the metrics of a split, or of all validation sets, by "split/metric".

        `collectors` get the outputs, each those of a validation set.
        """
        self.sync_buffers()
        names, loop = list(self.task.val_sets()) if split is None else [split], self.loop
        loaders = {name: self.loaders[name] for name in names}
        parts = loop.state.model, loop.context.loss, self.task.metrics
        self._generators = self._generators or generators_of(*parts)
        size = max((loader.layout.batch_size for loader in loaders.values()), default=1)
        with loop.parts.explain_errors(size):
            return evaluate_parts(
                loop.state.model,
                loaders,
                loop.context.loss,
                self.task.metrics,
                generators=self._generators,
                autocast=loop.context.autocast,
                world=loop.world,
                warn=warn,
                writes=loop.context.writes,
                collectors=collectors,
                retry=self.fitting,
            )

    def predict(self, split: str, mc_dropout: int | None) -> Predictions:
        """Predict each sample of a split."""
        return self._predict(_predict_loader(self.task, self.plan, split), mc_dropout)

    def predict_inputs(self, data: Any) -> Predictions:
        """Predict for inputs outside the splits: a tuple or a dict of tensors, as arguments."""
        task = replace(self.task, inputs=None, collate_fn=None)
        plan = self.plan.replace(validation_batch_size=_ROWS)
        return self._predict(make_predict_loader(data, "inputs", task=task, plan=plan), None)

    def _predict(self, loader: BatchLoader, mc_dropout: int | None) -> Predictions:
        self.sync_buffers()
        context = self.loop.context
        function = partial(
            predict,
            self.loop.state.model,
            loader,
            context.loss,
            autocast=context.autocast,
            passes=mc_dropout,
            writes=context.writes,
        )
        try:
            with self.loop.parts.explain_errors(loader.layout.batch_size):
                return _retry_if(self.fitting is not None, function, loader)
        finally:
            loader.close()

    def sync_buffers(self) -> None:
        """Copy the buffers of rank 0, which DDP keeps, to all ranks."""
        self._check_ranks()
        if self.loop.world.size > 1:
            broadcast_module(self.loop.state.model, weights=False)

    def _check_ranks(self) -> None:
        """Check that the ranks are still connected, which they are until the session is closed."""
        if self._closed and self.loop.world.size > 1:
            raise ParallelError(
                "The session is closed and its ranks are no longer connected, so they cannot "
                "evaluate or predict together. Do it before: with prepare(task, config) as "
                "session: [*session.steps()]; session.save(); session.evaluate_checkpoint('val', "
                "'last'). Or evaluate the run later in one process."
            )

    @contextmanager
    def using_checkpoint(self, run: Run, which: Which) -> Iterator[CheckpointInfo]:
        """Load weights and buffers of a checkpoint, and restore those of the run at the end.

        Weights that DeepSpeed holds outside of the model are copied to the host meanwhile.
        """
        self._check_ranks()
        state, context = self.loop.state, self.loop.context
        model, keeper = state.model, state.keeper
        if state.average is not None:
            state.average.take_in()
        kept, apart = copy.deepcopy(model.state_dict()), {}
        if keeper is not None and any(not p.numel() for p in model.parameters()):
            apart = {name: w.local.to("cpu", copy=True) for name, w in keeper.weights()}
        chosen = choose_checkpoint(self.loop.world, run, which)
        try:
            attributes = () if context.attributes is None else context.attributes.slots
            with preserve_buffers(model, own_module(context.loss), writes=attributes):
                chosen.load_state(state, context.train_modes, keeper if apart else None)
                yield chosen.saved
        finally:
            own = {
                name: value
                for name, value in kept.items()
                if not (apart and isinstance(value, Tensor) and not value.numel())
            }
            model.load_state_dict(own, strict=len(own) == len(kept))
            for name, weight in apart.items():
                assert keeper is not None
                keeper.put_weight(name, weight)

    def average(self) -> AveragedWeights | None:
        """Return the average of the weights, ready to be used; None if there is none yet."""
        average, progress = self.loop.state.average, self.loop.state.progress
        if average is None or not average.n_updates(progress.step):
            return None
        recompute_statistics(average, self.loop.context, self.task, self.plan)
        return average

    def close(self) -> None:
        """Stop the data workers."""
        self._closed = True
        for loader in self.loaders.values():
            loader.close()


def evaluate_run(
    run: Run,
    task: Task,
    config: Config,
    *,
    split: str,
    which: Which | int,
    warn: Warn | None = None,
    count: Callable[[str, int], object] | None = None,
) -> tuple[CheckpointInfo, dict[str, Value]]:
    """Return the checkpoint of a run that was evaluated, and its metrics by "split/metric".

    Nothing is written, and the folder is not locked. The split "val" is all validation sets.
    `count` is called with the name of each set and the number of its samples that were measured.
    """
    planned = plan_task(task, config.single_process())
    planned = replace(planned, plan=planned.plan.single_process())  # in a process of torchrun too
    loaders = make_eval_loaders(planned)
    names = list(task.val_sets()) if split == "val" else [split]
    for name in names or [split]:
        check_split(name, loaders)
    model, saved = load_checkpoint_model(run, planned, which)
    planned.loss.to(planned.plan.device)
    size = max(loaders[name].layout.batch_size for name in names)
    failure = Failure(f"in the evaluation of {split}", planned, model, evaluation_size=size)
    with torch_settings(planned.plan), explain_memory_errors(failure):
        metrics = evaluate_parts(
            model,
            {name: loaders[name] for name in names},
            planned.loss,
            task.metrics,
            autocast=autocast(planned.plan),
            warn=warn,
            # No set may change what the next one measures.
            writes=ForwardWrites(model).possible if len(names) > 1 else (),
            retry=(lambda _: _always) if planned.fits_evaluation else None,
        )
    if count is not None:
        for name in names:
            count(name, loaders[name].measured)
    return saved, metrics


def predict_run(
    run: Run,
    task: Task,
    config: Config,
    *,
    split: str = "test",
    which: Which | int = "best",
    mc_dropout: int | None = None,
    watch: OnBatch | None = None,
    folder: Path | None = None,
) -> tuple[CheckpointInfo, Predictions]:
    """Return the checkpoint of a run that predicted, and its predictions, in stored order.

    The run is not changed. `watch` is called after each batch with the samples done, and how many
    there are if that is known; `folder` is for what does not fit in memory.
    """
    check_passes(mc_dropout)
    planned = plan_task(task, config.single_process())
    loader = _predict_loader(planned.task, planned.plan, split)
    model, saved = load_checkpoint_model(run, planned, which)
    total = count_samples(data_splits(planned.task)[split], split) if watch is not None else None
    size = loader.layout.batch_size
    failure = Failure(f"in the prediction of {split}", planned, model, evaluation_size=size)
    with torch_settings(planned.plan), explain_memory_errors(failure):
        function = partial(
            predict,
            model,
            loader,
            planned.loss,
            autocast=autocast(planned.plan),
            passes=mc_dropout,
            watch=None if watch is None else lambda done: watch(done, total),
            folder=folder,
        )
        predictions = _retry_if(planned.fits_evaluation, function, loader)
    return saved, predictions


def _retry_if(fits: bool, function: Callable[[], T], loader: BatchLoader) -> T:
    """Call a function that reads a loader, again in smaller micro-batches if memory runs out."""
    return retry_in_smaller_batches(function, loader, _always) if fits else function()


def _always(size: int, found: object) -> bool:
    return True


def load_checkpoint_model(
    run: Run, planned: PreparedTask, which: Which | int
) -> tuple[nn.Module, CheckpointInfo]:
    """Return the model on its device with a checkpoint in it and in the loss, and the checkpoint.

    The loss is not moved to the device.
    """
    chosen = run.choose(which)
    if chosen.needs_base:
        load_init_weights(planned.model, planned.task.init)
    model = place_model(planned.model, planned.plan)
    chosen.load(model, loss=planned.loss, keep_eval=planned.task.keep_eval)
    return model, chosen.saved


def _predict_loader(task: Task, plan: Plan, split: str) -> BatchLoader:
    splits = data_splits(task)
    check_split(split, splits)
    return make_predict_loader(splits[split], split, task=task, plan=plan)
