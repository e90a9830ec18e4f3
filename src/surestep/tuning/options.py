"""From the options of a command or a call to the settings of a study, new or recorded."""

import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import count, islice, product
from pathlib import Path
from typing import Any, Literal

from surestep.base.errors import ConfigError, RecipeError, RunError, TaskError
from surestep.base.locations import flag
from surestep.base.secrets import mask_secrets
from surestep.base.text import print_escaped
from surestep.config.duration import parse_duration
from surestep.engine.plan.plan import Plan
from surestep.engine.resolve.resolver import resolve_seed
from surestep.recipes.find import SHIPPED
from surestep.recipes.load import RecipeCall
from surestep.record.io import os_error_hint
from surestep.trainer.planning import PreparedTask, plan_task
from surestep.tuning.constraints import parse_constraint
from surestep.tuning.enqueue import Point, drop_repeated, find_own_values, parse_points
from surestep.tuning.methods import DEFAULT_PRUNER
from surestep.tuning.settings import Direction, StudySettings
from surestep.tuning.slots import share_threads
from surestep.tuning.space import Space, parse_space

COSTS = ("seconds", "parameters", "peak_memory")  # objectives that no evaluation measures
_MONITOR = {"validation.metric", "validation.mode"}
_MOST_TRIED = 16  # combinations of the space: each builds a model
Keep = Literal["all", "best"]


@dataclass(frozen=True)
class SearchOptions:
    """What a command or a call sets; None is the recorded setting of the study, or the default.

    Attributes:
        trials: the whole number of trials, by all workers together; None with the sampler "grid" is
            the number of its points.
        study: folder of the study; None is a new one, searches/RECIPE-TIME.
        space: the values that each option may have, by name; None is the `space` of the recipe.
        enqueue: points of the first trials, each with values by name.
        enqueue_place: where the points were set, as errors show it.
        warm_start: folder of another study, whose trials the sampler knows.
        locations: where each dimension was set, as errors show it.
        objectives: each a metric, or one of COSTS, and its direction: "val/accuracy:max".
        where: constraints that a trial has to satisfy so that it can be the best.
        sampler: chooses the values.
        pruner: ends trials early.
        storage: URL of a database for the trials; None is a file in the study folder.
        workers: how many trials run at the same time, by this command.
        nproc: training processes of each trial.
        threads: of each training process.
        timeout_s: stop after this time, and save.
        trial_timeout_s: a trial that takes longer fails.
        step_timeout_s: a trial that takes no step for this long fails.
        grace_s: a trial without a heartbeat for this long is resumed by another worker.
        keep_checkpoints: "best" deletes the checkpoints of all trials but the best.
        confirm: train so many of the best trials again at the end.
        confirm_seeds: with how many other seeds each.
    """

    trials: int | None = None
    study: Path | None = None
    space: Mapping[str, Any] | None = None
    locations: Mapping[str, str] = field(default_factory=dict)
    enqueue: Sequence[Any] = ()
    enqueue_place: str = "enqueue"
    warm_start: Path | None = None
    objectives: tuple[str, ...] = ()
    where: tuple[str, ...] = ()
    sampler: str | None = None
    pruner: str | None = None
    storage: str | None = None
    workers: int = 1
    nproc: int | None = None
    threads: int | None = None
    timeout_s: float | None = None
    trial_timeout_s: float | None = None
    step_timeout_s: float | None = None
    grace_s: float = 60.0
    keep_checkpoints: Keep = "all"
    confirm: int = 0
    confirm_seeds: int = 3

    def check(self) -> None:
        """Check the numbers, and that the options can be combined.

        Raises:
            ConfigError: lists what is wrong.
        """
        least = {"trials": 1, "workers": 1, "nproc": 1, "threads": 1, "confirm_seeds": 1}
        faults = [
            f"{flag(name.removesuffix('_s'))} {getattr(self, name):g} must be at least {low} "
            f"({name}= in Python)."
            for name, low in {**least, "confirm": 0, "grace_s": 1}.items()
            if getattr(self, name) is not None and not getattr(self, name) >= low
        ]
        if self.keep_checkpoints not in ("all", "best"):
            faults.append(f"keep_checkpoints={self.keep_checkpoints!r} is not 'all' or 'best'.")
        if self.confirm and len(self.objectives) > 1:
            faults.append(
                f"confirm={self.confirm} needs a single objective, and there are "
                f"{len(self.objectives)}. Leave it out."
            )
        if faults:
            raise ConfigError("\n".join(faults))


