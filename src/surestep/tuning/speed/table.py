"""The table of the rungs, and sentences about the whole, as the terminal and the page show them."""

from collections.abc import Iterator
from typing import Any

from surestep.base.text import format_count, format_duration
from surestep.tuning.speed.interval import Interval
from surestep.tuning.speed.result import Rung, TuneResult

COLUMNS = ("rung", "time a step", "of before", "95% interval", "of the first", "outcome")
_FIRST = "as it is"


def tabulate_rungs(result: TuneResult, *, keeps_numbers: bool) -> list[tuple[str, ...]]:
    """Return the rows of the rungs that keep the numbers, or of those that change them.

    The first row is that of the run as it is. Knobs with nothing to try are in `list_unused`.
    """
    rows: list[tuple[str, ...]] = [(_FIRST, _format_step(result.step_s), "", "", "100%", "")]
    share = 1.0
    for rung in result.rungs:
        if rung.outcome in ("kept", "proposed") and rung.interval is not None:
            share *= rung.interval.ratio
        if rung.options and rung.keeps_numbers is keeps_numbers:
            rows.append(_describe_rung(rung, share))
    return rows


def list_unused(result: TuneResult, *, keeps_numbers: bool) -> str:
    """Return a line of the knobs that have nothing to try here, with the reasons; "" if none."""
    unused = [
        f"{rung.knob} ({rung.reason})"
        for rung in result.rungs
        if not rung.options and rung.keeps_numbers is keeps_numbers
    ]
    return f"Nothing to try here: {', '.join(unused)}." if unused else ""


def list_steps(result: TuneResult) -> list[dict[str, Any]]:
    """Return the seconds of a step with the options of each rung, low and high, for a chart.

    They are those of the first step times the ratios of the rungs, so each depends on those before.
    """
    if result.step_s is None:
        return []
    present_s, noise = result.step_s, result.noise or Interval(1.0, 1.0, 1.0, 0)
    first_s = [present_s, noise.low * present_s, noise.high * present_s]
    steps = [{"name": _FIRST, "outcome": "kept", "seconds": first_s}]
    for rung in result.rungs:
        if (found := rung.interval) is None:
            continue
        seconds = [present_s * ratio for ratio in (found.ratio, found.low, found.high)]
        steps.append({"name": _name_rung(rung), "outcome": rung.outcome, "seconds": seconds})
        if rung.outcome in ("kept", "proposed"):
            present_s *= found.ratio
    return steps


def _name_rung(rung: Rung) -> str:
    return ", ".join(f"{name}={value}" for name, value in rung.options.items())


def _describe_rung(rung: Rung, share: float) -> tuple[str, ...]:
    is_taken = rung.outcome in ("kept", "proposed")
    measured = ("", "", "")
    if rung.interval is not None:
        ratio, low, high = rung.interval.ratio, rung.interval.low, rung.interval.high
        step = _format_step(None if rung.step_s is None else rung.step_s[1])
        measured = (step, f"{ratio:.3g}", f"{low:.3g} to {high:.3g}")
    return _name_rung(rung), *measured, f"{share:.0%}" if is_taken else "", _describe_outcome(rung)


def _describe_outcome(rung: Rung) -> str:
    parts = [rung.reason] if rung.reason else []
    if rung.outcome == "kept" and rung.proof is not None:
        parts.append(f"bitwise the same in {format_count(rung.proof['steps'], 'step')}")
    if rung.break_even is not None and rung.outcome in ("kept", "proposed"):
        parts.append(f"pays back after step {rung.break_even}")
    if (curves := rung.curves) is not None:
        word = "equal" if curves.are_equal else "lower" if curves.is_not_worse else "higher"
        parts.append(
            f"loss {curves.ends[1]:.4g}, without {curves.ends[0]:.4g}, {word} within "
            f"{curves.spread:.2g} over {len(curves.seeds)} seeds"
            if curves.are_equal
            else f"loss {curves.ends[1]:.4g}, {word} than {curves.ends[0]:.4g} beyond "
            f"{curves.spread:.2g} over {len(curves.seeds)} seeds"
        )
    return f"{rung.outcome}: {'; '.join(parts)}" if parts else rung.outcome


def _format_step(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return f"{seconds * 1000:.3g} ms" if seconds < 1 else format_duration(seconds)


def summarize(result: TuneResult) -> Iterator[str]:
    """Yield sentences: where the time goes, the noise, and the whole run before and after."""
    if result.step_s is None:
        return
    yield from result.profile.get("lines", ())
    if result.noise is not None:
        yield (
            f"Noise of the machine: the same options differ by up to {result.noise.width:.1%} in "
            f"{result.noise.rounds} rounds of {format_count(result.window_steps, 'step')}."
        )
    yield from result.notes
    yield from _describe_whole(result)


def _describe_whole(result: TuneResult) -> Iterator[str]:
    """Yield the time of the whole run, or of its steps if no more is known, before and after."""
    steps, whole = result.run["total_steps"], result.whole
    if whole is None:
        before_s = steps * (result.step_s or 0.0)
        yield f"The {steps} steps of the run take {format_duration(before_s)} as it is."
    else:
        before_s = whole.total_s
        yield from whole.describe()
        intervals = ", ".join(f"{name}={every}" for name, every in result.run["intervals"].items())
        yield f"A tuning never changes how often these happen: {intervals}."
    estimates = result.list_estimates()
    for name, total, after in (
        ("kept", result.total, estimates["whole_kept"]),
        ("proposed too", result.total_proposed, estimates["whole_proposed"]),
    ):
        if total is not None:
            ratio = total.interval.ratio
            after_s = before_s * ratio if after is None else after.total_s
            yield (
                f"With what is {name}: {format_duration(after_s)} instead of "
                f"{format_duration(before_s)}. A step is {_describe_speed(total.interval)}."
            )


def _describe_speed(total: Interval) -> str:
    times = f"{1 / total.ratio:.3g} times as fast ({1 / total.high:.3g} to {1 / total.low:.3g}"
    return f"{times}, measured against the first options again)"
