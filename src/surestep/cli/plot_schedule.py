"""Draw the schedule of a run: the rate, the momentum where it is cycled, epochs and warm-up."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from surestep.base.errors import ConfigError

if TYPE_CHECKING:  # a picture's name is checked before torch is imported
    from surestep.engine.plan.plan import Plan
    from surestep.engine.schedule.registry import Factor, ScheduleSpec, UserFunction

SUFFIXES = (".png", ".svg", ".pdf")
BLUE, ORANGE, GREY = "#1f5fa8", "#c8641e", "#8a8f98"
MOST_POINTS, MOST_EPOCHS = 4000, 60


def check_drawing(path: Path) -> None:
    """Check that a picture can be drawn there, before anything long is done.

    Raises:
        ConfigError: another suffix, a folder that is not there, or matplotlib is missing.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise ConfigError(
            f"--plot {path} has the suffix {path.suffix!r}. Use one of {', '.join(SUFFIXES)}, such "
            "as --plot schedule.png."
        )
    if not path.parent.is_dir():
        raise ConfigError(f"--plot {path}: there is no folder {path.parent}. Make it first.")
    if path.is_dir():
        raise ConfigError(f"--plot {path} is a folder. Name a file in it.")
    if find_spec("matplotlib") is None:
        raise ConfigError("--plot needs matplotlib: pip install 'surestep[plot]'.")


def draw(plan: Plan, path: Path, own: UserFunction | None = None) -> None:
    """Draw the rate of each step, against steps, with the epochs along the top.

    Raises:
        ConfigError: the file cannot be written.
    """
    from matplotlib.figure import Figure

    from surestep.engine.schedule.lr import PlateauState, make_lr_factor, momentum
    from surestep.engine.state.average import with_swa_lr

    shape, peak = plan.schedule, plan.optim_lr
    figure = Figure(figsize=(9, 4.2), dpi=150, layout="constrained")
    axes = figure.subplots()
    steps = range(0, plan.total_steps, max(1, plan.total_steps // MOST_POINTS))
    rate = with_swa_lr(make_lr_factor(shape, PlateauState(), own), plan.average, peak or 1.0)
    _line(axes, steps, rate, peak or 1.0, BLUE)
    axes.set_xlabel("optimizer step")
    axes.set_ylabel("learning rate" if peak is not None else "share of the peak rate", color=BLUE)
    axes.set_ylim(bottom=0)
    axes.set_xlim(0, plan.total_steps)
    axes.set_title(_title(shape), loc="left", fontsize=11)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.grid(axis="y", color=GREY, alpha=0.2)
    axes.spines[["top", "right"]].set_visible(False)
    if shape.warmup:
        axes.axvspan(0, shape.warmup, color=BLUE, alpha=0.08, linewidth=0)
        axes.annotate("warm-up", (0, 0.02), (4, 0), "axes fraction", "offset points", color=GREY)
    _mark_epochs(axes, plan)
    cycled = momentum(shape)
    if cycled is not None:
        beside = axes.twinx()
        _line(beside, steps, cycled, 1.0, ORANGE)
        beside.set_ylabel("momentum", color=ORANGE)
        beside.spines[["top", "left"]].set_visible(False)
    if shape.name == "reduce_on_plateau":
        axes.annotate(
            f"times {shape.curve_options['factor']:g} after more than "
            f"{shape.curve_options['patience']} "
            "evaluations\n"
            f"without a better {plan.validation_metric}",
            (0.5, 0.5),
            xycoords="axes fraction",
            ha="center",
            color=GREY,
        )
    try:
        figure.savefig(path)
    except OSError as error:
        raise ConfigError(f"--plot {path} cannot be written: {error.strerror}.") from error


def _line(axes: Any, steps: range, at: Factor, scale: float, color: str) -> None:
    axes.plot(steps, [scale * at(step) for step in steps], color=color, linewidth=1.8)
    axes.tick_params(axis="y", colors=color)


def _title(shape: ScheduleSpec) -> str:
    stairs = "" if shape.interval == 1 else f", every {shape.interval:g} steps"
    return f"{shape.name}{stairs}, {shape.total:g} steps"


def _mark_epochs(axes: Any, plan: Plan) -> None:
    """Draw a line where each epoch begins, and number some of them along the top."""
    length = plan.steps_per_epoch
    if length is None or plan.total_steps <= length:
        return
    count = int(plan.total_steps / length)
    jump = max(1, round(count / 10))
    if count <= MOST_EPOCHS:
        for epoch in range(1, count + 1):
            axes.axvline(epoch * length, color=GREY, alpha=0.35, linewidth=0.6, linestyle=":")
    above = axes.secondary_xaxis(
        "top", functions=(lambda step: step / length, lambda epoch: epoch * length)
    )
    above.set_xticks(range(0, count + 1, jump))
    above.set_xlabel("epoch", color=GREY, fontsize=9)
    above.tick_params(colors=GREY, labelsize=8)
    above.spines["top"].set_visible(False)
