import json

import pytest

from surestep.base.errors import RunError
from surestep.record.events import FORMAT, EventWriter, read_events


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
    assert next(read_events(path))["version"] == FORMAT


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
    with pytest.raises(RunError, match=r"events\.jsonl, line 3 is not JSON"):
        kinds(path)


def test_a_format_from_the_future_is_refused(path):
    path.write_text(json.dumps({"event": "format", "version": FORMAT + 1}) + "\n")
    with pytest.raises(RunError, match=rf"has format {FORMAT + 1}.*pip install -U surestep"):
        kinds(path)


def test_missing_events_are_named(path):
    with pytest.raises(RunError, match="there are no events"):
        kinds(path)


def test_a_full_disk_is_a_run_error():
    with open("/dev/full", "w") as full:
        writer = EventWriter.__new__(EventWriter)
        writer.path, writer._file = "events.jsonl", full
        with pytest.raises(RunError, match="could not be written: No space left on device"):
            writer.write("a")
        with pytest.raises(RunError, match="could not be closed"):
            writer.close()
