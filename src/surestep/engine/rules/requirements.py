"""Checks what an option requires and excludes by its declaration."""

from collections.abc import Iterator, Mapping
from typing import Any

from surestep.config.config import option_info
from surestep.config.option import ON, PROCESSES, VAL_DATA, is_met, is_off
from surestep.engine.optim.registry import optimizers_with, options_of
from surestep.engine.plan.context import PlanContext
from surestep.engine.rules.rule import SEVERAL
from surestep.engine.schedule.registry import BUILT_IN, schedule_info

PREFERRED = ("adamw", "sgd", "cosine", "ddp", "ema")  # proposed if several values are allowed
EXAMPLES = {"data.num_workers": 2, "early_stop.patience": 5, "average.lr": 0.05}


def requirements_of(option: str) -> Mapping[str, Any]:
    """Return what an option requires, by the names of other options.

    An option of an optimizer or a schedule requires one of those that have it in their registry.
    """
    group, _, name = option.rpartition(".")
    if group == "optim" and (owners := optimizers_with(name)):
        return {"optim.name": tuple(owners)}
    schedules = tuple(schedule for schedule, entry in BUILT_IN.items() if name in entry.takes)
    if group == "schedule" and schedules:
        return {"schedule.name": schedules}
    info = option_info(option)
    required = {} if info is None else info.requires
    return {name: allowed for name, allowed in required.items() if name != option}


def find_unmet(ctx: PlanContext, option: str) -> str | None:
    """Return what is wrong if an option lacks what it requires, or is set with what it excludes."""
    value = ctx.get(option)
    if not ctx.is_set(option) or _requests_nothing(option, value):
        return None
    return next(_unmet(ctx, option, value), None) or next(_excluded(ctx, option, value), None)


def _excluded(ctx: PlanContext, option: str, value: Any) -> Iterator[str]:
    info = option_info(option)
    for name in info.excludes if info is not None else ():
        other = ctx.get(name)
        if ctx.is_set(name) and not _requests_nothing(name, other):
            yield f"{option}={value!r} and {name}={other!r} exclude each other. Set one of them."


def _requests_nothing(option: str, value: Any) -> bool:
    if option.startswith(("optim.", "schedule.")):  # a class without the argument rejects False too
        return bool(value == "0%")
    return is_off(value)


def _unmet(ctx: PlanContext, option: str, value: Any) -> Iterator[str]:
    for name, allowed in requirements_of(option).items():
        chosen = _chosen(ctx, name)
        if is_met(allowed, chosen) or _plugin_has(option, name, chosen):
            continue
        start = f"{option}={value!r} requires"
        if name == VAL_DATA:
            yield f"{start} validation data. Pass Task(val=...), or remove {option}."
        elif name == PROCESSES:
            yield f"{start} several processes. Start them with {SEVERAL}, or remove {option}."
        else:
            example = _example(name, allowed)
            fix = f"Set {name}={example!r}, or remove" if option_info(name) else "Remove"
            yield f"{start} {_describe(name, allowed)}, but {name} is {chosen!r}. {fix} {option}."


def _plugin_has(option: str, choice: str, chosen: Any) -> bool:
    """Return whether an optimizer or a schedule of a plug-in was chosen, and has the option."""
    own = option.rpartition(".")[2]
    if choice == "optim.name":
        return own in options_of(chosen)
    return choice == "schedule.name" and own in schedule_info(chosen).takes


def _chosen(ctx: PlanContext, name: str) -> Any:
    if name == VAL_DATA:
        return bool(ctx.task_info.val_sets)
    if name == PROCESSES:
        return ctx["parallel.strategy"] != "single"
    return ctx.device if name == "device" else ctx[name]  # the type: "cuda", not "cuda:0"


def _example(name: str, allowed: Any) -> Any:
    if allowed is ON:
        return EXAMPLES.get(name, "default")
    values = allowed if isinstance(allowed, tuple) else (allowed,)
    return next((value for value in PREFERRED if value in values), values[0])


def _describe(name: str, allowed: Any) -> str:
    if allowed is ON:
        return name
    values = allowed if isinstance(allowed, tuple) else (allowed,)
    *others, last = map(repr, values)
    return f"{name}={', '.join(others)}{' or ' if others else ''}{last}"
