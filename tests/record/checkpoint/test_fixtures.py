"""This version reads the files of older ones; a changed format gets a new number.

If a test here fails because the format has changed, raise FORMAT, keep the existing fixtures,
read both formats, and write the new fixture with
`python -m tests.record.checkpoint.fixtures.make`.
"""

import json
import re
import shutil

import pytest
import torch

from surestep.base.errors import CheckpointError, RunError
from surestep.record.checkpoint.manifest import FORMAT, MANIFEST, RECORD
from surestep.record.events import read_events
from surestep.record.schemas import EVENTS_FORMAT
from surestep.record.skipped_samples import summarize_skips
from tests.record.checkpoint.fixtures import stream as own_state
from tests.record.checkpoint.fixtures.make import HERE, fresh, moved, seen, write_events
from tests.record.checkpoint.forge import manifest_of, seal
from tests.record.checkpoint.on_disk import load_checkpoint, save_checkpoint

CHECKPOINTS = sorted(HERE.glob("format-*/step-*"))
STREAMS = sorted(HERE.glob("stream-*/step-*"))
EVENTS = sorted(HERE.glob("events-*.jsonl"))


def keys(value, name=""):
    """Return the dotted names of all values in JSON data; items of a list share a name."""
    if isinstance(value, dict):
        return {name} | {
            key_name for key in value for key_name in keys(value[key], f"{name}.{key}")
        }
    if isinstance(value, list):
        return {name} | {key_name for part in value for key_name in keys(part, f"{name}[]")}
    return {f"{name}: {type(value).__name__}"}


def test_current_formats_have_fixtures():
    assert f"format-{FORMAT}" in {path.parent.name for path in CHECKPOINTS}
    assert f"events-{EVENTS_FORMAT}" in {path.stem for path in EVENTS}


@pytest.mark.parametrize("path", CHECKPOINTS, ids=lambda path: path.parent.name)
def test_checkpoint_of_a_released_format_is_loaded(path):
    expected = json.loads((path.parent / "expected.json").read_text())
    expected["best"].setdefault("data", None)  # format 6 has no such key
    state = fresh()
    assert all(seen(state)[part] != expected[part] for part in expected)
    load_checkpoint(path, state)
    assert seen(state) == expected
    assert torch.equal(state.model.first.weight, state.model.second.weight)
    assert state.model.seen == [1, "two"]


@pytest.mark.parametrize("path", STREAMS, ids=lambda path: path.parent.name)
def test_stream_resumes_from_the_state_of_a_released_format(path):
    state, stream = own_state.fresh()
    load_checkpoint(path, state)
    mark = stream.checkpoint_at(state.progress.epoch, state.progress.position)
    assert mark is not None
    assert (mark.again, mark.parts[0].read) == (0, state.progress.position)
    expected = json.loads((path.parent / "expected.json").read_text())
    assert own_state.following(stream, state.progress) == expected


def test_stream_state_has_the_keys_of_its_format(tmp_path):
    (old,) = [path for path in STREAMS if path.parent.name == f"stream-{FORMAT}"]
    new = own_state.written(tmp_path)[0]
    was, now = (json.loads((path / RECORD).read_text())["callback_states"] for path in (old, new))
    assert was
    assert keys(now) == keys(was), "FORMAT is to be raised, or a fixture to be written"


def test_new_checkpoint_has_the_keys_of_its_format(tmp_path):
    (old,) = [path for path in CHECKPOINTS if path.parent.name == f"format-{FORMAT}"]
    new = save_checkpoint(tmp_path, moved(), cycle=1)
    for file in (MANIFEST, RECORD):
        was, now = (json.loads((path / file).read_text()) for path in (old, new))
        assert keys(now) == keys(was), "FORMAT is to be raised, or a fixture to be written"
    assert {path.name for path in new.iterdir()} == {path.name for path in old.iterdir()}


@pytest.mark.parametrize("change", ["a key more", "a key less", "another type"])
def test_changed_key_is_detected(change):
    (path,) = [path for path in CHECKPOINTS if path.parent.name == f"format-{FORMAT}"]
    record = json.loads((path / RECORD).read_text())
    before = keys(record)
    if change == "a key more":
        record["counts"]["more"] = 1
    elif change == "a key less":
        del record["counts"]["clipped"]
    else:
        record["counts"]["clipped"] = "4"
    assert keys(record) != before


@pytest.mark.parametrize("path", EVENTS, ids=lambda path: path.stem)
def test_events_of_a_released_format_are_read(path):
    found = list(read_events(path))
    assert [event["event"] for event in found] == [
        *("format", "resume", "steps", "skipped", "rollback", "end")
    ]
    assert summarize_skips(found).samples == [3, 5]
    assert found[2]["loss"] == [0.5, "nan"]


def test_new_events_have_the_keys_of_their_format(tmp_path):
    write_events(tmp_path / "events.jsonl")
    was, now = (
        [keys(json.loads(line)) for line in path.read_text().splitlines()]
        for path in (HERE / f"events-{EVENTS_FORMAT}.jsonl", tmp_path / "events.jsonl")
    )
    assert now == was, "FORMAT is to be raised, or a fixture to be written"


def test_newer_formats_are_rejected_with_the_upgrade_command(tmp_path):
    path = shutil.copytree(CHECKPOINTS[-1], tmp_path / CHECKPOINTS[-1].name)
    seal(path, {**manifest_of(path), "format": FORMAT + 1})
    with pytest.raises(CheckpointError, match=rf"format {FORMAT + 1}.*pip install -U surestep"):
        load_checkpoint(path, fresh())
    events = tmp_path / "events.jsonl"
    text = EVENTS[-1].read_text()
    events.write_text(re.sub(r'"version": \d+', f'"version": {EVENTS_FORMAT + 1}', text))
    with pytest.raises(RunError, match=rf"format {EVENTS_FORMAT + 1}.*pip install -U surestep"):
        list(read_events(events))
