"""What the rows of the table are written with."""

from collections.abc import Callable, Mapping
from typing import Any

from surestep.base.duration import parse_duration
from surestep.engine.plan import Known, Refusal, Row

Rows = Mapping[str, tuple[Row, ...]]
Refusals = Mapping[str, tuple[Refusal, ...]]

# What to type where there is one process, and several are needed.
SEVERAL = (
    "surestep train RECIPE --nproc 2 (or torchrun --nproc-per-node 2 -m surestep train RECIPE)"
)


def always(_: Known) -> bool:
    """Hold whatever is known."""
    return True


def is_said(option: str) -> Callable[[Known], bool]:
    """Return a condition that holds where the option was said."""
    return lambda k: option in k.said


def said(option: str, read: Callable[[Any], Any] = lambda value: value) -> Row:
    """Choose what was said; None, which is off, is not read."""

    def choose(k: Known) -> Any:
        return None if k.is_off(option) else read(k.said[option])

    return Row(is_said(option), choose, "said: {origin}")


def default(value: Any, reason: str) -> Row:
    """Choose `value` where no row before did."""
    return Row(always, lambda _: value, reason)


def plain(option: str, value: Any, reason: str) -> tuple[Row, ...]:
    """Choose what was said, or else `value`."""
    return (said(option), default(value, reason))


def how_often(option: str, *, off: str, usual: str, reason: str) -> tuple[Row, ...]:
    """Choose how often something happens: what was set, never, or the usual period.

    Args:
        option: that was set, in steps, epochs or a share of the run.
        off: what is true if it is switched off.
        usual: the period otherwise.
        reason: of that.
    """
    return (
        Row(lambda k: k.is_off(option), lambda _: None, f"off, said: {{origin}}; {off}"),
        Row(is_said(option), lambda k: k.period(k.said[option]), "said: {origin}"),
        default(parse_duration(usual), reason),
    )


def read_whole(
    when: Callable[[Known], bool], choose: Callable[[Known], Any], reason: str
) -> tuple[Row, Row]:
    """Choose what several ranks can share only where each reads all of it, and say so."""
    return (
        Row(
            lambda k: when(k) and k.facts.launched.size > 1,
            choose,
            f"{reason}; each of {{k.facts.launched.size}} ranks loads all of it, and keeps its "
            "share",
        ),
        Row(when, choose, reason),
    )


def refuse_unless(kind: str, option: str, *, belongs: str, say: str) -> Refusal:
    """Refuse an option that only one way of sharing a step knows.

    Args:
        kind: of that way, as in `parallel.kind`.
        option: that was said.
        belongs: what the option is, such as "is DeepSpeed's".
        say: what to say instead.
    """
    return Refusal(
        lambda k: option in k.said and k["parallel.kind"] != kind,
        lambda k: (
            f"{option}={k.said[option]!r} {belongs}, and parallel.kind is "
            f"{k['parallel.kind']!r}. {say}, or leave it out."
        ),
    )


def refuse_part_of_epoch(option: str) -> Refusal:
    """Refuse "0.5 epochs" where nobody knows how long an epoch is: only its end is seen."""

    def is_part(k: Known) -> bool:
        said = k.said.get(option)
        duration = None if said is None else k.period(said)
        if duration is None or duration.unit != "epochs":
            return False
        return not duration.amount.is_integer() and k["steps_per_epoch"] is None

    return Refusal(
        is_part,
        lambda k: (
            f"{option}={k.said[option]!r} is not known in steps: the training data is a stream "
            "that does not say how many samples it has. Say whole epochs, or '500 steps'."
        ),
    )
