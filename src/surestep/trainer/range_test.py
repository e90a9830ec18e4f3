"""The learning-rate range test: real steps of a Task while its rate rises from step to step.

The steps are those of the run: its loss, clipping, precision, accumulation, groups and order of the
data, on all ranks together. Only the schedule is left out, and the average of the weights.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch

from surestep.base.errors import ConfigError, NonFiniteError, suggest_names
from surestep.engine.data.batch_loader import make_loader
from surestep.engine.distributed.communicator import ALONE, Communicator
from surestep.engine.optim.build import CombinedOptimizer
from surestep.engine.optim.multi import arrange_groups
from surestep.engine.optim.param_groups import make_param_groups
from surestep.engine.parallel.strategy import strategy_class
from surestep.engine.plan.fitting import SizesByStep
from surestep.engine.plan.plan import Plan
from surestep.engine.resolve.data import why_not_split
from surestep.engine.resolve.optim import FOLLOWS_LR, why_not_measured
from surestep.engine.schedule.compare_rates import average_end
from surestep.engine.schedule.registry import ScheduleSpec
from surestep.engine.schedule.suggest_lr import RangeCurve, has_fallen
from surestep.engine.state.state import WHOLE, State
from surestep.engine.step.fitted_steps import FittedSteps
from surestep.engine.step.loop import Loop
from surestep.engine.step.part import Functions
from surestep.engine.step.train_step import StepResult
from surestep.engine.value import number
from surestep.record.pretrained import load_init_weights
from surestep.trainer.build import BuiltLoop, build
from surestep.trainer.evaluator import Evaluator
from surestep.trainer.explain_memory import explain_memory_errors
from surestep.trainer.memory_failure import Failure
from surestep.trainer.planning import PreparedTask
from surestep.trainer.rank_consistency import check_same_weights
from surestep.trainer.task_snapshot import preserve_task

LR, ADAMW_LR = "optim.lr", "optim.adamw_lr"
_SMOOTHING = 0.8  # of the mean loss that is compared with the lowest one
_FEWEST = 20  # steps of a range test
_FIRST = 5  # steps, after which that mean is no longer one of single losses
_TIMES_WORSE = 3.0  # the loss has diverged when it has risen by so many times what it fell
_MOST_SKIPPED = 32  # steps one after another: fp16 halves its loss scale at most so often


@dataclass(frozen=True)
class MeasuredRate:
    """The learning rate that a range test varies.

    Attributes:
        optimizer: whose rate it is, as `--optimizer` names it.
        option: which sets it; "" if the Task does, in `Task(optimizers=)`.
        key: of the optimizer in the State.
        part: of a CombinedOptimizer; None is all of it.
    """

    optimizer: str
    option: str
    key: str = WHOLE
    part: int | None = None


@dataclass(frozen=True)
class RateRange:
    """The rates of a range test: `steps` of them, from `lowest` to `highest`."""

    lowest: float = 1e-7
    highest: float = 10.0
    steps: int = 200

    def __post_init__(self) -> None:
        ends = (self.lowest, self.highest)
        if not all(map(_is_number, ends)) or not 0 < self.lowest < self.highest < math.inf:
            raise ConfigError(
                f"lowest={self.lowest!r} and highest={self.highest!r} are not a range of learning "
                "rates. Set two numbers above 0, the lower one first, such as lowest=1e-7 and "
                "highest=10."
            )
        if not is_count(self.steps) or self.steps < _FEWEST:
            raise ConfigError(
                f"steps={self.steps!r} is not a number of steps in which the loss falls and rises. "
                f"Set {_FEWEST} or more; the default is 200."
            )

    def list_rates(self) -> list[float]:
        """Return the rates, each the one before times a constant."""
        ratio = (self.highest / self.lowest) ** (1 / (self.steps - 1))
        return [self.lowest * ratio**number for number in range(self.steps)]


def is_count(value: object) -> bool:
    """Return whether a value is a whole number; True and False are not."""
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return is_count(value) or isinstance(value, float)


def choose_rate(planned: PreparedTask, optimizer: str | None) -> MeasuredRate:
    """Return the rate to measure: that of an optimizer by name, or the only one.

    Raises:
        ConfigError: there is none, there are several, or a range test cannot measure it.
    """
    plan, task = planned.plan, planned.task
    if task.optimizer is not None:
        raise ConfigError(
            "The Task brings its own optimizer, whose learning rate optim.lr does not set, so no "
            "range test measures it. Use Config(optim={'name': 'sgd', 'momentum': 0.9}), or "
            "another name, and leave Task(optimizer=...) out."
        )
    rates = {rate.optimizer: rate for rate in _list_rates(plan)}
    if optimizer is None and len(rates) > 1:
        names = " or ".join(f"--optimizer {name}" for name in rates)
        raise ConfigError(
            f"There are several learning rates, of {' and '.join(rates)}, and a range test "
            f"measures one at a time. Pass {names} (optimizer= in Python); the others keep theirs."
        )
    if optimizer is not None and optimizer not in rates:
        names = suggest_names(str(optimizer), rates)
        raise ConfigError(f"There is no optimizer {optimizer!r}. {names}")
    rate = next(iter(rates.values())) if optimizer is None else rates[optimizer]
    name = (plan.optimizers.get(rate.key) or plan).optim_name
    if name == "own":
        raise ConfigError(
            f"The optimizer {rate.optimizer!r} is made by a function of the Task, whose learning "
            "rate no option sets, so no range test measures it. Use surestep.Optim(...) "
            "instead."
        )
    if rate.part != 1 and (why := why_not_measured(name)) is not None:
        raise ConfigError(f"A range test measures a learning rate, and {why}")
    return rate


def _list_rates(plan: Plan) -> Iterator[MeasuredRate]:
    for name, own in plan.optimizers.items():
        parts = [0, 1] if _has_two_rates(own) else [None]
        for part in parts:
            yield MeasuredRate(f"{name}.adamw" if part else name, "", name, part)
    if not plan.optimizers:
        if _has_two_rates(plan):
            yield MeasuredRate(plan.optim_name, LR, part=0)
            yield MeasuredRate("adamw", ADAMW_LR, part=1)
        else:
            yield MeasuredRate(plan.optim_name, LR)


def _has_two_rates(plan: Plan) -> bool:
    """Return whether AdamW updates some parameters beside another optimizer, with its own rate."""
    if "adamw_lr" not in plan.optim_options:
        return False
    return plan.optim_options["adamw_lr"] is not None and plan.reason(ADAMW_LR) != FOLLOWS_LR


def check_can_restore(planned: PreparedTask) -> None:
    """Raise a ConfigError if a strategy changes a model that is built already for good."""
    name = planned.plan.parallel_strategy
    if isinstance(planned.task.model, torch.nn.Module) and not strategy_class(name).copies_model:
        raise ConfigError(
            f"A range test trains the model, and parallel.strategy={name!r} splits it for good. "
            "Pass a function that builds it: Task(lambda: Net())."
        )


def measure_curve(
    planned: PreparedTask,
    rate: MeasuredRate,
    rates: Sequence[float],
    world: Communicator = ALONE,
) -> RangeCurve:
    """Train at one rate after another, until the loss diverges; restore the objects of the Task.

    Args:
        planned: the Task, for one seed; all other options are its own.
        rate: the rate that changes.
        rates: its value in each step.
        world: the ranks, which measure it together.

    Raises:
        ConfigError: no parameter has this rate.
    """
    with _build_steps(planned, rate, rates, world) as (built, groups):
        return _take_steps(built, groups, rate, rates)


class TrainingEnd(NamedTuple):
    """What a short training ended with.

    Attributes:
        loss: that of the first validation set, of at most as many batches as the training has
            steps, or the mean of the last steps if there is no set; infinite if it diverged.
        fell: the loss of the steps fell by more than their noise.
    """

    loss: float
    fell: bool


def measure_end(
    planned: PreparedTask,
    rate: MeasuredRate,
    rates: Sequence[float],
    world: Communicator = ALONE,
) -> TrainingEnd:
    """Train as `measure_curve` does, and measure the loss at the end."""
    with _build_steps(planned, rate, rates, world) as (built, groups):
        losses = _take_steps(built, groups, rate, rates).losses
        if len(losses) < len(rates) or not math.isfinite(losses[-1]):
            return TrainingEnd(math.inf, fell=False)
        loss = _evaluate(built, len(rates))
        loss = average_end(losses) if loss is None else loss
    return TrainingEnd(loss if math.isfinite(loss) else math.inf, has_fallen(losses))


def _evaluate(built: BuiltLoop, batches: int) -> float | None:
    """Return the loss of the first validation set; None if there is none, or no loss for it."""
    planned, loop = built.planned, built.loop
    if planned.task.val is None or loop.context.loss.kind in ("none", "in training"):
        return None
    limits = [limit for limit in (planned.plan.limit_val_batches, batches) if limit is not None]
    plan = planned.plan.replace(limit_val_batches=min(limits))
    task = replace(planned.task, metrics={})
    name, data = next(iter(task.val_sets().items()))
    loader = make_loader(data, name, task=task, loss=planned.loss, plan=plan)
    try:
        values = Evaluator(plan, task, loop, {name: loader}).evaluate(name, lambda text: None)
    finally:
        loader.close()
    (loss,) = loop.world.broadcast_json([number(values[f"{name}/loss"])])
    return float(loss)


@contextmanager
def _build_steps(
    planned: PreparedTask, rate: MeasuredRate, rates: Sequence[float], world: Communicator
) -> Iterator[tuple[BuiltLoop, list[tuple[dict[str, Any], float]]]]:
    """Yield the loop of a run without its schedule, and the groups of parameters of a rate.

    The objects of the Task are restored at the end.
    """
    check_can_restore(planned)
    task = replace(planned.task, schedule=None)
    changed = replace(planned, task=task, plan=_make_plan(planned.plan, rate, rates))
    failure = Failure("while the learning rate was measured", planned, planned.model)
    with preserve_task(planned), ExitStack() as settings, explain_memory_errors(failure):
        multiples = _find_multiples(changed, rate)
        init = load_init_weights(planned.model, planned.task.init)
        check_same_weights(world, planned.model)
        built = build(changed, settings, (), fresh=init is None, world=world)
        groups = _find_groups(built.loop.state, rate, multiples)
        if planned.fits and world.size == 1:
            fit_without_record(built.loop, planned)
        yield built, groups


def fit_without_record(loop: Loop, planned: PreparedTask) -> None:
    """Take steps that run out of memory again in smaller micro-batches, which no run records."""
    sizes = SizesByStep([(1, loop.loader.layout.micro_batch_size)])
    why_not = why_not_split(planned.info)
    loop.fit_memory(FittedSteps(loop.loader, sizes, lambda change: None, why_not=why_not))


def _make_plan(plan: Plan, rate: MeasuredRate, rates: Sequence[float]) -> Plan:
    """Return the Plan of the run with the first rate, and without schedule and average."""
    total = 2 * len(rates) + _MOST_SKIPPED  # it ends before
    bare = {"schedule": ScheduleSpec("constant", total), "total_steps": total}
    average = replace(plan.average, kind="none")

    def lower(own: Plan) -> Plan:
        options = dict(own.optim_options)
        if rate.part != 0 and "adamw_lr" in options:
            options["adamw_lr"] = rates[0]
        lr = own.optim_lr if rate.part == 1 else rates[0]
        return own.replace(optim_lr=lr, optim_options=options)

    if not plan.optimizers:
        return lower(plan.replace(average=average, **bare))
    optimizers = {
        name: (lower(own) if name == rate.key else own).replace(average=average, **bare)
        for name, own in plan.optimizers.items()
    }
    return plan.replace(optimizers=optimizers, average=average, **bare)


def _find_multiples(planned: PreparedTask, rate: MeasuredRate) -> dict[str, float]:
    """Return the multiple of the rate that each group has, by its name; others have their own."""
    plan, task, model = planned.plan, planned.task, planned.model
    if plan.optimizers:
        groups = arrange_groups(plan, task, model)[rate.key]
    else:
        groups = make_param_groups(model, plan)
    return {group.name: group.multiple for group in groups if group.multiple is not None}


def _find_groups(
    state: State, rate: MeasuredRate, multiples: Mapping[str, float]
) -> list[tuple[dict[str, Any], float]]:
    """Return the groups of an optimizer that follow the rate, each with its multiple of it."""
    optimizer = state.optimizers[rate.key]
    if rate.part is not None and isinstance(optimizer, CombinedOptimizer):
        optimizer = optimizer.parts[rate.part]
    named = [(group, multiples.get(group["name"])) for group in optimizer.param_groups]
    groups = [(group, multiple) for group, multiple in named if multiple is not None]
    if not groups:
        raise ConfigError(
            "optim.groups sets the learning rate of every parameter, so none follows "
            f"{rate.option or rate.optimizer}. Write the rates of groups as multiples of it, such "
            "as 'head.* lr=10x'."
        )
    return groups


def _take_steps(
    built: BuiltLoop,
    groups: Sequence[tuple[dict[str, Any], float]],
    rate: MeasuredRate,
    rates: Sequence[float],
) -> RangeCurve:
    loop, losses = built.loop, list[float]()
    late = Functions("late generators", on_first_step=lambda state: built.seed_late_generators())
    loop.attach([late], notify=lambda text: None)
    skipped, divergence = 0, Divergence()
    with _closing_steps(loop) as steps:
        while len(losses) < len(rates):
            for group, multiple in groups:
                group["lr"] = rates[len(losses)] * multiple
            loss, took_step = _take_step(loop, steps, rate)
            if not took_step and (loss is None or math.isfinite(loss)):
                skipped += 1  # a batch without items, or fp16 lowers its loss scale
                if skipped <= _MOST_SKIPPED:
                    continue
                loss = math.nan
            skipped = 0
            losses.append(math.nan if loss is None else loss)
            if divergence.has_come(losses[-1]):
                break
    return RangeCurve(tuple(rates[: len(losses)]), tuple(losses))


@contextmanager
def _closing_steps(loop: Loop) -> Iterator[Iterator[StepResult]]:
    steps = loop.steps()
    try:
        yield steps
    finally:
        steps.close()
        loop.log.pending.clear()


def _take_step(
    loop: Loop, steps: Iterator[StepResult], rate: MeasuredRate
) -> tuple[float | None, bool]:
    """Take a step; return the loss before it, None if its batch had no items, and whether it was.

    The ranks agree on both.
    """
    try:
        result = next(steps)
    except NonFiniteError:
        return math.nan, False
    loss = None if result.loss_sum is None else float(result.loss)
    name = f"{rate.key}/loss"  # of a manual step, whose loss is the sum over its optimizers
    loss = next((float(one.value) for one in result.logged if one.name == name), loss)
    took_step = bool(result.took_step)
    if loop.world.size > 1:
        loss, took_step = loop.world.broadcast_json([loss, took_step])
    return loss, took_step


class Divergence:
    """Whether the loss is not finite, or its smoothed value is far above the lowest one so far."""

    def __init__(self) -> None:
        self._count, self._weighted = 0, 0.0
        self._first, self._lowest = math.nan, math.inf

    def has_come(self, loss: float) -> bool:
        """Add the loss of a step; return whether the test is over."""
        if not math.isfinite(loss):
            return True
        self._count += 1
        self._weighted = _SMOOTHING * self._weighted + (1 - _SMOOTHING) * loss
        smoothed = self._weighted / (1 - _SMOOTHING**self._count)
        if self._count <= _FIRST:
            self._first = smoothed
        self._lowest = min(self._lowest, smoothed)
        fell = max(abs(self._lowest), self._first - self._lowest)
        return self._count > _FIRST and smoothed > self._lowest + _TIMES_WORSE * fell
