"""What measures an open run: its splits of the data, by the weights or their average."""

import copy
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from surestep.base.errors import ConfigError, suggest_names
from surestep.engine.data.batch_loader import BatchLoader
from surestep.engine.evaluate.evaluate import eval_mode, evaluate_parts
from surestep.engine.evaluate.nonfinite_inputs import check_in_memory, forward_of
from surestep.engine.evaluate.predict import Predictions, predict
from surestep.engine.evaluate.update_bn import recompute_statistics
from surestep.engine.metrics.base import pop_logged
from surestep.engine.parallel.manual_allreduce import broadcast_module
from surestep.engine.plan.plan import Plan
from surestep.engine.rng import preserve_torch_rng
from surestep.engine.state.average import AveragedWeights
from surestep.engine.step.loop import Loop
from surestep.engine.task.task import Task
from surestep.engine.value import Value
from surestep.record.checkpoint.state_json import CheckpointInfo
from surestep.record.run import Run, Which
from surestep.trainer.closed_run import open_feed
from surestep.trainer.incidents import evaluation_oom
from surestep.trainer.rank_zero import choose_checkpoint

_EVERY = 16  # batches between two exchanges of the ranks; a judgement: their price was not measured


def make_interrupt_check(loop: Loop) -> Callable[[], bool]:
    """Return what says before each batch that is measured whether a signal came to some rank.

    All ranks measure equally many batches, so they ask each other at the same ones.
    """
    count = itertools.count(1)

    def leave() -> bool:
        loop.check_time()
        if loop.world.size > 1 and next(count) % _EVERY == 0:
            before = loop.world.agreed
            loop.world.exchange([])
            loop.world.agreed |= before
            loop.apply_agreed_requests()
        return bool(loop.interrupted)

    return leave


class Evaluator:
    """Measures the loss and the metrics on splits of the data, with what the model holds.

    Args:
        plan: what was decided.
        task: its metrics and validation sets.
        loop: its model and loss.
        feeds: of each split that can be measured.
    """

    def __init__(self, plan: Plan, task: Task, loop: Loop, feeds: dict[str, BatchLoader]) -> None:
        self.plan = plan
        self.task = task
        self.loop = loop
        self.loaders = feeds
        for each in feeds.values():
            each.leave = make_interrupt_check(loop)
        for each in (loop.loader, *feeds.values()) if loop.world.size > 1 else ():
            each.retry = loop.stop_together

    def check(self, split: str | None) -> None:
        """Check that there is such a split; None is all validation sets.

        Raises:
            ConfigError: there is not.
        """
        if split is not None and split not in self.loaders:
            raise ConfigError(
                f"There is no data called {split!r}. {suggest_names(split, self.loaders)}"
            )
        if split is not None and self.task.loss is None:
            raise ConfigError("The Task has no loss to measure. Say Task(loss=...).")

    def check_in_memory(self) -> None:
        """Check validation sets in memory for values that make their loss NaN.

        Raises:
            DataError: a set has such a sample.
        """
        model, parts = self.loop.state.model, self.loop.parts
        forward = forward_of(model, parts.autocast)
        if parts.loss.kind in ("none", "in training"):
            return
        with eval_mode(model), torch.no_grad(), preserve_torch_rng(self.plan.device):
            for name in self.task.val_sets():
                check_in_memory(name, self.loaders[name], parts.loss, forward)
            pop_logged()

    def measure(self, split: str | None, warn: Callable[[str], object]) -> dict[str, Value]:
        """Return the metrics of a split, or of all validation sets, by "split/metric".

        Args:
            split: its name; None is all validation sets.
            warn: told why a loss is not finite.
        """
        self.sync_buffers()
        names = list(self.task.val_sets()) if split is None else [split]
        feeds = {name: self.loaders[name] for name in names}
        with evaluation_oom(
            self.loop, max((each.layout.batch_size for each in feeds.values()), default=0)
        ):
            return evaluate_parts(
                self.loop.state.model,
                feeds,
                self.loop.parts.loss,
                self.task.metrics,
                autocast=self.loop.parts.autocast,
                world=self.loop.world,
                warn=warn,
            )

    def predict(self, split: str, mc_dropout: int | None) -> Predictions:
        """Return what the model says of each sample of a split."""
        self.sync_buffers()
        feed = open_feed(self.task, self.plan, split)
        parts = self.loop.parts
        try:
            return predict(
                self.loop.state.model,
                feed,
                parts.loss,
                autocast=parts.autocast,
                passes=mc_dropout,
            )
        finally:
            feed.close()

    def sync_buffers(self) -> None:
        """Hold the buffers of the first rank, which are saved and which DDP goes on with."""
        if self.loop.world.size > 1:
            broadcast_module(self.loop.state.model, weights=False)

    @contextmanager
    def using_checkpoint(self, run: Run, which: Which) -> Iterator[CheckpointInfo]:
        """Let the model hold the weights of a checkpoint, and give its own back.

        What a keeper has and the model lacks is kept whole on each rank's host meanwhile.
        """
        model, keeper = self.loop.state.model, self.loop.state.keeper
        kept, apart = copy.deepcopy(model.state_dict()), {}
        if keeper is not None and any(not each.numel() for each in model.parameters()):
            apart = {name: each.local.to("cpu", copy=True) for name, each in keeper.weights()}
        found = choose_checkpoint(self.loop.world, run, which)
        found.load(model, keeper if apart else None)
        try:
            yield found.saved
        finally:
            tensors = {name: each for name, each in kept.items() if isinstance(each, Tensor)}
            lacking = {name for name, each in tensors.items() if apart and not each.numel()}
            here = {name: each for name, each in kept.items() if name not in lacking}
            model.load_state_dict(here, strict=not lacking)
            for name, whole in apart.items():
                assert keeper is not None
                keeper.put_weight(name, whole)

    def average(self) -> AveragedWeights | None:
        """Return the average of the weights, ready to be used; None where there is none yet."""
        average, place = self.loop.state.average, self.loop.state.progress
        if average is None or not average.n_updates(place.steps_taken):
            return None
        recompute_statistics(average, self.loop.parts, self.task, self.plan)
        return average

    def close(self) -> None:
        """Let the workers go."""
        for feed in self.loaders.values():
            feed.close()
