"""Checks what an option requires and excludes by its declaration."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from surestep.base.locations import flag
from surestep.config import option as declared
from surestep.config.config import option_info
from surestep.config.option import ON, PROCESSES, VAL_DATA, is_met, is_off
from surestep.config.spellings import OFF
from surestep.engine.optim.registry import BUILT_IN as OPTIMIZERS
from surestep.engine.optim.registry import own_option_names
from surestep.engine.parallel.strategy import BUILT_IN as STRATEGIES
from surestep.engine.parallel.strategy import strategy_class
from surestep.engine.plan.context import PlanContext
from surestep.engine.schedule.registry import BUILT_IN as SCHEDULES
from surestep.engine.schedule.registry import schedule_info

# How to start several processes.
SEVERAL = (
    "surestep train RECIPE --nproc 2 (or torchrun --nproc-per-node 2 -m surestep train RECIPE)"
)
PREFERRED = ("adamw", "sgd", "cosine", "ddp", "ema")  # proposed if several values are allowed
EXAMPLES = {
    **{"data.num_workers": 2, "early_stop.patience": 5, "average.lr": 0.05},
    **{"validation.every": "1 epoch", "schedule.warmup": "5%"},
}
# What the Task or the launcher has to bring: whether it does, and what to do if not.
FACTS: Mapping[str, tuple[Callable[[PlanContext], object], str]] = {
    VAL_DATA: (lambda ctx: ctx.task_info.val_sets, "Pass Task(val=...), or remove"),
    PROCESSES: (
        lambda ctx: strategy_class(ctx["parallel.strategy"]).shares_step,
        f"Start them with {SEVERAL}, or remove",
    ),
    declared.STREAM: (
        lambda ctx: ctx.task_info.is_stream,
        "Use data.shuffle=True, which shuffles all of it, and remove",
    ),
    declared.INDICES: (
        lambda ctx: not ctx.task_info.is_stream,
        "Exclude the samples in the stream itself, and remove",
    ),
    declared.CONVOLUTIONS: (lambda ctx: ctx.task_info.convolutions, "Remove"),
    declared.BLOCKS: (lambda ctx: ctx.task_info.blocks, "Remove"),
    declared.MODEL_FUNCTION: (
        lambda ctx: not ctx.task_info.is_built,
        "Pass Task(model=lambda: Net()), or remove",
    ),
    declared.OUR_STEP: (
        lambda ctx: not ctx.task_info.own_step,
        "In Task(step=...), manual_step.step sums the gradients. Remove",
    ),
}
# Of each group: the option that names a class, the names, and the options that a class takes.
CLASSES: Mapping[str, tuple[str, Iterable[str], Callable[[str], Iterable[str]]]] = {
    "optim": ("optim.name", OPTIMIZERS, own_option_names),
    "schedule": ("schedule.name", SCHEDULES, lambda name: schedule_info(name).takes),
    "parallel": ("parallel.strategy", STRATEGIES, lambda name: strategy_class(name).takes),
}
_CHOICES = [choice for choice, *_ in CLASSES.values()]


def requirements_of(option: str) -> Mapping[str, Any]:
    """Return what an option requires: values of other options, by name, and FACTS.

    An option of optimizers, schedules or strategies requires one that takes it.
    """
    group, _, own = option.rpartition(".")
    required: dict[str, Any] = {}
    if group in CLASSES:
        choice, names, options = CLASSES[group]
        takers = tuple(name for name in names if own in options(name))
        required |= {choice: takers} if takers else {}
    info = option_info(option)
    required |= info.requires if info is not None else {}
    needed = sorted(required, key=lambda name: name not in (VAL_DATA, PROCESSES))  # these first
    return {name: required[name] for name in needed if name != option}


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


def _what_to_remove(ctx: PlanContext, option: str, typed: str) -> str:
    """Return an option to remove; if another one was typed, as what switches it off there."""
    can_be_off = option in OFF and _requests_nothing(option, OFF[option])
    if can_be_off and ctx.is_typed(typed) and not ctx.is_typed(option):
        return f"{option}: {flag(option)} off"
    return option


def _unmet(ctx: PlanContext, option: str, value: Any) -> Iterator[str]:
    group, _, own = option.rpartition(".")
    for name, allowed in requirements_of(option).items():
        start = f"{option}={value!r} requires"
        if name in FACTS:
            is_true, remedy = FACTS[name]
            if not is_true(ctx):
                yield f"{start} {name}. {remedy} {option}."
            continue
        chosen = ctx.device if name == "device" else ctx[name]  # the type: "cuda", not "cuda:0"
        is_taken = (
            group in CLASSES and name == CLASSES[group][0] and own in CLASSES[group][2](chosen)
        )
        if not is_taken and not is_met(allowed, chosen):
            values = allowed if isinstance(allowed, tuple) else (allowed,)
            *others, last = map(repr, values)
            words = f"{', '.join(others)} or {last}" if others else last
            wanted = name if allowed is ON else f"{name}={words}"
            example = next((value for value in PREFERRED if value in values), values[0])
            example = EXAMPLES.get(name, "default") if allowed is ON else example
            fix = f"Set {name}={example!r}, or remove" if option_info(name) else "Remove"
            shown = "off" if ctx.is_off(name) else repr(chosen)
            removed = _what_to_remove(ctx, option, name)
            takes = _what_it_takes(group, chosen) if name in _CHOICES else ""
            yield f"{start} {wanted}, but {name} is {shown}. {fix} {removed}.{takes}"


def _what_it_takes(group: str, chosen: str) -> str:
    """Return a sentence with the options of a class that was chosen; "" if it has none."""
    choice, _, options = CLASSES[group]
    names = [f"{group}.{own}" for own in options(chosen) if option_info(f"{group}.{own}")]
    return f" {choice}={chosen!r} takes {', '.join(names)}." if names else ""
