"""Estimates the time of a whole run from its measured parts: start, steps, evaluations, saves.

The parts are measured in a run of the same task in a temporary folder, so that they are those of a
run with its records, progress and checkpoints.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from surestep.base.errors import ConfigError
from surestep.base.temp_folders import make_temp_folder
from surestep.base.text import format_duration
from surestep.config.config import Config
from surestep.config.duration import PeriodicTrigger
from surestep.engine.device import wait_for
from surestep.engine.plan.plan import Plan
from surestep.engine.step.train_step import StepResult
from surestep.engine.task.task import Task
from surestep.trainer.planning import TaskOrigin
from surestep.trainer.prepare import prepare
from surestep.trainer.scheduled import count_evaluations
from surestep.trainer.session import Session

_WARM_UP = 3  # steps that are not counted: the first ones compile and fill caches
_EVALUATES, _SAVES = "ScheduledEvaluation", "ScheduledSaving"


@dataclass(frozen=True)
class WholeRun:
    """The time of a run that nothing ends early.

    Attributes:
        steps: of the run.
        step_s: seconds of one, with what is recorded and shown at log points.
        logging_s: what of it the parts beside the step take: records, progress, callbacks.
        evaluations: how many there are; None if that is not known before.
        evaluation_s: seconds of one of all validation sets.
        saves: checkpoints between the steps, without the one at the end; None if not known.
        best_saves: the most there can be besides, of evaluations that are among the best.
        save_s: seconds for which training waits for one.
        start_s: from the call to the first step, and what the first steps take longer than others.
        end_s: from the last step to the end, with the last checkpoint.
    """

    steps: int
    step_s: float
    logging_s: float
    evaluations: int | None
    evaluation_s: float
    saves: int | None
    save_s: float
    start_s: float
    end_s: float
    best_saves: int = 0

    @property
    def parts(self) -> dict[str, float]:
        """The seconds of the whole run by part; what is not known counts as none."""
        logging_s = self.steps * self.logging_s
        return {
            "steps": self.steps * self.step_s - logging_s,
            "logging": logging_s,
            "evaluation": (self.evaluations or 0) * self.evaluation_s,
            "checkpoint": ((self.saves or 0) + self.best_saves) * self.save_s,
            "start": self.start_s,
            "end": self.end_s,
        }

    @property
    def total_s(self) -> float:
        """Seconds of the whole run."""
        return sum(self.parts.values())

    def with_step(self, step_s: float) -> "WholeRun":
        """Return the run with steps that take a different time, without their logging."""
        return replace(self, step_s=step_s + self.logging_s)

    def as_dict(self) -> dict[str, Any]:
        """Return what JSON holds of it."""
        return {**asdict(self), "parts": self.parts, "total_s": self.total_s}

    def describe(self) -> list[str]:
        """Return lines for the terminal."""
        saves = _shown(self.saves)
        if self.best_saves:
            saves += f", and at most {self.best_saves:,} of the best"
        evaluations = _shown(self.evaluations)
        counts = {"steps": _shown(self.steps), "evaluation": evaluations, "checkpoint": saves}
        lines = [f"The whole run takes {format_duration(self.total_s)}:"]
        for name, seconds in self.parts.items():
            count = "" if name not in counts else f" ({counts[name]})"
            share = seconds / self.total_s
            lines.append(f"  {name + count:<44} {share:>6.1%}  {format_duration(seconds)}")
        return lines


def _shown(count: int | None) -> str:
    return "number not known, not counted" if count is None else f"{count:,}"


def measure_whole_run(
    task: Task, config: Config, *, seconds: float = 5.0, origin: TaskOrigin | None = None
) -> WholeRun:
    """Measure the parts of a run in a temporary folder, and estimate the run.

    It trains the Task's model, so give it another Task than the one you train.

    Args:
        task: what would be trained.
        config: the options; trackers and mirrors are left out.
        seconds: how long steps are taken, beside one evaluation and two saves.
        origin: where the Task came from.

    Raises:
        ConfigError: `seconds` is not above 0.
    """
    if not seconds > 0:
        raise ConfigError(f"seconds={seconds} leaves nothing to measure in. Set a number above 0.")
    quiet = {"logging.progress": "quiet", "logging.trackers": (), "checkpoint.mirror": None}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(make_temp_folder()))
        started = time.perf_counter()
        config = config.replace_options(quiet)
        session = prepare(task, config, run=folder / "run", origin=origin)
        stack.callback(session.close)
        prepared_s = time.perf_counter() - started
        return _measure(session, prepared_s, seconds)


def _measure(session: Session, prepared_s: float, seconds: float) -> WholeRun:
    plan, steps = session.plan, session.steps()
    first_s = _time_steps(session, steps, _WARM_UP)
    parts_s, end_timing = session.loop.parts.time()
    step_s, count = _repeat_steps(session, steps, seconds)
    end_timing()
    evaluations = count_evaluations(session) if session.task.val_sets() else 0
    beside_s = sum(own for name, own in parts_s.items() if name not in (_EVALUATES, _SAVES))
    evaluation_s = 0.0
    if session.task.val_sets():
        evaluation_s = _time(session, session.evaluate)
    save_s = _time(session, session.saving.save_async)
    last_save_s = _time(session, session.saving.wait)
    end_s = save_s + last_save_s + _time(session, session.close)
    return WholeRun(
        steps=plan.total_steps,
        step_s=step_s,
        logging_s=min(beside_s / count, step_s),
        evaluations=evaluations,
        evaluation_s=evaluation_s,
        saves=_count_saves(plan, step_s),
        save_s=save_s,
        start_s=prepared_s + max(0.0, first_s - _WARM_UP * step_s),
        end_s=end_s,
        best_saves=_count_best_saves(plan, evaluations),
    )


def _repeat_steps(
    session: Session, steps: Iterator[StepResult], seconds: float
) -> tuple[float, int]:
    """Take steps for some seconds, in windows that double; return the time of one and how many."""
    total_s, total, count = 0.0, 0, 1
    left = session.plan.total_steps - session.state.progress.step
    while total_s < seconds and total < left:
        count = min(2 * count, left - total)
        total_s += _time_steps(session, steps, count)
        total += count
    return total_s / max(total, 1), max(total, 1)


def _time_steps(session: Session, steps: Iterator[StepResult], count: int) -> float:
    return _time(session, lambda: list(islice(steps, count)))


def _time(session: Session, function: Callable[[], object]) -> float:
    device = session.plan.device
    wait_for(device)
    started = time.perf_counter()
    function()
    wait_for(device)
    return time.perf_counter() - started


def _count_saves(plan: Plan, step_s: float) -> int | None:
    """Return how many checkpoints a run saves between its steps; None if it is not known."""
    trigger = PeriodicTrigger(plan.checkpoint_every, plan.steps_per_epoch)
    due = trigger.count_due(plan.total_steps - 1)
    if due is None and trigger.unit == "minutes":
        due = int(plan.total_steps * step_s / trigger.period)
    least_s = plan.checkpoint_min_seconds or 0.0
    if due is None or not least_s:
        return due
    return min(due, int(plan.total_steps * step_s / least_s))


def _count_best_saves(plan: Plan, evaluations: int | None) -> int:
    """Return how many evaluations may each save a step that is among the best.

    Which ones do, only the run shows. The last step is saved in any case, and a step is saved once.
    """
    if not plan.checkpoint_keep_best or plan.validation_metric is None or not evaluations:
        return 0
    is_saved_already = plan.validation_every == plan.checkpoint_every
    return 0 if is_saved_already and not plan.checkpoint_min_seconds else evaluations - 1
