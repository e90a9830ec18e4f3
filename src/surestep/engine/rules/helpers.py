"""What the rows of the table are written with."""

from collections.abc import Callable, Mapping
from typing import Any

from surestep.config.duration import parse_duration
from surestep.engine.plan.plan import Constraint, PlanContext, Rule

Rows = Mapping[str, tuple[Rule, ...]]
Refusals = Mapping[str, tuple[Constraint, ...]]

# What to type where there is one process, and several are needed.
SEVERAL = (
    "surestep train RECIPE --nproc 2 (or torchrun --nproc-per-node 2 -m surestep train RECIPE)"
)


def always(_: PlanContext) -> bool:
    """Hold whatever is known."""
    return True


def is_set(option: str) -> Callable[[PlanContext], bool]:
    """Return a condition that holds where the option was said."""
    return lambda k: option in k.set_options


def user_value(option: str, read: Callable[[Any], Any] = lambda value: value) -> Rule:
    """Choose what was said; None, which is off, is not read."""

    def choose(k: PlanContext) -> Any:
        return None if k.is_off(option) else read(k.set_options[option])

    return Rule(is_set(option), choose, "set {origin}")


def default_value(value: Any, reason: str) -> Rule:
    """Choose `value` where no row before did."""
    return Rule(always, lambda _: value, reason)


def user_value_or(option: str, value: Any, reason: str) -> tuple[Rule, ...]:
    """Choose what was said, or else `value`."""
    return (user_value(option), default_value(value, reason))


def how_often(option: str, *, off: str, usual: str, reason: str) -> tuple[Rule, ...]:
    """Choose how often something happens: what was set, never, or the usual period.

    Args:
        option: that was set, in steps, epochs or a share of the run.
        off: what is true if it is switched off.
        usual: the period otherwise.
        reason: of that.
    """
    return (
        Rule(lambda k: k.is_off(option), lambda _: None, f"off, set {{origin}}; {off}"),
        Rule(is_set(option), lambda k: k.period(k.set_options[option]), "set {origin}"),
        default_value(parse_duration(usual), reason),
    )


def replicated_read(
    when: Callable[[PlanContext], bool], choose: Callable[[PlanContext], Any], reason: str
) -> tuple[Rule, Rule]:
    """Choose what several ranks can share only where each reads all of it, and say so."""
    return (
        Rule(
            lambda k: when(k) and k.system.launched.size > 1,
            choose,
            f"{reason}; each of {{k.system.launched.size}} ranks loads all of it, and keeps its "
            "share",
        ),
        Rule(when, choose, reason),
    )


def require_whole_epochs(option: str) -> Constraint:
    """Refuse "0.5 epochs" where nobody knows how long an epoch is: only its end is seen."""

    def is_part(k: PlanContext) -> bool:
        said = k.set_options.get(option)
        duration = None if said is None else k.period(said)
        if duration is None or duration.unit != "epochs":
            return False
        return not duration.amount.is_integer() and k["steps_per_epoch"] is None

    return Constraint(
        is_part,
        lambda k: (
            f"{option}={k.set_options[option]!r} is not known in steps: the training data is a "
            "stream "
            "that does not say how many samples it has. Say whole epochs, or '500 steps'."
        ),
    )