def parse_timeout(text: str | None, name: str = "timeout") -> float | None:
    """Return a time such as "2h" in seconds; `name` is that of the option.

    Raises:
        ConfigError: it is not a time.
    """
    if text is None:
        return None
    try:
        return parse_duration(text, ("minutes",)).amount * 60
    except ValueError as error:
        raise ConfigError(
            f"{name}={text!r} is not a time above 0. Write one amount and one unit, such as 90m "
            "or 2h."
        ) from error


def make_settings(
    call: RecipeCall, options: SearchOptions, recorded: StudySettings | None
) -> StudySettings:
    """Return the settings of a study; what is not set is as recorded, or the default.

    Args:
        call: the recipe with the options that are the same for all trials.
        options: of the search.
        recorded: of the study that exists already, or None.

    Raises:
        ConfigError: an objective, the space or a number is invalid.
    """
    fixed, space = fixed_options(call), _choose_space(call, options, recorded)
    enqueued = () if recorded is None else recorded.enqueued
    added = parse_points(options.enqueue, space, options.enqueue_place)
    where = () if recorded is None else recorded.where
    if options.objectives or options.where or recorded is None:
        planned, point = plan_trial(call, space)
        where = _name_metrics(options.where, planned) if options.where else where
    if options.objectives or recorded is None:
        objectives, extra = choose_objectives(call, options.objectives, planned)
        if recorded is None:
            own = [] if point else _find_own(call, planned, space)
            enqueued = drop_repeated([*own, *added])
    else:
        objectives = recorded.objectives
        chosen = {name: way for name, way in recorded.fixed.items() if name in _MONITOR}
        extra = {} if _MONITOR & fixed.keys() else chosen
    sampler = options.sampler or (recorded.sampler if recorded else "tpe")
    default_pruner = DEFAULT_PRUNER if len(objectives) == 1 else "none"
    nproc = options.nproc or (recorded.nproc if recorded else 1)
    threads = options.threads or (recorded.threads if recorded else None)
    return StudySettings(
        recipe=dict(call.origin.recipe),
        fixed={**extra, **fixed},
        space=space,
        objectives=objectives,
        trials=_choose_trials(options, recorded, sampler, space),
        sampler=sampler,
        pruner=options.pruner or (recorded.pruner if recorded else default_pruner),
        seed=resolve_seed(call.config),
        storage=recorded.storage if recorded and options.storage is None else options.storage,
        threads=threads or share_threads(options.workers, nproc),
        nproc=nproc,
        enqueued=enqueued if all(point in enqueued for point in added) else tuple(added),
        where=where,
        warm_start=None if recorded is None else recorded.warm_start,
    )


def _find_own(call: RecipeCall, planned: PreparedTask, space: Space) -> list[Point]:
    """Return the recipe's own values, if they are in the space; otherwise print why not."""
    try:
        return [find_own_values(call, planned, space)]
    except ValueError as error:
        print_escaped(f"No trial has the recipe's own values: {error}.", sys.stderr)
        return []


def _choose_trials(
    options: SearchOptions, recorded: StudySettings | None, sampler: str, space: Space
) -> int:
    """Return the whole number of trials; a grid has no more than its points.

    Raises:
        ConfigError: it is not set, or the space has no grid.
    """
    trials = options.trials or (recorded.trials if recorded else None)
    if sampler.partition(":")[0].strip().lower() == "grid":
        return min(trials or space.grid_size, space.grid_size)
    if trials is None:
        raise ConfigError("The number of trials is not set. Pass --trials 50 (trials= in Python).")
    return trials


