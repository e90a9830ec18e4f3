"""Hostile run folders: readers reject a bad file by name, quickly, without running code."""

import json
import shutil
from collections import deque

import pytest

import surestep
from surestep.base.errors import RunError, SurestepError
from surestep.record.checkpoint.discovery import list_checkpoints
from surestep.record.checkpoint.reader import read_info
from surestep.record.checkpoint.retention import explain_retention
from surestep.record.incident import incidents_of, read_incident
from surestep.record.io import read_json
from surestep.record.lock import RunLock
from surestep.record.schemas import DATA_FINDINGS
from surestep.record.skipped_samples import read_samples
from tests import tiny
from tests.record.damage import DAMAGES, GONE, change, in_time, spoil
from tests.trainer.test_replay import DIVIDES, failed

INCIDENT, BATCH = "incidents/{}/incident.json", "incidents/{}/batch.safetensors"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A run with checkpoints, an incident and skipped steps."""
    folder = tmp_path_factory.mktemp("made")
    failed(folder / "run", DIVIDES, {})
    run = surestep.Run(folder / "run")
    other = tiny.fit(folder / "other").path
    shutil.copytree(other / "checkpoints", run.path / "checkpoints", dirs_exist_ok=True)
    skip = {"step": 1, "epoch": 0, "positions": [0, 8], "samples": [0, 3], "reason": "nonfinite"}
    with (run.path / "events.jsonl").open("a") as file:
        file.write(surestep.record.io.dumps({"event": "skipped", "time": 1.0, **skip}) + "\n")
    surestep.record.skipped_samples.write_skipped(run.path / "skipped.json", run.skipped)
    return run.path


@pytest.fixture
def path(made, tmp_path):
    return shutil.copytree(made, tmp_path / "run")


def _kept(path):
    run = surestep.Run(path)
    return explain_retention(
        run.path, run.monitor, [read_info(path) for path in list_checkpoints(run.checkpoints)]
    )


def _hold(path):
    RunLock(path).release()


READERS = {
    "config.json": [lambda path: surestep.Run(path).config],
    "status.json": [
        lambda path: surestep.Run(path).status,
        lambda path: surestep.Run(path).best,
        lambda path: surestep.Run(path).load_model(tiny.model()),
    ],
    "events.jsonl": [
        lambda path: deque(surestep.Run(path).events(), maxlen=0),
        lambda path: surestep.Run(path).skipped,
        lambda path: surestep.record.events.EventWriter(path / "events.jsonl").close(),
    ],
    "plan.json": [_kept],
    "skipped.json": [lambda path: read_samples(path / "skipped.json")],
    INCIDENT: [lambda path: read_incident(next((path / "incidents").iterdir()))],
    BATCH: [lambda path: [incident.tensors() for incident in incidents_of(path)]],
    "lock": [_hold],
    "environment.json": [],
    "data_findings.json": [lambda path: read_json(path / "data_findings.json", DATA_FINDINGS)],
}


def _file(path, name):
    return path / name.format(next((path / "incidents").iterdir()).name)


def test_intact_run_is_read(path):
    for name, readers in READERS.items():
        assert _file(path, name).exists()
        for read in readers:
            read(path)
    assert surestep.Run(path).skipped.samples == [0, 3]


HARMLESS = {
    *(
        ("lock", damage)
        for damage in DAMAGES
        if damage not in ("pipe", "folder") and "link" not in damage
    ),
    *(
        ("events.jsonl", damage) for damage in ("missing", "empty", "zeros", "pickle")
    ),  # no complete line
    *(
        ("skipped.json", damage) for damage in ("link", "number")
    ),  # users may write it: 3 is a sample
} - {("lock", "device")}


def read_error(read, path):
    """Return the error message of a reader, or None if it accepts the file."""
    try:
        read(path)
    except SurestepError as error:
        return str(error)
    return None


def _marks(file):
    """Return the file attributes that a write changes and a read does not."""
    found = file.lstat()
    return found.st_size, found.st_mtime_ns, found.st_ino, found.st_mode


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", READERS)
def test_damaged_file_is_rejected_by_name(path, name, damage):
    file = _file(path, name)
    spoil(file, damage)
    before = _marks(file) if damage != "missing" else None
    with in_time():
        for read in READERS[name]:
            message = read_error(read, path)
            assert (message is None) <= ((name, damage) in HARMLESS), "read as if nothing was wrong"
            assert message is None or file.name in message
            assert len(message or "") < 1000
    assert not list(path.rglob("unpickled"))
    assert before is None or name in ("lock", "events.jsonl") or _marks(file) == before


STRANGE = {
    "a list": [1],
    "an object": {"a": {}},
    "text": "x",
    "null": None,
    "yes": True,
    "minus": -1,
    "large": 10**400,
    "gone": GONE,
}
PLACES = {
    "config.json": [("recipe",), ("task",), ("config",), ("data", "exclude_samples"), ("format",)],
    "status.json": [("status",), ("monitor",), ("step",), ("seconds",), ("clipped",)],
    "events.jsonl": [("skipped", key) for key in ("event", "step", "samples", "reason")],
    "plan.json": [(0,), (0, "option")],
    "data_findings.json": [("setup",), ("code",), ("ignored",), ("sets",), ("findings",)],
    INCIDENT: [
        *((key,) for key in ("step", "checkpoint", "run_config", "progress", "norms", "batch")),
        *((key,) for key in ("loss", "sha256", "bytes", "diagnosis", "is_manual", "text")),
        *(("progress", "epoch"), ("batch", 0, "samples"), ("batch", 0, "args"), ("norms", 0, 1)),
    ],
}


@pytest.mark.parametrize("strange", STRANGE)
@pytest.mark.parametrize("name", PLACES)
def test_value_of_a_different_type_is_rejected_or_ignored(made, tmp_path, name, strange):
    for number, where in enumerate(PLACES[name]):
        path = shutil.copytree(made, tmp_path / str(number))
        change(_file(path, name), *where, value=STRANGE[strange])
        with in_time():
            for read in READERS[name]:
                message = read_error(read, path)
                assert message is None or _file(path, name).name in message


@pytest.mark.parametrize("value", [[1], {}, -1, None, True, "x", 0.5])
def test_invalid_step_is_rejected(path, value):
    for name, where in {"status.json": ("step",), "events.jsonl": ("skipped", "step")}.items():
        change(path / name, *where, value=value)
    for read in (lambda: surestep.Run(path).status, lambda: surestep.Run(path).skipped):
        with pytest.raises(RunError, match=r"it\.step is"):
            read()


@pytest.mark.parametrize("name", ["config.json", INCIDENT])
def test_newer_format_is_rejected_with_the_upgrade_command(path, name):
    newer = json.loads(_file(path, name).read_text())["format"] + 1
    change(_file(path, name), "format", value=newer)
    with pytest.raises(RunError, match=rf"has format {newer}, .*pip install -U surestep"):
        READERS[name][0](path)
