import json
import math

import pytest

from surestep.base.errors import RunError
from surestep.record.events import EventWriter, last_step, read_events
from surestep.record.schemas import EVENTS_FORMAT


def write(path, *kinds):
    writer = EventWriter(path)
    for kind in kinds:
        writer.write(kind)
    writer.close()


def kinds(path):
    return [event["event"] for event in read_events(path)]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "events.jsonl"


def test_first_line_names_the_format_once(path):
    write(path, "a")
    write(path, "b")
    assert kinds(path) == ["format", "a", "b"]
    assert next(read_events(path))["version"] == EVENTS_FORMAT


def test_event_is_readable_right_after_it_is_written(path):
    writer = EventWriter(path)
    writer.write("a", loss=[1.5, None])
    assert list(read_events(path))[1]["loss"] == [1.5, None]
    writer.close()


def test_nonfinite_numbers_are_written_as_text(path):
    writer = EventWriter(path)
    writer.write("a", loss=[float("nan"), float("inf")])
    writer.close()
    line = path.read_text().splitlines()[1]
    assert json.loads(line, parse_constant=pytest.fail)["loss"] == ["nan", "inf"]


@pytest.mark.parametrize("torn", ['{"event": "b", "ti', '{"event": "ü'.encode()[:-1], "{"])
def test_torn_last_line_is_ignored_and_removed_by_the_next_writer(path, torn):
    write(path, "a")
    whole = path.read_bytes()
    path.write_bytes(whole + (torn if isinstance(torn, bytes) else torn.encode()))
    assert kinds(path) == ["format", "a"]
    write(path, "c")
    assert kinds(path) == ["format", "a", "c"]
    assert path.read_bytes().startswith(whole)


def test_torn_first_line_is_rewritten(path):
    path.write_text('{"event": "for')
    write(path, "a")
    assert kinds(path) == ["format", "a"]


def test_corrupt_line_in_the_middle_is_reported_with_its_number(path):
    write(path, "a")
    path.write_text(path.read_text() + "{\n" + '{"event": "b"}\n')
    with pytest.raises(
        RunError, match=r"events\.jsonl, line 3 is not an event: Expecting.*surestep resume "
    ):
        kinds(path)


def test_newer_format_is_rejected(path):
    path.write_text(json.dumps({"event": "format", "version": EVENTS_FORMAT + 1}) + "\n")
    with pytest.raises(RunError, match=rf"has format {EVENTS_FORMAT + 1}.*pip install -U surestep"):
        kinds(path)


def test_missing_event_file_is_reported(path):
    with pytest.raises(RunError, match="there are no events"):
        kinds(path)


class Full:
    """A file on a disk that fills up in the middle of a line and may get space again."""

    def __init__(self, file):
        self.file, self.room, self.closed = file, 10, False

    def write(self, data):
        if not self.room:
            raise OSError(28, "No space left on device")
        done = self.file.write(bytes(data[: self.room]))
        self.room -= done
        return done

    def close(self):
        self.file.close()
        self.closed = True


def test_events_of_a_full_disk_are_kept_in_memory_and_written_later(path):
    writer = EventWriter(path)
    writer._file = full = Full(writer._file)
    writer.write("a")
    notice = writer.notice()
    assert "No space left on device. The run continues; events are kept in memory" in notice
    writer.write("b")
    assert writer.notice() is None
    assert kinds(path) == ["format"]
    full.room = 10**6
    writer.write("c")
    assert kinds(path) == ["format", "a", "b", "c"]
    full.room = 0
    writer.write("d")
    assert writer.notice() is not None
    with pytest.raises(RunError, match="last 1 events are lost"):
        writer.close()
    assert full.closed


def test_last_step_is_read_from_the_end_of_the_file(path):
    assert last_step(path) is None
    writer = EventWriter(path)
    assert last_step(path) is None
    usual = {"epoch": 0, "grad_norm": [], "lr": [], "items": 1, "samples": 1}
    usual |= {"seconds": 0.1, "data_wait_s": 0.0}
    writer.write("steps", first=1, loss=[0.5] * 50, **usual)
    writer.write("steps", first=51, loss=[0.5, math.nan], **usual)
    writer.write("note", text="x" * 2**19)
    writer.close()
    assert last_step(path) == 52
    with path.open("ab") as file:
        file.write(b'{"event": "steps", "first": 53, "lo')
    assert last_step(path) == 52