def fixed_options(call: RecipeCall) -> dict[str, Any]:
    """Return what was set beside the recipe: options of the Config, and parameters as "task.X".

    Raises:
        ConfigError: one of them cannot be the same for all trials.
    """
    if call.config.set_options().get("max_time") is not None:
        raise ConfigError(
            "max_time pauses a run, and a search resumes it at once. Leave it out: --timeout "
            "limits the whole search, and epochs or max_steps the length of a trial."
        )
    return list_typed_options(call)


def list_typed_options(call: RecipeCall) -> dict[str, Any]:
    """Return what was set beside the recipe: options of the Config, and parameters as "task.X"."""
    in_recipe = f"recipe {call.recipe.name}"
    values = call.config.set_options()
    values |= {f"task.{name}": value for name, value in call.parameters.items()}
    return {
        name: value for name, value in values.items() if call.set_options.get(name) != in_recipe
    }


def _choose_space(
    call: RecipeCall, options: SearchOptions, recorded: StudySettings | None
) -> Space:
    values, locations = options.space, options.locations
    if values is None:
        values = getattr(call.recipe.module, "space", None)
        locations = dict.fromkeys(values or (), f"recipe {call.recipe.name}")
    if values is None and recorded is not None:
        return recorded.space
    if values is None:
        or_write = (
            ""
            if call.recipe.path.parent == SHIPPED
            else f", or write one into {call.recipe.path.name}: space = "
            "{'optim.lr': 'log(1e-4, 1e-1)'}"
        )
        raise ConfigError(
            f"There is no search space. Pass --space FILE (space= in Python){or_write}. The file "
            'has lines such as optim.lr = "log(1e-4, 1e-1)".'
        )
    return parse_space(values, locations, call)


def plan_trial(call: RecipeCall, space: Space) -> tuple[PreparedTask, Point]:
    """Plan a run of the recipe with its defaults, from which the metrics of the trials are known.

    The recipe may reject its defaults, or some values of the space, which are then failed trials of
    the search. So if it rejects its defaults, values of the space are tried.

    Returns:
        The plan, and the values of the space that it has; none if it has the defaults.

    Raises:
        RecipeError, TaskError: it rejects all values that were tried.
    """
    first: RecipeError | TaskError | None = None
    probes = [dimension.probes() for dimension in space.dimensions]
    for values in ((), *islice(product(*probes), _MOST_TRIED)):
        point = space.point_of(values) if values else {}
        try:
            chosen = _set_point(call, point) if point else call
            config = chosen.config.single_process()
            planned = plan_task(chosen.task(), config, origin=chosen.origin)
        except (RecipeError, TaskError) as error:
            first = first or error
            continue
        if first is not None:
            shown = ", ".join(f"{name}={value}" for name, value in point.items())
            text = (
                f"{call.recipe.name} raised with its defaults: {first}\nThe metrics are those that "
                f"it has with {shown}."
            )
            print_escaped(mask_secrets(text), sys.stderr)
        return planned, point
    assert first is not None
    first.add_note("It also raised with each combination of values of the space that was tried.")
    raise first


def _set_point(call: RecipeCall, point: Mapping[str, Any]) -> RecipeCall:
    """Return the call of a trial with these values."""
    arguments = {name: value for name, value in point.items() if name.startswith("task.")}
    options = {name: value for name, value in point.items() if name not in arguments}
    plain = {name.removeprefix("task."): value for name, value in arguments.items()}
    return replace(
        call,
        config=call.config.replace_options(options),
        parameters=call.recipe.typed({**call.parameters, **plain}),
    )


