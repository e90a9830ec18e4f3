"""The decision regions of a run as an animation."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from surestep.base.errors import ConfigError, RunError
from surestep.record.decision_regions import DecisionRegions, encode_regions
from surestep.record.run import Run
from surestep.reports import animate
from surestep.reports.animate import write_animation
from surestep.reports.decision_regions import choose_colors
from tests.record.test_decision_regions import make_event
from tests.reports.folders import log_point, write_run

POINTS = {"event": "decision_points", "time": 1.0, "x": [0.5], "y": [0.25], "labels": [1]}


def write(folder, *events):
    return Run(write_run(folder, [log_point(1, [1.0] * 900), *events]))


def solid(step, label, cells=8):
    """Return the event of regions of one class, which is certain."""
    classes = np.full((cells, cells), label, np.uint8)
    regions = DecisionRegions(
        step, "weights", (0.0, 1.0), (0.0, 1.0), 3, classes, np.full_like(classes, 255)
    )
    return {"event": "decision_regions", "time": 1.0, **encode_regions(regions)}


def read_frames(path):
    with Image.open(path) as file:
        found = []
        for number in range(file.n_frames):
            file.seek(number)
            found.append(np.asarray(file.convert("RGB")).astype(int))
        return found


def color(label, opacity=1.0):
    """Return the color of a class on white paper."""
    found = np.array(list(bytes.fromhex(choose_colors(3)[label][1:])))
    return found * opacity + 255 * (1 - opacity)


@pytest.mark.parametrize("ending", ["webp", "gif"])
def test_each_evaluation_is_a_frame_with_its_color_and_the_points(tmp_path, ending):
    path = tmp_path / f"a.{ending}"
    path.write_text("of an earlier run")
    write_animation(write(tmp_path / "run", POINTS, solid(2, 0), solid(4, 2)), path)
    frames = read_frames(path)
    assert len(frames) == 2
    height, width, _ = frames[0].shape
    for frame, label in zip(frames, (0, 2), strict=True):
        assert abs(frame[20, 20] - color(label, 0.7)).max() < 10
        point = frame[width * 3 // 4, width // 2]  # at y 0.25, from below
        assert abs(point - color(1)).sum() < abs(point - color(label, 0.7)).sum()
        assert (frame[width + 4 :] < 128).any()  # the step
    assert height > width


@pytest.mark.parametrize(("ending", "most"), [("gif", 600_000), ("webp", 300_000)])
def test_animation_of_a_long_run_is_small(tmp_path, monkeypatch, ending, most):
    """Noise is the worst case of a compression."""
    monkeypatch.setattr(animate, "MOST_BYTES", most)
    path = tmp_path / f"a.{ending}"
    events = [make_event(step, cells=256) for step in range(1, 7)]
    write_animation(write(tmp_path / "run", *events), path)
    assert most / 2 < path.stat().st_size <= most
    assert 1 < len(read_frames(path)) < 6


def test_default_limit_is_two_megabytes():
    assert animate.MOST_BYTES == 2_000_000


def test_frames_of_a_long_run_are_spread(tmp_path, monkeypatch):
    monkeypatch.setattr(animate, "MOST_FRAMES", 5)
    path = tmp_path / "a.webp"
    events = [solid(step, step % 3) for step in range(1, 10)]
    write_animation(write(tmp_path / "run", *events), path)
    frames = read_frames(path)
    assert len(frames) == 5
    for frame, step in zip(frames, (1, 3, 5, 7, 9), strict=True):
        assert abs(frame[20, 20] - color(step % 3, 0.7)).max() < 10


@pytest.mark.parametrize("name", ["a.mp4", "a", "a.webp/b.gif", "s3://bucket/a.gif"])
def test_file_that_cannot_be_an_animation_is_rejected(tmp_path, name, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = write(tmp_path / "run", solid(2, 0))
    with pytest.raises((ConfigError, RunError)):
        write_animation(run, Path(name))
    assert {path.name for path in tmp_path.iterdir()} == {"run"}


def test_missing_pillow_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(animate, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"needs Pillow. Install it: pip install pillow"):
        write_animation(write(tmp_path / "run", solid(2, 0)), tmp_path / "a.gif")


@pytest.mark.parametrize(
    ("events", "why"),
    [((), "it recorded none"), (({**make_event(), "content": "AAAA"},), "all .* are damaged")],
)
def test_run_without_regions_is_explained(tmp_path, events, why):
    with pytest.raises(RunError, match=rf"no decision regions to animate: {why}.*DecisionRegions"):
        write_animation(write(tmp_path / "run", *events), tmp_path / "a.gif")
    assert not (tmp_path / "a.gif").exists()
