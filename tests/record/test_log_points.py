"""Events that are read in bulk are those that are read one by one, or the same error."""

import dataclasses
import json
import random

import numpy as np
import pytest

from surestep.base.errors import RunError
from surestep.record import events, log_points
from surestep.record.events import EventWriter, read_events
from surestep.record.log_points import LogPoints, read_in_bulk
from surestep.record.records import RecordReader, read_records

NUMBERS = [0.5, 1, -2.5, 2e-05, 1.5e-300, 0.1 + 0.2, -0.0, 123456789.123]
UNUSUAL = [None, None, None, "nan", "inf", "-inf", 1e16, 7e99]
ODD = [None, "nan", "inf", "-inf", True, "1e5", [1.0], {}, 10**30, 10**200, -1, 1.0, 2**40, 2**41]
ODD_TEXTS = [b"7e99", b"1E5", b"01", b"1.", b".5", b"-", b"1/2", b"1 2", b"1, 2", b"", b"\\u0031"]
BYTES = b'0129-.e,: "[]{}nu\n\r\xff\\'
LAYOUTS = [
    {},
    {"logged": {"loss": 1, "top5, 1 e": 2}},
    {"group_lr": {"0": 1, "1": 1}, "peak_memory": 5},
    {"layers": {"step": 1, "grad_norm": {"a.0": 1, "b.1": 1}, "other": "text 12, 13"}},
    {"peak_memory": None, "more": [[1, 2], "x"]},
]


