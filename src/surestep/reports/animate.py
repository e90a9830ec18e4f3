"""Write the decision regions of a run as an animation."""

from __future__ import annotations

import io
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from surestep.base.errors import ConfigError, RunError
from surestep.base.files import replace_file
from surestep.record.decision_regions import DecisionRegions
from surestep.record.io import check_output, explain_write_errors
from surestep.record.records import load_records
from surestep.record.run import Run
from surestep.reports.decision_regions import (
    MOST_FRAMES,
    choose_colors,
    color_cells,
    read_points,
    read_regions,
    spread,
)

if TYPE_CHECKING:
    from PIL.Image import Image

ENDINGS = (".webp", ".gif")
MOST_BYTES = 2_000_000  # of the file
_SIDE = 440  # pixels of the plane
_CAPTION = 28  # pixels below it
_RADIUS = 2.2  # pixels of a point
_FRAME_MS, _LAST_MS = 250, 2000
_QUALITY = 85  # of WebP
_SAFETY = 0.95  # of the frames that would fit if all were of one size
_PAPER, _INK, _NO_CLASS = "#ffffff", "#1b2430", "#98a5b7"


def check_animation(path: Path) -> None:
    """Check that an animation can be written to a file.

    Raises:
        ConfigError: Pillow is missing, the ending is not .webp or .gif, or there is no folder.
        RunError: it is an address.
    """
    check_output(path, ENDINGS, overwrite=True)
    if find_spec("PIL") is None:
        raise ConfigError("An animation needs Pillow. Install it: pip install pillow.")


def write_animation(run: Run, path: Path) -> Path:
    """Write the decision regions of a run, one frame for each evaluation: at most 2 MB.

    Of a long run, the frames are evenly spread; the first and the last evaluation are shown.

    Args:
        run: may be running.
        path: the file to write or replace, .webp or .gif.

    Returns:
        The path.

    Raises:
        ConfigError: as `check_animation`.
        RunError: the run recorded no decision regions, a file of it cannot be read, or the
            animation cannot be written.
    """
    check_animation(path)
    records = load_records(run.path)
    regions, damaged = read_regions(records)
    if not regions:
        how = "all that it recorded are damaged" if damaged else "it recorded none"
        raise RunError(
            f"{run.path} has no decision regions to animate: {how}. Train a classifier of two "
            "inputs with callbacks=[surestep.DecisionRegions()]; in a recipe, write "
            "callbacks = [surestep.DecisionRegions()]."
        )
    content = _encode(regions, read_points(records), path.suffix)
    with (
        explain_write_errors(path, "file", " with --animate"),
        replace_file(path) as temporary,
    ):
        temporary.write_bytes(content)
    return path


def _encode(regions: list[DecisionRegions], points: dict[str, list[Any]], ending: str) -> bytes:
    """Return the file with as many frames as its size allows."""
    frames = [_draw(one, points) for one in spread(regions, MOST_FRAMES)]
    if ending == ".gif":
        frames = [_quantize(frame) for frame in frames]
    while len(content := _join(frames, ending)) > MOST_BYTES and len(frames) > 1:
        fit = int(_SAFETY * len(frames) * MOST_BYTES / len(content))
        frames = spread(frames, max(1, fit))
    return content


def _quantize(frame: Image) -> Image:
    """Return a frame of 256 colors; Pillow's default takes 0.5 s for it."""
    from PIL.Image import Quantize

    return frame.quantize(method=Quantize.FASTOCTREE)


def _join(frames: list[Image], ending: str) -> bytes:
    file = io.BytesIO()
    options = {"quality": _QUALITY} if ending == ".webp" else {}
    frames[0].save(
        file,
        format=ending[1:],
        save_all=True,
        append_images=frames[1:],
        duration=[*[_FRAME_MS] * (len(frames) - 1), _LAST_MS],
        loop=0,
        **options,
    )
    return file.getvalue()


def _draw(regions: DecisionRegions, points: dict[str, list[Any]]) -> Image:
    """Return a frame: the cells, the points, and the step below."""
    from PIL import Image, ImageDraw, ImageFont

    frame = Image.new("RGB", (_SIDE, _SIDE + _CAPTION), _PAPER)
    cells = Image.fromarray(color_cells(regions)).resize((_SIDE, _SIDE), Image.Resampling.BILINEAR)
    frame.paste(cells, (0, 0), cells)
    draw, colors = ImageDraw.Draw(frame), choose_colors(regions.n_classes)
    for x, y, label in zip(points["x"], points["y"], points["labels"], strict=True):
        across = _SIDE * (x - regions.x[0]) / (regions.x[1] - regions.x[0])
        down = _SIDE * (regions.y[1] - y) / (regions.y[1] - regions.y[0])
        box = (across - _RADIUS, down - _RADIUS, across + _RADIUS, down + _RADIUS)
        if 0 <= across <= _SIDE and 0 <= down <= _SIDE:
            fill = colors[label] if 0 <= label < len(colors) else _NO_CLASS
            draw.ellipse(box, fill=fill, outline=_PAPER)
    font = ImageFont.load_default(16)
    draw.text((8, _SIDE + 4), f"step {regions.step:,}", fill=_INK, font=font)
    return frame
