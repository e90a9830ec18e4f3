"""A training that is measured: the steps of a run with some options, without a run folder."""

import gc
import math
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from surestep.base.processes import list_children
from surestep.engine.data.sources import MapStyleSource
from surestep.engine.device import wait_for
from surestep.engine.distributed.communicator import ALONE, Communicator
from surestep.engine.model.precision import torch_settings
from surestep.engine.plan.plan import Plan
from surestep.engine.state.state import Progress
from surestep.engine.step.part import Functions
from surestep.laws.record import Place, RunRecord, record_steps
from surestep.recipes.find import find
from surestep.recipes.load import RecipeCall, call_recipe, load_file
from surestep.record.pretrained import load_init_weights
from surestep.trainer.build import build
from surestep.trainer.planning import PreparedTask, plan_task
from surestep.trainer.range_test import fit_without_record
from surestep.tuning.speed.time_shares import TimeShares, count_steps, measure_shares

_STEPS_WITHOUT_END = 2**40
_WARM_UP = 2  # steps, of which the first may compile
_VISITED_WINDOWS = 3  # whose images are kept before one is timed: two processes take so many
_POLL_S = 0.02
_BUSY = 0.01  # of a core: a worker above it is not idle
_LONGEST_WAIT_S = 5.0  # for workers to fill their buffers
_WITHOUT_PROC_S = 0.3  # where the time of workers is not known


class PlannedRecipe(NamedTuple):
    """A run of a recipe that is planned, and the module that the recipe was loaded as."""

    planned: PreparedTask
    module: ModuleType


def plan_recipe(recipe: str, options: Mapping[str, Any]) -> PlannedRecipe:
    """Load a recipe again, and plan a run of it.

    Args:
        recipe: its name or path.
        options: of the Config and, as "task.NAME", of the recipe.
    """
    call = load_call(recipe, options)
    planned = plan_task(call.task(), call.config, origin=call.origin)
    return PlannedRecipe(planned, call.recipe.module)


def load_call(recipe: str, options: Mapping[str, Any]) -> RecipeCall:
    """Load a recipe again, with options; see `plan_recipe`."""
    loaded = load_file(find(recipe))
    return call_recipe(loaded, options, dict.fromkeys(options, "surestep tune"))


