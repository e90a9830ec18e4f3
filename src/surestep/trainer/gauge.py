"""What measures an open run: its parts of the data, by the weights or their average."""

import copy
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from surestep.base.errors import ConfigError, near
from surestep.engine.average import Average
from surestep.engine.data.feed import Feed
from surestep.engine.evaluate import eval_mode, evaluate_parts
from surestep.engine.evaluation.nonfinite import check_in_memory, forward_of
from surestep.engine.evaluation.predict import Predictions, predict
from surestep.engine.loop import Loop
from surestep.engine.metrics import take_logged
from surestep.engine.model.recompute import recompute_statistics
from surestep.engine.parallel.summed import of_first
from surestep.engine.plan import Plan
from surestep.engine.seed import kept_generators
from surestep.engine.task import Task
from surestep.engine.value import Value
from surestep.record.checkpoint.listing import Saved
from surestep.record.run import Run, Which
from surestep.trainer.predict import open_feed
from surestep.trainer.shortage import measuring
from surestep.trainer.together import chosen

_EVERY = 16  # batches between two exchanges of the ranks; a judgement: their price was not measured


def leaving(loop: Loop) -> Callable[[], bool]:
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
            loop.agree()
        return bool(loop.interrupted)

    return leave


class Gauge:
    """Measures the loss and the metrics on parts of the data, with what the model holds.

    Args:
        plan: what was decided.
        task: its metrics and validation sets.
        loop: its model and loss.
        feeds: of each part that can be measured.
    """

    def __init__(self, plan: Plan, task: Task, loop: Loop, feeds: dict[str, Feed]) -> None:
        self.plan = plan
        self.task = task
        self.loop = loop
        self.feeds = feeds
        for each in feeds.values():
            each.leave = leaving(loop)
        for each in (loop.feed, *feeds.values()) if loop.world.size > 1 else ():
            each.retry = loop.stop_together

    def check(self, part: str | None) -> None:
        """Check that there is such a part; None is all validation sets.

        Raises:
            ConfigError: there is not.
        """
        if part is not None and part not in self.feeds:
            raise ConfigError(f"There is no data called {part!r}. {near(part, self.feeds)}")
        if part is not None and self.task.loss is None:
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
        with eval_mode(model), torch.no_grad(), kept_generators(self.plan.device):
            for name in self.task.val_sets():
                check_in_memory(name, self.feeds[name], parts.loss, forward)
            take_logged()

    def measure(self, part: str | None, warn: Callable[[str], object]) -> dict[str, Value]:
        """Return the metrics of a part, or of all validation sets, by "part/metric".

        Args:
            part: its name; None is all validation sets.
            warn: told why a loss is not finite.
        """
        self.take_buffers()
        parts = list(self.task.val_sets()) if part is None else [part]
        feeds = {part: self.feeds[part] for part in parts}
        with measuring(self.loop, max((each.cut.batch_size for each in feeds.values()), default=0)):
            return evaluate_parts(
                self.loop.state.model,
                feeds,
                self.loop.parts.loss,
                self.task.metrics,
                autocast=self.loop.parts.autocast,
                world=self.loop.world,
                warn=warn,
            )

    def predict(self, part: str, mc_dropout: int | None) -> Predictions:
        """Return what the model says of each sample of a part."""
        self.take_buffers()
        feed = open_feed(self.task, self.plan, part)
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

    def take_buffers(self) -> None:
        """Hold the buffers of the first rank, which are saved and which DDP goes on with."""
        if self.loop.world.size > 1:
            of_first(self.loop.state.model, weights=False)

    @contextmanager
    def holding(self, run: Run, which: Which) -> Iterator[Saved]:
        """Let the model hold the weights of a checkpoint, and give its own back.

        What a keeper has and the model lacks is kept whole on each rank's host meanwhile.
        """
        model, keeper = self.loop.state.model, self.loop.state.keeper
        kept, apart = copy.deepcopy(model.state_dict()), {}
        if keeper is not None and any(not each.numel() for each in model.parameters()):
            apart = {name: each.local.to("cpu", copy=True) for name, each in keeper.weights()}
        found = chosen(self.loop.world, run, which)
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

    def average(self) -> Average | None:
        """Return the average of the weights, ready to be used; None where there is none yet."""
        average, place = self.loop.state.average, self.loop.state.place
        if average is None or not average.updates(place.steps_taken):
            return None
        recompute_statistics(average, self.loop.parts, self.task, self.plan)
        return average

    def close(self) -> None:
        """Let the workers go."""
        for feed in self.feeds.values():
            feed.close()
