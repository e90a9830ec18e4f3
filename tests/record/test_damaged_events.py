"""Damaged events are set aside when a run resumes, and not found after it has trained."""

import json

import pytest

from surestep.base.errors import RunError
from surestep.record import events
from surestep.record.events import read_events, repair_events
from surestep.record.run import Run
from tests import tiny

GOOD = [b'{"event": "format", "version": 2}\n', *(b'{"event": "e%d"}\n' % n for n in range(4))]
STEPS = {
    **{"event": "steps", "time": 1.5, "first": 1, "epoch": 0, "loss": [0.5, "nan"]},
    **{"grad_norm": [None, 1.5], "lr": [0.1, 0.1], "items": 16, "samples": 16, "seconds": 0.5},
    **{"data_wait_s": 0.0, "logged": {"a": [1.0, None]}, "group_lr": {"head": 0.1}},
    **{"peak_memory": 2**41, "layers": {"step": 2, "weight_norm": {"head": "inf"}}},
}
HISTOGRAM = {"min": 0.0, "max": 1.0, "sum": 2.0, "sum_squares": 2.0, "counts": [1, 2]}
FINDING = {"rule": "SS101", "severity": "error", "message": "m", "fix": "f", "name": "n"}
READ = {
    "steps": STEPS,
    "evaluation": {
        **{"event": "evaluation", "time": 1.5, "step": 1, "measured": "weights"},
        "metrics": {"val/loss": 0.5, "val/table": [[1, 2]], "val/r2": "nan"},
    },
    "histograms": {
        **{"event": "histograms", "time": 1.5, "step": 1},
        **{"weights": {"head": HISTOGRAM}, "gradients": {}},
    },
    "incident": {"event": "incident", "step": 1},
    "decision_points": {"event": "decision_points", "x": [0.5], "y": [1.5], "labels": [2]},
    "decision_regions": {
        **{"event": "decision_regions", "step": 1, "measured": "average", "content": ""},
        **{"x": [0.5, 1.5], "y": [0.5, 1.5], "n_classes": 2, "cells": 8},
    },
    "end": {"event": "end", "status": "finished", "findings": [FINDING]},
}
OPTIONAL = {
    *("logged", "group_lr", "peak_memory", "layers", "weight_norm", "measured", "findings", "name"),
    *("head", "a", "val/loss", "val/table", "val/r2"),
}
BAD = {
    "text": b"{\n",
    "zeros": bytes(64) + b"\n",
    "two lines": b"\xff\n[1]\n",
    "unknown steps": b'{"event": "resume", "step": -1}\n',
}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "events.jsonl"


def spoil_fields(value):
    """Yield copies of an object with a field of it, or of one in it, lost or of another type."""
    for key, found in value.items():
        for bad in ([{}], True, [[True]], *([] if isinstance(found, str) else ["x"])):
            yield {**value, key: bad}
        if key not in OPTIONAL:
            yield {name: other for name, other in value.items() if name != key}
        if isinstance(found, dict):
            yield from ({**value, key: spoiled} for spoiled in spoil_fields(found))


@pytest.mark.parametrize("kind", READ)
def test_event_that_lacks_what_is_read_from_it_is_set_aside(path, kind):
    """The line is valid JSON, such as after a change of one byte in the name of a field."""
    path.write_bytes(GOOD[0] + json.dumps(READ[kind]).encode() + b"\n")
    assert repair_events(path) is None
    for spoiled in spoil_fields(READ[kind]):
        path.write_bytes(GOOD[0] + json.dumps(spoiled).encode() + b"\n")
        is_aside = repair_events(path) is not None
        assert is_aside, spoiled


@pytest.mark.parametrize("kind", BAD)
@pytest.mark.parametrize("at", [0, 2, 5])
def test_good_events_keep_their_place_and_the_rest_is_set_aside(path, kind, at):
    path.write_bytes(b"".join([*GOOD[:at], BAD[kind], *GOOD[at:]]))
    size, after = path.stat().st_size, path.read_bytes()[-len(GOOD[-1]) :]
    text = repair_events(path)
    assert f"{len(BAD[kind])} bytes in 1 place were not events" in text
    assert "events-damaged-1.jsonl" in text
    assert path.with_name("events-damaged-1.jsonl").read_bytes() == BAD[kind]
    assert list(read_events(path)) == [json.loads(line) for line in GOOD]
    assert path.stat().st_size == size
    assert at == 5 or path.read_bytes().endswith(after)
    assert repair_events(path) is None


@pytest.mark.parametrize("part", [1, 3, 5])
def test_damage_is_set_aside_in_parts_and_the_events_after_it_are_kept(path, monkeypatch, part):
    monkeypatch.setattr(events, "_TAIL", part)
    path.write_bytes(b"".join([GOOD[0], b"damaged\n", *GOOD[1:]]))
    assert "8 bytes in 1 place" in repair_events(path)
    assert list(read_events(path)) == [json.loads(line) for line in GOOD]


def test_several_damaged_lines_are_set_aside_in_order_and_never_over_a_file(path, monkeypatch):
    monkeypatch.setattr(events, "_TAIL", 3)  # copied in several parts
    taken = path.with_name("events-damaged-1.jsonl")
    taken.symlink_to(path.with_name("elsewhere"))
    path.write_bytes(b"".join([GOOD[0], b"first\n", GOOD[1], b"second\n"]))
    assert "in 2 places" in repair_events(path)
    assert path.with_name("events-damaged-2.jsonl").read_bytes() == b"first\nsecond\n"
    assert not path.with_name("elsewhere").exists()
    assert list(read_events(path)) == [json.loads(line) for line in GOOD[:2]]


def test_newer_format_is_not_set_aside(path):
    path.write_bytes(b'{"event": "format", "version": 99}\n')
    with pytest.raises(RunError, match="Install a newer one"):
        repair_events(path)
    assert [found.name for found in path.parent.iterdir()] == [path.name]


def test_incomplete_last_line_is_left_to_the_writer(path):
    path.write_bytes(GOOD[0] + b'{"event": "a')
    assert repair_events(path) is None
    assert path.read_bytes() == GOOD[0] + b'{"event": "a'


def test_resumed_run_reports_damage_and_ends(tmp_path, capfd):
    run = tiny.fit(tmp_path / "run", max_steps=2)
    path = run.path / "events.jsonl"
    path.write_bytes(path.read_bytes() + b"damaged\n")
    assert (
        tiny.fit(run.path, max_steps=3, logging={"progress": "plain"}).status["status"]
        == "finished"
    )
    assert f"{path} was damaged: 8 bytes in 1 place were not events." in capfd.readouterr().err
    kinds = [event["event"] for event in Run(run.path).events()]
    assert (kinds[0], kinds[-1]) == ("format", "end")


@pytest.mark.parametrize("how", ["missing", "empty"])
def test_lost_events_are_reported(tmp_path, capfd, how):
    run = tiny.fit(tmp_path / "run", max_steps=2)
    path = run.path / "events.jsonl"
    path.unlink()
    if how == "empty":
        path.touch()
    assert (
        tiny.fit(run.path, max_steps=3, logging={"progress": "plain"}).status["status"]
        == "finished"
    )
    assert f"{path} is {how}: what the run recorded before is lost." in capfd.readouterr().err
    assert next(Run(run.path).events())["event"] == "format"
