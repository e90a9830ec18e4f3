"""Find a learning rate by range tests and short trainings: alone, or at the start of a run."""

import math
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

from torch import nn

from surestep.base.arguments import suggest_arguments
from surestep.base.errors import ConfigError, RunError
from surestep.base.text import format_count, print_escaped
from surestep.config.config import Config, argument_instead
from surestep.config.optim import FOUND
from surestep.engine.data.dataset import dataset_of
from surestep.engine.distributed.communicator import Communicator
from surestep.engine.distributed.hang_monitor import GroupTimeouts
from surestep.engine.distributed.process_group import join_process_group
from surestep.engine.model.precision import torch_settings
from surestep.engine.plan.fitting import FoundSize
from surestep.engine.plan.plan import Plan
from surestep.engine.plan.system import read_system
from surestep.engine.resolve.optim import without_find
from surestep.engine.resolve.resolver import resolve_device
from surestep.engine.rng import preserve_all_rng
from surestep.engine.schedule.compare_rates import (
    RateTraining,
    find_spread,
    next_rate,
    suggest_trained,
)
from surestep.engine.schedule.lr import PlateauState, make_lr_factor
from surestep.engine.schedule.suggest_lr import RangeCurve, suggest_lr
from surestep.engine.task.task import Task
from surestep.record.run_writer import RunWriter
from surestep.trainer.arguments import check_arguments
from surestep.trainer.fit_memory import find_start_on_ranks
from surestep.trainer.planning import PreparedTask, TaskOrigin, plan_task
from surestep.trainer.range_test import (
    LR,
    MeasuredRate,
    RateRange,
    choose_rate,
    is_count,
    measure_curve,
    measure_end,
)
from surestep.trainer.rank_consistency import check_same_setup
from surestep.trainer.rank_zero import run_on_rank_zero
from surestep.trainer.resume import Resume

SEEDS = 3
_SHORTEST = 5  # steps of a run whose losses at several rates can be compared


