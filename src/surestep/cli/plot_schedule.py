"""Plot the schedule of a run: learning rate, cycled momentum, epochs and warm-up."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from surestep.base.errors import ConfigError

if TYPE_CHECKING:  # the path is checked before torch is imported
    from surestep.engine.plan.plan import Plan
    from surestep.engine.schedule.registry import Factor, UserFunction

_SUFFIXES = (".png", ".svg", ".pdf")
_BLUE, _ORANGE, _GREY = "#1f5fa8", "#c8641e", "#8a8f98"
_MOST_POINTS, _MOST_EPOCHS = 4000, 60


def check_plot_path(path: Path) -> None:
    """Check that a plot can be written, before anything that takes long.

    Raises:
        ConfigError: another suffix, a missing folder, or matplotlib is missing.
    """
    if path.suffix.lower() not in _SUFFIXES:
        raise ConfigError(
            f"--plot {path} has the suffix {path.suffix!r}. Use one of {', '.join(_SUFFIXES)}, "
            "such as --plot schedule.png."
        )
    if not path.parent.is_dir():
        raise ConfigError(f"--plot {path}: there is no folder {path.parent}. Make it first.")
    if path.is_dir():
        raise ConfigError(f"--plot {path} is a folder. Name a file in it.")
    if find_spec("matplotlib") is None:
        raise ConfigError("--plot needs matplotlib: pip install 'surestep[plot]'.")


def plot_schedule(plan: Plan, path: Path, function: UserFunction | None = None) -> None:
    """Plot the rate of each step, with the epochs along the top.

    Raises:
        ConfigError: the file cannot be written.
    """
    from matplotlib.figure import Figure

    from surestep.engine.schedule.lr import PlateauState, make_lr_factor, momentum
    from surestep.engine.state.average import with_swa_lr

    spec, peak = plan.schedule, plan.optim_lr
    figure = Figure(figsize=(9, 4.2), dpi=150, layout="constrained")
    axes = figure.subplots()
    steps = range(0, plan.total_steps, max(1, plan.total_steps // _MOST_POINTS))
    rate = with_swa_lr(make_lr_factor(spec, PlateauState(), function), plan.average, peak or 1.0)
    _plot(axes, steps, rate, peak or 1.0, _BLUE)
    axes.set_xlabel("optimizer step")
    axes.set_ylabel("learning rate" if peak is not None else "share of the peak rate", color=_BLUE)
    axes.set_ylim(bottom=0)
    axes.set_xlim(0, plan.total_steps)
    stairs = "" if spec.interval == 1 else f", every {spec.interval:g} steps"
    title = f"{spec.name}{stairs}, {spec.total:g} steps"
    if spec.name == "reduce_on_plateau":
        title += f", times {spec.curve_options['factor']:g} at each plateau"
    axes.set_title(title, loc="left", fontsize=11)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.grid(axis="y", color=_GREY, alpha=0.2)
    axes.spines[["top", "right"]].set_visible(False)
    if spec.warmup:
        axes.axvspan(0, spec.warmup, color=_BLUE, alpha=0.08, linewidth=0)
        axes.annotate("warm-up", (0, 0.02), (4, 0), "axes fraction", "offset points", color=_GREY)
    if plan.steps_per_epoch is not None and plan.total_steps > plan.steps_per_epoch:
        _mark_epochs(axes, plan.steps_per_epoch, plan.total_steps)
    cycled = momentum(spec)
    if cycled is not None:
        right = axes.twinx()
        _plot(right, steps, cycled, 1.0, _ORANGE)
        right.set_ylabel("momentum", color=_ORANGE)
        right.spines[["top", "left"]].set_visible(False)
    try:
        figure.savefig(path)
    except OSError as error:
        raise ConfigError(f"--plot {path} cannot be written: {error.strerror}.") from error


def _plot(axes: Any, steps: range, at: Factor, scale: float, color: str) -> None:
    axes.plot(steps, [scale * at(step) for step in steps], color=color, linewidth=1.8)
    axes.tick_params(axis="y", colors=color)


def _mark_epochs(axes: Any, length: float, total_steps: int) -> None:
    """Draw a line where each epoch begins, and number some of them along the top."""
    count = int(total_steps / length)
    for epoch in range(1, count + 1 if count <= _MOST_EPOCHS else 1):
        axes.axvline(epoch * length, color=_GREY, alpha=0.35, linewidth=0.6, linestyle=":")
    top = axes.secondary_xaxis(
        "top", functions=(lambda step: step / length, lambda epoch: epoch * length)
    )
    top.set_xticks(range(0, count + 1, max(1, round(count / 10))))
    top.set_xlabel("epoch", color=_GREY, fontsize=9)
    top.tick_params(colors=_GREY, labelsize=8)
    top.spines["top"].set_visible(False)
