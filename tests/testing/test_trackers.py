"""Our trackers and that of docs/extending.md pass the suite for trackers; broken ones fail."""

import csv
import random

import pytest

import surestep
from surestep.testing import TrackerSuite
from surestep.tracking.tensorboard import TensorBoardTracker
from tests.test_docs import ROOT, blocks


def csv_tracker():
    text = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
    (code,) = (block.code for block in blocks(text) if block.code.startswith("# csv_tracker.py"))
    names = {}
    exec(code, names)
    return names["CsvTracker"]


class TestCsv(TrackerSuite):
    def make_tracker(self):
        return csv_tracker()()

    def read_values(self, run):
        with (run / "metrics.csv").open(newline="", encoding="utf-8") as file:
            return [(int(step), name, float(value)) for step, name, value in csv.reader(file)]


class TestTensorBoard(TrackerSuite):
    def make_tracker(self):
        return TensorBoardTracker()

    def read_values(self, run):
        reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
        found = reader.EventAccumulator(str(run / "tensorboard"), size_guidance={"scalars": 0})
        found.Reload()
        return [
            (each.step, name, each.value)
            for name in found.Tags()["scalars"]
            for each in found.Scalars(name)
        ]


class Memory(surestep.Tracker):
    """Records values in memory, in one way that is wrong."""

    name = "memory"
    fault = ""

    def __init__(self, values):
        self.values = values

    def start(self, run):
        if self.fault == "state":
            return {"id": {1, 2}}
        if self.fault == "path":
            assert run.path.name.isascii()
        return {"id": 1}

    def log(self, points):
        if self.fault == "loses the first after a restart" and not self.values.count(None):
            self.values.append(None)
            return
        for point in points:
            for name, value in point.values.items():
                if self.fault == "integers":
                    round(value)
                self.values.append((point.step, name, value))
        if self.fault == "repeats":
            self.values += self.values[-1:]
        if self.fault == "prints":
            print("logged")
        if self.fault == "draws":
            random.random()

    def checkpoint(self, path, step, metrics):
        if self.fault == "reads checkpoints":
            list(path.iterdir())


FAULTS = {
    "state": "test_state_is_json",
    "path": "test_names_may_have_any_characters",
    "loses the first after a restart": "test_every_value_arrives_once",
    "integers": "test_nan_and_infinity_are_no_error",
    "repeats": "test_every_value_arrives_once",
    "prints": "test_nothing_is_printed_to_stdout",
    "draws": "test_process_is_left_as_it_was",
    "reads checkpoints": "test_checkpoint_that_is_deleted_is_no_error",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_suite_finds_a_tracker_that_is_wrong(tmp_path, capfd, fault):
    values = []

    class Suite(TrackerSuite):
        def make_tracker(self):
            tracker = Memory(values)
            tracker.fault = fault
            return tracker

        def read_values(self, run):
            return [value for value in values if value is not None]

    test = getattr(Suite(), FAULTS[fault])
    more = (capfd,) if fault == "prints" else ()
    with pytest.raises((AssertionError, TypeError, OSError, ValueError)):
        test(tmp_path, *more)