def log_point(rng, layout, first, count, *, odd=0.0):
    """Return a log point; some values of steps may be ones that are not numbers."""

    def values():
        return [rng.choice(UNUSUAL if rng.random() < odd else NUMBERS) for _ in range(count)]

    event = {"event": "steps", "time": 1e9 + first / 7, "first": first, "epoch": first // 9}
    event |= {name: values() for name in ("loss", "grad_norm", "lr")}
    event |= {
        "items": rng.choice([4, 4.0]),
        "samples": 4,
        "seconds": 0.1 * count,
        "data_wait_s": 0.1,
    }
    progress = {"step": first, "steps_taken": first, "epoch": 0, "position": 4, "items": 4.5}
    event |= {"progress": progress, **json.loads(json.dumps(layout))}
    event["logged"] = {name: values() for name in event.get("logged", {})}
    if "layers" in event:
        event["layers"]["step"] = first
    return event


def other(rng, step):
    """Return an event that has no steps."""
    metrics = {"val/loss": rng.choice([0.5, "nan", None]), "val/table": [[1]]}
    return rng.choice(
        [
            {"event": "evaluation", "time": 3.5, "step": step, "metrics": metrics},
            {"event": "checkpoint", "time": 4.5, "step": step},
            {"event": "notice", "text": 'null "nan" 12'},
        ]
    )


def run_of(rng):
    """Return the lines of a run that is resumed, has several layouts, and repeats steps."""
    lines, step = [], 0
    layouts = rng.sample(LAYOUTS, rng.choice([1, 1, 2]))
    most, odd = rng.choice([1, 1, 4]), rng.choice([0, 0, 0.1, 1])
    for _ in range(rng.choice([30, 90])):
        count = rng.randint(1, most)
        event = log_point(rng, rng.choice(layouts), step + 1, count, odd=odd)
        lines.append(json.dumps(event).encode())
        step += count
        if rng.random() < 0.1:
            lines.append(json.dumps(other(rng, step)).encode())
        if rng.random() < 0.03:
            step = max(0, step - rng.randint(0, 9))
            if rng.random() < 0.7:
                kind = rng.choice(["resume", "rollback", "restart"])
                lines.append(json.dumps({"event": kind, "time": 0.5, "step": step}).encode())
    return lines


def damage(rng, line):
    """Return a line of which a value or some bytes are others."""
    how = rng.choice([0, 1, 2, 3, 3, 3])
    if how == 0:
        at = rng.randrange(len(line))
        return line[:at] + bytes([rng.choice(BYTES)]) + line[at + rng.randint(0, 1) :]
    if how == 1:
        starts = [at for at in range(1, len(line)) if line[at - 1 : at] in b" [" and line[at] < 58]
        at = rng.choice(starts or [0])
        return line[:at] + rng.choice(ODD_TEXTS) + line[at + rng.randint(0, 9) :]
    if how == 2:
        at, to = sorted((rng.randrange(len(line)), rng.randrange(len(line))))
        return line[:at] + line[to:] + line[at:to]
    event = json.loads(line)
    owner = rng.choice([event, event, event.get("progress", event), event.get("layers", event)])
    key = rng.choice([*owner])
    if isinstance(owner[key], list) and owner[key]:
        owner[key][rng.randrange(len(owner[key]))] = rng.choice(ODD)
        owner[key] += rng.choice([[], [], [0.25]])
    else:
        owner[key] = rng.choice(ODD)
    return json.dumps(event).encode()


def flatten(value):
    """Return what can be compared, to the bit."""
    if dataclasses.is_dataclass(value):
        return [flatten(getattr(value, field.name)) for field in dataclasses.fields(value)]
    if isinstance(value, np.ndarray):
        return value.dtype, value.tobytes()
    if isinstance(value, dict):
        return [(key, flatten(item)) for key, item in value.items()]
    return [*map(flatten, value)] if isinstance(value, (list, tuple)) else repr(value)


def result_of(read, path):
    """Return what a file records, or the error."""
    try:
        return flatten(read_records(read(path)))
    except (RunError, OverflowError) as error:
        return str(error)


@pytest.fixture
def small(monkeypatch):
    """Read some lines at once, so that few are many."""
    monkeypatch.setattr(events, "_FIRST_CHUNK", 1000)
    monkeypatch.setattr(events, "_CHUNK", 6000)
    monkeypatch.setattr(log_points, "_FEWEST", 2)


def check(path, seed, damaged):
    """Check a file; return whether it is an error."""
    rng = random.Random(seed)
    lines = run_of(rng)
    for _ in range(damaged):
        at = rng.randrange(len(lines) // 3, len(lines))
        lines[at] = damage(rng, lines[at])
    path.write_bytes(b"\n".join(lines) + rng.choice([b"\n", b"", b'\n{"event": "ste', b"\n\n"]))
    expected = result_of(read_events, path)
    assert result_of(read_in_bulk, path) == expected, seed
    return isinstance(expected, str)


MANY = pytest.param(range(3, 300), marks=pytest.mark.slow("20 seconds"))


@pytest.mark.parametrize("seeds", [range(3), MANY])
def test_random_runs_are_read_as_one_by_one(tmp_path, small, seeds):
    assert not any(check(tmp_path / "events.jsonl", seed, 0) for seed in seeds)


@pytest.mark.parametrize("seeds", [range(3), MANY])
def test_damaged_runs_have_the_same_results_or_errors(tmp_path, small, seeds):
    found = [check(tmp_path / "events.jsonl", seed, 1) for seed in seeds]
    assert 0.3 < np.mean(found) < 0.9


@pytest.mark.parametrize(
    ("old", "new"),
    [
        *((b'"first"', b'"f1rst"'), (b'"samples": 4', b'"samples": x4'), (b", ", b"; ")),
        *((b'"epoch": 2', b'"epoch": 2%d' % 2**40), (b'"epoch": 2', b'"epoch": -2')),
        *((b'"epoch": 2', b'"epoch": 2.0'), (b'"epoch": 2', b'"epoch": 2, 2')),
        *((b'"lr": [', b'"lr": [0.5, '), (b'"loss": [', b'"loss": [70e98, ')),
        *((b'"loss": [', b'"loss": [7e99, '), (b'"items": 4.0', b'"items": null')),
        *((b'"items": 4.0', b'"items": "nan"'), (b'"items": 4.0', b'"items": true')),
        *((b'"items": 4.0', b'"items": 4.0e999'), (b'"items": 4.0', b'"items": 4.')),
        *((b'"loss": [', b'"loss": [true, '), (b'"loss": [', b'"loss": ["1", ')),
        *((b'"loss": [', b'"loss": [[1.0], '), (b'"loss": [', b'"loss": [1null, ')),
        *((b"}}\n", b"}}}\n"), (b"}}\n", b"}} \n"), (b"{", b"1{"), (b'"event"', b'"event"5')),
        *((b'"lr"', b'"loss"'), (b'"position": 4', b'"position": 4 4')),
        *((b'"first": 20', b'"first": 17'), (b'"first": 20', b'"first": 17.0')),
        *((b"1.5", b"70e98"), (b"{", b'{"event": "rollback", "time": 1.0, "step": 5}\n{')),
    ],
)
@pytest.mark.parametrize("unknown", [b"0.5", b"null"])
def test_line_that_differs_in_more_than_its_numbers_is_read_alone(
    tmp_path, small, old, new, unknown
):
    lines = []
    for at in range(30):
        event = log_point(random.Random(at), {}, 2 * at, 2) | {"items": 4.0}
        line = json.dumps(event | {"grad_norm": [1.5, "X"]}) + "\n"
        lines.append(line.encode().replace(b'"X"', unknown))
    assert old in lines[10]
    lines[10] = lines[10].replace(old, new, 1)
    path = tmp_path / "events.jsonl"
    path.write_bytes(b"".join(lines))
    assert result_of(read_in_bulk, path) == result_of(read_events, path)


def test_most_lines_of_a_run_are_read_in_bulk(tmp_path):
    rng, path = random.Random(0), tmp_path / "events.jsonl"
    writer = EventWriter(path)
    for first in range(1, 4000, 10):
        event = log_point(rng, LAYOUTS[1], first, rng.choice([3, 10]), odd=0.002) | {"items": 4.5}
        writer.write(event.pop("event"), **{key: event[key] for key in event if key != "time"})
    writer.close()
    items = [*read_in_bulk(path)]
    assert sum(len(item.counts) for item in items if isinstance(item, LogPoints)) > 250


def test_reader_goes_on_after_its_records_were_built():
    """A live page builds them again and again."""
    rng = random.Random(0)
    found = [log_point(rng, LAYOUTS[3], 1, 3), {**other(random.Random(1), 3)}]
    found += [log_point(rng, LAYOUTS[2], 4, 2), {"event": "rollback", "time": 0.5, "step": 4}]
    reader = RecordReader()
    for at, event in enumerate(found, 1):
        reader.add(event)
        assert flatten(reader.build()) == flatten(read_records(found[:at]))
