"""What the page of a run has of its decision regions."""

import base64
import io
import re
from importlib.resources import files

import numpy as np
import pytest
from PIL import Image

from surestep.record.decision_regions import UNKNOWN, DecisionRegions
from surestep.record.records import read_records
from surestep.record.run import Run
from surestep.reports import decision_regions
from surestep.reports.decision_regions import (
    choose_colors,
    color_cells,
    describe_regions,
    spread,
)
from surestep.reports.write import describe
from tests.record.test_decision_regions import make_event, make_regions
from tests.reports.folders import evaluation, log_point, write_run

POINTS = {"event": "decision_points", "time": 1.0, "x": [0.0, 1.0], "y": [0.5, 0.7]}
POINTS["labels"] = [2, -1]


def test_regions_of_a_run_are_in_the_numbers_of_its_page(tmp_path):
    events = [log_point(1, [1.0] * 4), evaluation(2, 0.5), POINTS, make_event(2)]
    run = Run(write_run(tmp_path / "run", [*events, make_event(4), evaluation(4, 0.25)]))
    found = describe({str(run.path): run})["regions"]
    assert [(one["step"], one["measured"], one["value"]) for one in found["frames"]] == [
        *((2, "weights", 0.5), (4, "weights", 0.25)),
    ]
    assert found["frames"][0]["x"] == (-1.0, 2.0)
    assert found["points"] == {name: POINTS[name] for name in ("x", "y", "labels")}
    assert (found["metric"], found["left_out"], found["damaged"]) == ("val/loss", 0, 0)
    assert len(found["colors"]) == 3


def test_run_without_regions_has_none(tmp_path):
    run = Run(write_run(tmp_path / "run", [log_point(1, [1.0]), evaluation(1, 1.0)]))
    assert describe({str(run.path): run})["regions"] is None


def test_value_that_is_not_finite_and_points_that_are_missing_are_left_out():
    records = read_records([make_event(2)])
    found = describe_regions(records, None)
    assert found["frames"][0]["value"] is None
    assert found["points"] == {"x": [], "y": [], "labels": []}


def test_damaged_regions_are_counted():
    records = read_records([make_event(2), {**make_event(4), "content": "AAAA"}])
    found = describe_regions(records, None)
    assert ([one["step"] for one in found["frames"]], found["damaged"]) == ([2], 1)


def test_picture_has_the_color_of_the_class_and_the_opacity_of_the_confidence():
    classes = np.array([[0, 1], [1, UNKNOWN]], np.uint8)
    confidence = np.array([[255, 128], [191, 255]], np.uint8)
    regions = DecisionRegions(1, "weights", (0.0, 1.0), (0.0, 1.0), 2, classes, confidence)
    found = describe_regions(read_records([]), None)
    assert found is None
    pixels = color_cells(regions)
    colors = [list(bytes.fromhex(color[1:])) for color in choose_colors(2)]
    assert pixels[0, 0].tolist() == [*colors[0], 178]
    assert pixels[0, 1, :3].tolist() == colors[1]
    assert pixels[:, :, 3].tolist() == [[178, 13], [95, 0]]


def test_png_has_these_pixels():
    records = read_records([make_event(2, cells=7)])
    (frame,) = describe_regions(records, None)["frames"]
    with Image.open(io.BytesIO(base64.b64decode(frame["png"]))) as picture:
        assert np.array_equal(np.asarray(picture), color_cells(make_regions(2, cells=7)))


def test_pictures_of_a_long_run_stay_small(monkeypatch):
    monkeypatch.setattr(decision_regions, "_MOST_BYTES", 30_000)
    records = read_records([make_event(step, cells=32) for step in range(1, 101)])
    found = describe_regions(records, None)
    size = sum(len(frame["png"]) for frame in found["frames"])
    assert 20_000 < size < 33_000
    steps = [frame["step"] for frame in found["frames"]]
    assert (steps[0], steps[-1], len(steps) + found["left_out"]) == (1, 100, 100)


@pytest.mark.parametrize(("count", "most"), [(0, 3), (3, 3), (10, 3), (10, 4), (100, 99)])
def test_spread_items_are_even_with_both_ends(count, most):
    found = spread(range(count), most)
    assert len(found) == len(set(found)) == min(count, most)
    assert found[:1] + found[-1:] == [*range(count)][:1] + [*range(count)][-1:]
    steps = np.diff(found)
    assert len(steps) == 0 or steps.max() - steps.min() <= 1


def test_classes_have_the_colors_of_the_page_and_different_ones():
    style = (files("surestep.reports") / "assets" / "page.css").read_text()
    light = style.partition("@media")[0]
    assert choose_colors(8) == re.findall(r"--series-\d: (#\w+)", light)
    assert len(set(choose_colors(64))) == 64
    assert choose_colors(3) == choose_colors(64)[:3]