def choose_objectives(
    call: RecipeCall, objectives: Sequence[str], planned: PreparedTask
) -> tuple[tuple[tuple[str, Direction], ...], dict[str, Any]]:
    """Return name and direction of each objective, and the options that make runs monitor it.

    The best checkpoint of a run is that of its first objective which is a metric.

    Args:
        call: the recipe with the options of all trials.
        objectives: such as "val/accuracy", "val/accuracy:max" or "seconds"; none is the metric
            that a run monitors.
        planned: a trial.

    Raises:
        ConfigError: a metric is not measured, or it is not known which direction is better.
    """
    if not objectives:
        metric = planned.plan.validation_metric
        if metric is None:
            raise ConfigError(
                f"{call.recipe.name} has no validation data, so its trials cannot be compared. "
                "Give its Task val=..., or optimize what needs none: --objective seconds."
            )
        return ((metric, planned.plan.validation_mode),), {}
    found: list[tuple[str, Direction]] = []
    monitored: dict[str, Any] = {}
    for text in objectives:
        name, colon, way = text.partition(":")
        if colon and way not in ("min", "max"):
            raise ConfigError(f"The objective {text!r} has no direction {way!r}. Use min or max.")
        if name in COSTS:
            found.append((name, "max" if way == "max" else "min"))
            continue
        plan = _plan_metric(planned, name, way, "The objective")
        found.append((plan.validation_metric, plan.validation_mode))
        monitored = monitored or {
            "validation.metric": plan.validation_metric,
            "validation.mode": plan.validation_mode,
        }
    names = [name for name, _ in found]
    if len(set(names)) < len(names):
        raise ConfigError(f"The objectives {', '.join(names)} have one twice. Leave one out.")
    return tuple(found), monitored


def _plan_metric(planned: PreparedTask, name: str, way: str, kind: str) -> Plan:
    """Return the plan of a run that monitors a metric, which has its full name.

    Args:
        planned: a trial.
        name: of the metric, as it was typed.
        way: "min", "max", or "" for that of the metric.
        kind: what the metric was typed for, as errors show it.

    Raises:
        ConfigError: it is not measured, or it is not known which direction is better.
    """
    monitor = {"validation.metric": name, "validation.mode": way or None}
    config = planned.config.replace_options(monitor, dict.fromkeys(monitor, kind))
    try:
        plan: Plan = planned.decide(config)
    except ConfigError as error:
        text = str(error).replace(f"validation.metric={name!r}", f"{kind} {name!r}")
        text = text.replace(f" (validation.metric: {kind})", "")
        raise ConfigError(f"{text} Names that are not metrics: {', '.join(COSTS)}.") from error
    assert plan.validation_metric is not None
    return plan


def _name_metrics(where: Sequence[str], planned: PreparedTask) -> tuple[str, ...]:
    """Return constraints with the full names of their metrics.

    Raises:
        ConfigError: one cannot be parsed, or its metric is not measured.
    """
    found = []
    for text in where:
        one = parse_constraint(text)
        name = one.name
        if name not in COSTS:
            name = _plan_metric(planned, name, "min", "The constraint").validation_metric
        found.append(f"{name}{one.text.removeprefix(one.name)}")
    return tuple(dict.fromkeys(found))


def make_folder(name: str, parent: str = "searches", option: str = "--study") -> Path:
    """Make `searches/NAME-TIME`, with a number after it if that exists.

    Args:
        name: of the recipe.
        parent: folder of the new one.
        option: that names a different folder.

    Raises:
        RunError: it cannot be created.
    """
    stem = f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    for number in count(1):
        folder = Path(parent) / (stem if number == 1 else f"{stem}-{number}")
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            hint = os_error_hint(error, "folder", f" with {option}")
            raise RunError(f"{folder} cannot be created: {error.strerror}. {hint}") from error
        return folder
    raise AssertionError("count() has no end")


def remove_new(folder: Path) -> None:
    """Remove a folder that was just made, for a study that could not be created."""
    shutil.rmtree(folder, ignore_errors=True)
    with suppress(OSError):
        folder.parent.rmdir()  # if it is empty
