"""Evaluation, logging, saving and callbacks change nothing."""

from collections.abc import Mapping
from typing import Any

from surestep.engine.step.callback import stateful_callbacks
from surestep.laws.check import Result, fail, hold
from surestep.laws.record import RunRecord
from surestep.laws.run import Variant
from surestep.laws.runner import Runner, drop_names
from surestep.record.checkpoint.encoding import CALLBACK_STATES

LAW, NAME = "law 4", "watching"
_RARELY = "1000000 steps"
_EVALUATION = "evaluation"
_OPTIONS = {
    _EVALUATION: "validation.every",
    "saving": "checkpoint.every",
    "logging": "logging.every",
}


def check(runner: Runner) -> Result:
    """Train with all of it after every step, and without any of it."""
    options = {name: option for name, option in _OPTIONS.items() if _applies(runner, name)}
    others = ["callbacks"] if runner.program.callbacks else []
    shown = ", ".join([*options, *others])
    for variant in (_often(options), _never(options)):
        if runner.compare(variant, lambda record: _select(runner, record)) is not None:
            return _find_cause(runner, options, variant)
    return hold(f"{shown}: after every step, and never")


def _applies(runner: Runner, name: str) -> bool:
    facts = runner.facts
    return name != _EVALUATION or (facts.has_validation and not facts.on_plateau)


def _often(options: Mapping[str, str]) -> Variant:
    return Variant(
        f"{', '.join(options)} after every step", dict.fromkeys(options.values(), "1 step")
    )


def _never(options: Mapping[str, str], *, calls_back: bool = False) -> Variant:
    off: dict[str, Any] = dict.fromkeys(options.values(), _RARELY)
    names = [*options, *([] if calls_back else ["callbacks"])]
    return Variant(f"no {', '.join(names)}", off, calls_back=calls_back)


def _find_cause(runner: Runner, options: Mapping[str, str], variant: Variant) -> Result:
    """Return which of them alone changes the run; all together if none does."""
    single = [{name: option} for name, option in options.items()]
    is_often = variant.calls_back
    variants = [_often(one) if is_often else _never(one, calls_back=True) for one in single]
    if not is_often:
        variants.append(_never({}))
    for one in (*variants, variant):
        finding = runner.compare(one, lambda record: _select(runner, record))
        if finding is not None:
            return fail(f"The run with {one.name} is a different one", finding)
    return fail(f"The run with {variant.name} was a different one, and was not when repeated")


def _select(runner: Runner, record: RunRecord) -> RunRecord:
    """Return what an evaluation and a callback may not change: all except what they measure."""
    names = [f"{CALLBACK_STATES}.{name}" for name in stateful_callbacks(runner.program.callbacks)]
    return drop_names(record, "best.", *names)
