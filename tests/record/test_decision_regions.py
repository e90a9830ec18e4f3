"""Decision regions in the events of a run."""

import base64
import zlib

import numpy as np
import pytest

from surestep.record.decision_regions import (
    UNKNOWN,
    DecisionRegions,
    as_confidence,
    decode_regions,
    encode_regions,
)
from surestep.record.records import read_records
from surestep.record.schemas import EVENTS, validate


def make_regions(step=4, cells=5, n_classes=3, measured="weights"):
    """Return regions with random cells, of which the first is unknown."""
    draw = np.random.default_rng(step)
    classes = draw.integers(0, n_classes, (cells, cells)).astype(np.uint8)
    classes[0, 0] = UNKNOWN
    confidence = draw.integers(100, 256, (cells, cells)).astype(np.uint8)
    return DecisionRegions(step, measured, (-1.0, 2.0), (0.5, 0.75), n_classes, classes, confidence)


def make_event(*args, **more):
    return {"event": "decision_regions", "time": 1.0, **encode_regions(make_regions(*args, **more))}


def test_regions_are_read_as_they_were_written():
    event = validate(EVENTS["decision_regions"], make_event())
    found, expected = decode_regions(event), make_regions()
    for name, value in vars(expected).items():
        assert np.array_equal(getattr(found, name), value), name


def pack(content):
    return base64.b64encode(zlib.compress(content)).decode()


@pytest.mark.parametrize(
    "content",
    [
        *("", "####", base64.b64encode(b"not compressed").decode()),
        *(pack(bytes(49)), pack(bytes([3] * 50))),
        pack(bytes(50))[:-8],
    ],
)
def test_damaged_cells_are_an_error(content):
    with pytest.raises(ValueError, match=r".+"):
        decode_regions({**make_event(), "content": content})


@pytest.mark.parametrize("ends", [[1.0, 1.0], [2.0, 1.0]])
def test_axis_without_a_length_is_an_error(ends):
    with pytest.raises(ValueError, match="an axis ends where it starts"):
        decode_regions({**make_event(), "y": ends})


def test_cells_after_those_of_the_grid_are_not_read():
    """A few kilobytes can be those of gigabytes."""
    event = {**make_event(), "content": pack(bytes(2**24))}
    assert decode_regions(event).classes.shape == (5, 5)


@pytest.mark.parametrize(
    "more", [{"cells": 257}, {"cells": 0}, {"n_classes": 65}, {"x": [1.0]}, {"y": [0.0, "nan"]}]
)
def test_event_of_another_shape_is_an_error(more):
    with pytest.raises(ValueError, match=next(iter(more))):
        validate(EVENTS["decision_regions"], {**make_event(), **more})


def test_confidence_is_rounded_and_zero_where_it_is_not_known():
    given = np.array([0.0, 0.5, 1.0, 1 / 3, np.nan, np.inf])
    assert as_confidence(given).tolist() == [0, 128, 255, 85, 0, 0]


def test_repeated_steps_have_their_newest_regions():
    """Those after the step of a resume or a rollback are undone."""
    events = [make_event(2), make_event(4), make_event(6)]
    events += [{"event": "rollback", "time": 1.0, "step": 3}, make_event(4, n_classes=2)]
    records = read_records(events)
    assert [(step, event["n_classes"]) for step, event in records.regions.items()] == [
        *((2, 3), (4, 2)),
    ]
    assert [event["event"] for event in records.events] == ["rollback"]