class Arm:
    """A training with some options, of which windows of steps are timed.

    Attributes:
        plan: the resolved options.
        skipped: how many steps of a window are not timed, since workers loaded them while the arm
            was paused.
        start_s: how long it took to build the loop and to take the first steps, beyond what such
            steps take later.
        first_epoch_s: how much longer the first epoch takes, in which images are decoded that are
            kept.

    Args:
        recipe: what to train.
        world: the ranks.
    """

    def __init__(self, recipe: PlannedRecipe, world: Communicator = ALONE) -> None:
        started = time.perf_counter()
        planned, self._module = recipe
        self.plan, self.skipped = planned.plan, _count_ahead(planned.plan)
        self._settings = ExitStack()
        endless = replace(planned, plan=self.plan.replace(total_steps=_STEPS_WITHOUT_END))
        with torch_settings(self.plan):
            init = load_init_weights(planned.model, planned.task.init)
            built = build(endless, self._settings, (), fresh=init is None, world=world)
            late = lambda _: built.seed_late_generators()  # noqa: E731
            parts = [Functions("late generators", on_first_step=late)]
            built.loop.attach(parts, notify=lambda text: None)
            if planned.fits and world.size == 1:
                fit_without_record(built.loop, planned)
        self._loop, self._world = built.loop, world
        self._visited = 0  # steps at the start of an epoch, whose images are kept
        self.first_epoch_s = 0.0
        self._start_steps()
        self.start_s = time.perf_counter() - started

    def _start_steps(self) -> None:
        self._steps, self._is_started = self._loop.steps(), False

    def warm_up(self) -> None:
        """Take the first steps, and note how much longer they take than the same steps later."""
        first = self.take_window(_WARM_UP, skipped=0)
        later = self.take_window(_WARM_UP)
        self.start_s += _WARM_UP * max(0.0, first["seconds"] - later["seconds"])

    def rewind(self) -> None:
        """Continue at the first position of the data, with the weights that the arm has."""
        self._steps.close()
        self._loop.log.pending.clear()
        self._loop.state.progress = Progress()
        self._start_steps()

    @property
    def keeps_images(self) -> bool:
        """Whether images are decoded in the first epoch only."""
        return self.plan.data_keep_decoded is not None

    def take_compared_window(self, steps: int, *, revisits: bool) -> dict[str, float]:
        """Take a window; return it with what the start and the first epoch take longer.

        Args:
            steps: that are timed.
            revisits: one of the arms that are compared keeps images, so both read samples that
                were read before.
        """
        if revisits:
            count = self.skipped + steps
            self._return_to_visited(_VISITED_WINDOWS * count, count)
        start = {"start_s": self.start_s, "first_epoch_s": self.first_epoch_s}
        return {**self.take_window(steps), **start}

    def _return_to_visited(self, needed: int, count: int) -> None:
        """Let the next steps read samples that were read before, as from the second epoch on.

        An epoch may take too long for that, so it is the start of one, again and again.

        Args:
            needed: steps to visit, as far as an epoch has them.
            count: the next steps.
        """
        epoch: int = self.plan.steps_per_epoch
        known = min(2 * (_WARM_UP + self.skipped), epoch // 2)  # the first steps have loaded them
        needed = min(1 + known + needed, epoch)  # one is taken when it begins again
        if self._visited < needed:
            self._visited = self._visit(known, needed) if self.keeps_images else needed
            self._begin_again()
        if self._visited < epoch and self._loop.state.progress.step + count > self._visited:
            self._begin_again()

    def _visit(self, known: int, steps: int) -> int:
        """Read the first samples twice, and note how much longer the first time takes.

        Args:
            known: steps whose samples were read before.
            steps: to take.

        Returns:
            Steps whose images are kept: all of an epoch if not all of its images will be.
        """
        epoch: int = self.plan.steps_per_epoch
        timed = max(1, steps - 1 - known)
        first_s = self._time_first(known, timed)
        if steps < epoch and self._is_too_much(epoch / steps):
            rest_s = self.take_window(epoch - steps, skipped=0)["seconds"]
            first_s = (steps * first_s + (epoch - steps) * rest_s) / epoch
            known, steps, timed = 0, epoch, epoch
        longer_s = epoch * (first_s - self._time_first(known, timed))
        self.first_epoch_s = max(self.first_epoch_s, longer_s)
        return steps

    def _time_first(self, skipped: int, steps: int) -> float:
        """Begin again; return the seconds of one of the steps after those that are skipped."""
        self._begin_again()
        return self.take_window(steps, skipped)["seconds"]

    def _is_too_much(self, times: float) -> bool:
        """Return whether so many times the images that are kept would not fit, on any rank."""
        source = self._loop.loader.source
        if not isinstance(source, MapStyleSource) or source.decoded is None:
            return False
        store = source.decoded.store
        return self._world.all_reduce_sum([store.used * times > store.size])[0] > 0

    def _begin_again(self) -> None:
        """Continue at the first position of the data, with workers that have loaded it."""
        self.rewind()
        with self._running():
            self._take(1)

    def take_window(self, steps: int, skipped: int | None = None) -> dict[str, float]:
        """Time steps; return the seconds of one, and how many of them it waited for data.

        Args:
            steps: that are timed.
            skipped: steps before them; None is `self.skipped`.
        """
        log = self._loop.log
        with self._running():
            self._take(self.skipped if skipped is None else skipped)
            wait_for(self.plan.device)
            waited, started = log.data_wait_s, time.perf_counter()
            self._take(steps)
            wait_for(self.plan.device)
            seconds = time.perf_counter() - started
        return {"seconds": seconds / steps, "wait_s": (log.data_wait_s - waited) / steps}

    def measure_shares(self, steps: int) -> TimeShares:
        """Measure where the time of a step goes, in windows of some steps."""
        if self.keeps_images:
            needed = self.skipped + count_steps(steps)
            self._return_to_visited(needed, needed)
        with self._running():
            self._take(self.skipped)
            shares = measure_shares(self._loop, self._steps, count=steps)
        self.rewind()
        return shares

    def train(self, steps: int) -> list[float]:
        """Train; return the loss of each step, NaN if its batch had no items."""
        with self._running():
            taken = [next(self._steps) for _ in range(steps)]
            return [math.nan if one.loss_sum is None else float(one.loss) for one in taken]

    def record(self, steps: int, place: Place | None) -> RunRecord:
        """Record the first steps bit for bit.

        Args:
            steps: how many.
            place: of a tensor that is kept.
        """
        with self._running():
            return record_steps(self._loop, steps, keep=place)

    def _take(self, steps: int) -> None:
        for _ in range(steps):
            next(self._steps)

    def close(self) -> None:
        """End the workers, and free the memory."""
        self._steps.close()
        self._loop.log.pending.clear()
        self._settings.close()
        gc.collect()

    @contextmanager
    def _running(self) -> Iterator[None]:
        """Use the settings and the recipe's module of this arm, with idle workers."""
        sys.modules[self._module.__name__] = self._module
        # Steps that begin while those of another arm have disabled the collector never collect.
        (gc.disable if self._is_started else gc.enable)()
        self._is_started = True
        with torch_settings(self.plan):
            wait_for_idle_workers()
            yield


def wait_for_idle_workers() -> None:
    """Wait until the workers of all arms have filled their buffers, since loading takes cores."""
    workers = list_children(os.getpid())
    end = time.perf_counter() + _LONGEST_WAIT_S
    if workers and not Path("/proc/self/schedstat").exists():
        time.sleep(_WITHOUT_PROC_S)
        return
    while workers and time.perf_counter() < end:
        before = _read_cpu_s(workers)
        time.sleep(_POLL_S)
        if _read_cpu_s(workers) - before < _BUSY * _POLL_S * len(workers):
            return


def _read_cpu_s(pids: Sequence[int]) -> float:
    """Return how long processes and their threads have run on a core."""
    total = 0
    for pid in pids:
        for path in Path(f"/proc/{pid}/task").glob("*/schedstat"):
            try:
                total += int(path.read_text().split()[0])
            except OSError:  # it has ended
                continue
    return total / 1e9


def _count_ahead(plan: Plan) -> int:
    """Return how many steps are loaded ahead at most: 1, or what the workers have in buffers."""
    ahead = plan.data_num_workers * (plan.data_prefetch_factor or 2)
    size: int = plan.micro_batch_size * plan.parallel_ranks
    micro_batches = max(1, -(-plan.batch_size // size))
    return int(1 + -(-ahead // micro_batches))
