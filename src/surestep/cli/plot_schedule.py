"""Plot the learning-rate schedule of a run."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from surestep.base.errors import ConfigError

if TYPE_CHECKING:  # the path is checked before torch is imported
    from surestep.engine.plan.plan import Plan
    from surestep.engine.schedule.registry import UserFunction

_SUFFIXES = (".png", ".svg", ".pdf")
_MOST_POINTS = 4000


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
        raise ConfigError("--plot needs matplotlib. Install it: pip install matplotlib.")


def plot_schedule(plan: Plan, path: Path, function: UserFunction | None = None) -> None:
    """Plot the learning rate of each step.

    Raises:
        ConfigError: the file cannot be written.
    """
    from matplotlib.figure import Figure

    from surestep.engine.schedule.lr import PlateauState, make_lr_factor
    from surestep.engine.state.average import with_swa_lr

    spec, peak = plan.schedule, plan.optim_lr
    factor = with_swa_lr(make_lr_factor(spec, PlateauState(), function), plan.average, peak or 1.0)
    steps = range(0, plan.total_steps, max(1, plan.total_steps // _MOST_POINTS))
    figure = Figure(figsize=(9, 4.2), dpi=150, layout="constrained")
    axes = figure.subplots()
    axes.plot(steps, [(peak or 1.0) * factor(step) for step in steps], linewidth=1.8)
    axes.set_xlabel("optimizer step")
    axes.set_ylabel("learning rate" if peak is not None else "share of the peak rate")
    axes.set_ylim(bottom=0)
    axes.set_xlim(0, plan.total_steps)
    stairs = "" if spec.interval == 1 else f", every {spec.interval:g} steps"
    title = f"{spec.name}{stairs}, {spec.total:g} steps"
    if spec.name == "reduce_on_plateau":
        title += f", times {spec.curve_options['factor']:g} at each plateau"
    axes.set_title(title, loc="left", fontsize=11)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.grid(axis="y", alpha=0.2)
    axes.spines[["top", "right"]].set_visible(False)
    if spec.warmup:
        axes.axvspan(0, spec.warmup, alpha=0.08, linewidth=0)
        axes.annotate("warm-up", (0, 0.02), (4, 0), "axes fraction", "offset points")
    try:
        figure.savefig(path)
    except OSError as error:
        raise ConfigError(f"--plot {path} cannot be written: {error.strerror}.") from error
