import json

import pytest

from surestep.base.errors import RunError
from surestep.record.events import EventWriter, read_events
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


def test_the_first_line_names_the_format_once(path):
    write(path, "a")
    write(path, "b")
    assert kinds(path) == ["format", "a", "b"]
    assert next(read_events(path))["version"] == EVENTS_FORMAT


def test_a_line_is_whole_as_soon_as_it_is_written(path):
    writer = EventWriter(path)
    writer.write("a", loss=[1.5, None])
    assert list(read_events(path))[1]["loss"] == [1.5, None]
    writer.close()


def test_numbers_that_are_not_finite_are_text(path):
    writer = EventWriter(path)
    writer.write("a", loss=[float("nan"), float("inf")])
    writer.close()
    line = path.read_text().splitlines()[1]
    assert json.loads(line, parse_constant=pytest.fail)["loss"] == ["nan", "inf"]


@pytest.mark.parametrize("torn", ['{"event": "b", "ti', '{"event": "ü'.encode()[:-1], "{"])
def test_a_torn_last_line_is_left_out_and_cut_by_the_next_writer(path, torn):
    write(path, "a")
    whole = path.read_bytes()
    path.write_bytes(whole + (torn if isinstance(torn, bytes) else torn.encode()))
    assert kinds(path) == ["format", "a"]
    write(path, "c")
    assert kinds(path) == ["format", "a", "c"]
    assert path.read_bytes().startswith(whole)


def test_a_torn_first_line_is_written_anew(path):
    path.write_text('{"event": "for')
    write(path, "a")
    assert kinds(path) == ["format", "a"]


def test_a_broken_line_within_is_named(path):
    write(path, "a")
    path.write_text(path.read_text() + "{\n" + '{"event": "b"}\n')
    with pytest.raises(RunError, match=r"events\.jsonl, line 3 is not an event: Expecting"):
        kinds(path)


def test_a_format_from_the_future_is_refused(path):
    path.write_text(json.dumps({"event": "format", "version": EVENTS_FORMAT + 1}) + "\n")
    with pytest.raises(RunError, match=rf"has format {EVENTS_FORMAT + 1}.*pip install -U surestep"):
        kinds(path)


def test_missing_events_are_named(path):
    with pytest.raises(RunError, match="there are no events"):
        kinds(path)


class Full:
    """A file on a disk that is full until it is not, and takes half a line before it is."""

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


def test_what_cannot_be_written_is_kept_told_once_and_written_later(path):
    writer = EventWriter(path)
    writer._file = full = Full(writer._file)
    writer.write("a")
    told = writer.notice()
    assert "No space left on device. The run continues; events are kept in memory" in told
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
