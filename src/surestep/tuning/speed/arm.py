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
from surestep.tuning.speed.time_shares import TimeShares, measure_shares

_STEPS_WITHOUT_END = 2**40
_WARM_UP = 2  # steps, of which the first may compile
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
        self._loop = built.loop
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