@dataclass(frozen=True)
class LrRangeTest:
    """What range tests and short trainings measured, and the learning rate that they suggest.

    Attributes:
        optimizer: whose rate it is.
        option: which sets it, such as "optim.lr"; "" if the Task does, in `Task(optimizers=)`.
        lr: the rate, with two digits; None if the curves do not show one.
        spread: the lowest and the highest rate that one seed alone suggests, by its trainings or,
            without them, by its curve; None if none does.
        why: how the rate follows from what was measured, or why there is none.
        seeds: of the range tests and the trainings.
        by_seed: the rate that the curve of each seed suggests; None where it shows none.
        curves: the rates of each seed, and the loss before the step with each.
        trainings: short trainings at the rates around what the curves suggest, in their order.
        starts_alike: all seeds start from the weights of a model that is built already.
    """

    optimizer: str
    option: str
    lr: float | None
    spread: tuple[float, float] | None
    why: str
    seeds: tuple[int, ...]
    by_seed: tuple[float | None, ...]
    curves: tuple[RangeCurve, ...] = field(repr=False)
    trainings: tuple[RateTraining, ...] = field(default=(), repr=False)
    starts_alike: bool = False

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON can hold it; a loss that is not finite is None."""
        values = asdict(self)
        for measured in (*values["curves"], *values["trainings"]):
            losses = measured["losses"]
            measured["losses"] = [one if math.isfinite(one) else None for one in losses]
        return values


@suggest_arguments(ConfigError, argument_instead)
def find_lr(
    task: Task,
    config: Config,
    *,
    optimizer: str | None = None,
    seeds: int = SEEDS,
    lowest: float = 1e-7,
    highest: float = 10.0,
    steps: int = 200,
    notify: Callable[[str], object] | None = None,
) -> LrRangeTest:
    """Measure which learning rate to train a Task with, by a range test and short trainings.

    A range test takes real steps while the rate rises exponentially, until the loss diverges. Three
    to five short trainings with the schedule of the run, at rates around what it suggests, follow.
    The model, the generators and all else are restored: training afterwards is bitwise the same.
    Nothing is written.

    Args:
        task: what to train.
        config: the options of the run.
        optimizer: which rate to measure, if there are several.
        seeds: number of range tests, and of trainings at each rate. The first has the seed of the
            config; each other one has a different order of the data, and different first weights if
            a function builds the model.
        lowest: rate of the first step of a range test.
        highest: rate of the last step.
        steps: of one range test, and of a short training unless the run is shorter.
        notify: is called with a line before and after each range test, and after each training.

    Returns:
        The rate and what was measured; `lr` is None if it shows no rate.

    Raises:
        ConfigError, TaskError, DataError: an option is invalid, or the task does not fit together.

    Example:
        >>> import torch
        >>> import surestep
        >>> x = torch.randn(256, 4, generator=torch.Generator().manual_seed(0))
        >>> y = x.sum(1, keepdim=True)
        >>> task = surestep.Task(torch.nn.Linear(4, 1), loss="mse", train=(x, y))
        >>> config = surestep.Config(epochs=2, batch_size=32, optim="sgd")
        >>> found = surestep.find_lr(task, config)
        >>> 0.01 < found.lr < 1
        True
    """
    check_arguments(task, config, None, (), ())
    rates = RateRange(lowest, highest, steps)
    if not is_count(seeds) or seeds < 1:
        raise ConfigError(f"seeds={seeds!r} is not a number of range tests. Set 1 or more.")
    config, system = without_find(config), read_system()
    with ExitStack() as stack:
        stack.enter_context(preserve_all_rng(resolve_device(config, system)))
        planned = plan_task(task, config, system=system)
        plan, launched = planned.plan, system.launched
        stack.enter_context(torch_settings(plan))
        timeouts = GroupTimeouts(plan.parallel_start_timeout_s, plan.parallel_timeout_s)
        joined = join_process_group(launched, backend=plan.parallel_backend, timeouts=timeouts)
        world = stack.enter_context(joined)
        check_same_setup(world, TaskOrigin(), planned)
        with world.explain_errors():
            rate = choose_rate(planned, optimizer)
            return _search(planned, TaskOrigin(), rate, rates, seeds, world, notify)


def find_at_start(
    planned: PreparedTask,
    origin: TaskOrigin,
    recorder: RunWriter,
    world: Communicator,
    resume: Resume,
    from_: str | None,
) -> PreparedTask:
    """Return the task with a number for optim.lr="find".

    It is the one that the run was started with, or that is measured now. If there is no run
    and `resume` is "must", which is an error, nothing is measured.

    Raises:
        RunError: the run was started with a rate that was typed.
        ConfigError: the curves do not show a rate, or the run starts from trained weights.
    """
    recorded = run_on_rank_zero(world, lambda: _read_found(recorder))
    if recorded is not None:
        return _with_lr(planned, recorded)
    if resume == "must":
        return planned
    if from_ is not None:
        raise ConfigError(
            "optim.lr='find' measures the rate from the first weights of the Task, and --from "
            "(from_= in Python) starts at those of a checkpoint. Set a number."
        )
    show = partial(print_escaped, file=sys.stderr)
    is_shown = world.is_first and planned.plan.logging_progress != "quiet"
    bare = replace(planned, config=without_find(planned.config))
    bare = replace(bare, plan=bare.decide(bare.config))
    rate = choose_rate(bare, bare.plan.optim_name)  # that of optim.lr, also beside optim.adamw_lr
    with (
        preserve_all_rng(planned.plan.device),
        warnings.catch_warnings(),
        world.explain_errors(),
    ):
        warnings.simplefilter("ignore")  # the run itself warns again
        notify = show if is_shown else None
        found = _search(bare, origin, rate, RateRange(), SEEDS, world, notify)
    if found.lr is None:
        raise ConfigError(
            f"optim.lr='find' found no learning rate, since {found.why}. Draw the curves with "
            f"`surestep lr-find RECIPE`, or set a number, such as optim.lr={bare.plan.optim_lr:g}."
        )
    return replace(_with_lr(planned, found.lr), range_test=found.as_json())


def _read_found(recorder: RunWriter) -> float | None:
    """Return the rate of a run that was started with optim.lr="find"; None if there is no run."""
    if not recorder.published:
        return None
    before = recorder.run.config
    lr = before["config"].get(LR)
    if "lr_find" not in before or not isinstance(lr, float):
        text = "has no optim.lr" if lr is None else f"has optim.lr={lr}"
        raise RunError(
            f"{recorder.folder} has a run that {text}, which was not measured, so it cannot "
            "resume with optim.lr='find'. Leave that out, or choose a different folder with --run "
            "(run= in Python)."
        )
    return lr


def _with_lr(planned: PreparedTask, lr: float) -> PreparedTask:
    config = planned.config.replace_options({LR: lr})
    plan = planned.decide(config)
    decisions = [
        one._replace(reason=f"{FOUND}: optim.lr=find, {one.reason}") if one.option == LR else one
        for one in plan.decisions
    ]
    plan = plan.replace(decisions=tuple(decisions))
    return replace(planned, config=config, plan=plan, found_lr=lr)


def _search(
    planned: PreparedTask,
    origin: TaskOrigin,
    rate: MeasuredRate,
    rates: RateRange,
    seeds: int,
    world: Communicator,
    notify: Callable[[str], object] | None,
) -> LrRangeTest:
    """Measure the curve of each seed, train shortly at the rates around it, and suggest one.

    Raises:
        ConfigError: the run is too short.
    """
    if (total := planned.plan.total_steps) < _SHORTEST:
        raise ConfigError(
            f"The run has {format_count(total, 'step')}, too few to compare learning rates. "
            f"Train for {_SHORTEST} or more (epochs, max_steps), or set a number for the rate."
        )
    for name, data in planned.task.val_sets().items():
        dataset_of(data, name)  # empty data is an error now, and not after the range tests
    numbers = tuple(planned.plan.seed + number for number in range(seeds))
    show = notify or (lambda text: None)
    count = "one seed" if seeds == 1 else f"{seeds} seeds"
    show(f"Range tests with {count}, of {rates.steps} steps each, then short trainings.")
    sizes = find_start_on_ranks(world, planned, origin) if planned.fits else {}
    curves = []
    for seed, of_seed in zip(numbers, _plan_seeds(planned, numbers, sizes), strict=True):
        curves.append(measure_curve(of_seed, rate, rates.list_rates(), world))
        show(_describe(seed, curves[-1], rates))
    plan = planned.plan.optimizers.get(rate.key) or planned.plan
    found = suggest_lr(curves, is_constant=plan.schedule.name == "constant")
    factors, trainings, fell = list_factors(planned, plan, rates.steps), list[RateTraining](), False
    while found.start is not None and (lr := next_rate(trainings, found.start)) is not None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the range tests warned
            ends = [
                measure_end(of_seed, rate, [lr * factor for factor in factors], world)
                for of_seed in _plan_seeds(planned, numbers, sizes)
            ]
        trainings.append(RateTraining(lr, tuple(end.loss for end in ends)))
        fell = fell or any(end.fell for end in ends)
        show(_describe_training(trainings[-1], len(factors)))
    lr, why, spread = None, found.why, found.spread
    if found.lr is not None or fell:
        lengths = len(factors), planned.plan.total_steps
        lr, why = suggest_trained(trainings, *lengths)
        spread = find_spread(trainings, *lengths)
    return LrRangeTest(
        rate.optimizer,
        rate.option,
        None if lr is None else float(f"{lr:.2g}"),  # as it is printed and typed
        spread,
        why,
        numbers,
        found.by_seed,
        tuple(curves),
        tuple(trainings),
        isinstance(planned.task.model, nn.Module),
    )


def list_factors(planned: PreparedTask, plan: Plan, most: int) -> list[float]:
    """Return the factors of the schedule of the run, compressed to at most so many steps."""
    total = planned.plan.total_steps
    steps = min(most, total)
    factor_at = make_lr_factor(plan.schedule, PlateauState(), planned.task.schedule)
    return [factor_at(number * total // steps) for number in range(steps)]


def _plan_seeds(
    planned: PreparedTask, seeds: Sequence[int], sizes: Mapping[str, FoundSize]
) -> Iterator[PreparedTask]:
    """Yield the task as it is planned with each seed, one after another."""
    for number, seed in enumerate(seeds):
        with _warn_once(number):
            config = planned.config.replace_options({"seed": seed})
            of_seed = plan_task(planned.task, config, system=planned.system)
        yield of_seed.start_with(**sizes) if sizes else of_seed


@contextmanager
def _warn_once(number: int) -> Iterator[None]:
    with warnings.catch_warnings():
        if number:
            warnings.simplefilter("ignore")
        yield


def _describe(seed: int, curve: RangeCurve, rates: RateRange) -> str:
    losses = curve.losses
    steps = f"Range test with seed {seed}: {len(losses)} steps"
    if len(losses) == rates.steps and math.isfinite(losses[-1]):
        return f"{steps}, up to a rate of {curve.rates[-1]:.3g}."
    return f"{steps}, until the loss diverged at a rate of {curve.rates[-1]:.3g}."


def _describe_training(training: RateTraining, steps: int) -> str:
    ends = ["it diverged" if math.isinf(loss) else f"loss {loss:.4g}" for loss in training.losses]
    return f"Training of {steps} steps at a rate of {training.lr:.2g}: {', '.join(ends)}."
