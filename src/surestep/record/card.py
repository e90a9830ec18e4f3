"""A run as a notebook shows it: a card with its state, its best metric and its losses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from surestep.base.errors import SurestepError
from surestep.base.html import escape_html, make_table
from surestep.base.text import format_count
from surestep.record.charts import Curve, list_hidden, select_points
from surestep.record.progress import RunProgress, read_progress

if TYPE_CHECKING:
    from surestep.record.history import History

Found = TypeVar("Found")
_WIDTH, _HEIGHT, _EDGE = 240, 40, 2  # of the curve, in pixels
_MOST = 8  # losses that are named


def render_card(
    path: Path,
    *,
    config: Callable[[], Mapping[str, Any]],
    status: Callable[[], Mapping[str, Any]],
    history: Callable[[], History],
) -> str:
    """Return the card of a run as HTML without scripts. It never raises an error.

    What cannot be read is a sentence in the card: the run may train, have been killed, be damaged,
    or be deleted by now.

    Args:
        path: the folder of the run.
        config: reads its config.json.
        status: reads its status.json.
        history: reads its history.
    """
    problems: list[str] = []
    rows, state, curve = [], "unreadable", ""
    ended = _attempt(status, problems)
    recorded = _attempt(config, problems)
    if ended is not None and recorded is not None:
        progress = _attempt(lambda: read_progress(path, recorded, ended), problems)
        if progress is not None:
            state, rows = progress.state, _list_rows(progress, ended)
    steps = _attempt(history, problems)
    if steps is not None:
        rows += _attempt(lambda: _list_losses(steps), problems) or []
        curve = _attempt(lambda: _draw_losses(steps), problems) or ""
    sentences = "".join(f"<div>{escape_html(text)}</div>" for text in dict.fromkeys(problems))
    return (
        '<div style="border:1px solid #8884;border-radius:6px;padding:8px 12px;'
        'display:inline-block;max-width:60em">'
        f"<div><b>{escape_html(path.resolve().name)}</b> {escape_html(state)}</div>"
        f"{make_table((), rows) if rows else ''}{curve}{sentences}</div>"
    )


def _attempt(read: Callable[[], Found], problems: list[str]) -> Found | None:
    """Return what a function reads; if it fails, add why to the problems."""
    try:
        return read()
    except SurestepError as error:
        problems.append(str(error))
    except Exception as error:  # a notebook would show a traceback in place of the card
        problems.append(f"It cannot be read: {type(error).__name__}: {error}")
    return None


def _list_rows(progress: RunProgress, status: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the rows of the card that are not losses; what is not known has none."""
    total = "" if progress.total_steps is None else f" of {progress.total_steps:,}"
    rows = {
        "recipe": progress.recipe,
        "step": "" if progress.step is None else f"{progress.step:,}{total}",
        "ended": str(status.get("reason") or ""),
    }
    if progress.best is not None:
        rows["best"] = f"{progress.metric} {progress.best:.4g} at step {progress.best_step:,}"
    return [(label, text) for label, text in rows.items() if text]


def _list_losses(history: History) -> list[tuple[str, str]]:
    """Return a row for the last value of each loss."""
    names = [name for name in history.columns if name.split("/")[-1] == "loss"]
    rows = []
    for name in names[:_MOST]:
        at, values = history.columns[name]
        if len(values):
            rows.append((f"last {name}", f"{values[-1]:.4g} at step {history.steps[at[-1]]:,}"))
    if len(names) > _MOST:
        rows.append(("more", f"{format_count(len(names) - _MOST, 'loss', 'losses')}"))
    return rows


def _draw_losses(history: History) -> str:
    """Return the losses of the steps as a line in SVG, and how many are not finite."""
    at, values = history.columns["train/loss"]
    curve = Curve("train/loss", history.steps[at], values)
    steps, drawn = select_points(curve, _WIDTH // 2, log=False)
    notes = "".join(f"<div>{escape_html(note)}</div>" for note in list_hidden(curve, log=False))
    if not len(values):
        return "<div>No step is recorded yet.</div>"
    if not len(drawn):
        return notes
    x = _scale(steps.astype(np.float64), _WIDTH)
    y = _HEIGHT - _scale(drawn, _HEIGHT)
    points = " ".join(f"{left:.1f},{top:.1f}" for left, top in zip(x, y, strict=True))
    if len(drawn) == 1:
        points += f" {_WIDTH - _EDGE},{y[0]:.1f}"
    label = f"losses of steps {steps[0]:,} to {steps[-1]:,}"
    return (
        f'<svg width="{_WIDTH}" height="{_HEIGHT}" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-label="{label}"><polyline points="{points}" fill="none" stroke="currentColor" '
        f'stroke-width="1.2"/></svg>{notes}'
    )


def _scale(values: np.ndarray[Any, np.dtype[np.float64]], length: int) -> Any:
    """Map values to pixels between the edges; equal ones are in the middle."""
    low, high = values.min() / 2, values.max() / 2  # halves, since a difference may be infinite
    if low == high:
        return np.full(len(values), length / 2)
    return _EDGE + (values / 2 - low) / (high - low) * (length - 2 * _EDGE)
