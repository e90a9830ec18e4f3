"""Runs that record while a test follows them."""

import base64
import json
from contextlib import contextmanager

import numpy as np

from surestep.record.lock import RunLock
from tests.reports.folders import write_run


def start_run(folder, *events, **more):
    """Write the folder of a run that is running by its status."""
    return write_run(folder, events, status="running", ending={"reason": ""}, **more)


def append(folder, *events):
    with (folder / "events.jsonl").open("a") as file:
        file.writelines(f"{json.dumps(event)}\n" for event in events)


def end_run(folder, status="finished", reason="all steps are done", **more):
    path = folder / "status.json"
    ending = {"status": status, "reason": reason, **more}
    path.write_text(json.dumps({**json.loads(path.read_text()), **ending}))


@contextmanager
def hold(folder):
    """Hold the lock of a run as the process that trains it does."""
    lock = RunLock(folder)
    try:
        yield
    finally:
        lock.release()


def decode(array):
    kinds = {"f4": "<f4", "f8": "<f8", "u2": "<u2", "u4": "<u4"}
    return np.frombuffer(base64.b64decode(array["base64"]), kinds[array["type"]]).astype(float)


def decode_steps(array):
    return np.cumsum([array["first"], *decode(array)])[: array["count"]].astype(int)


def read_curves(charts):
    """Return the steps and the values of each curve, by its name."""
    return {
        curve["name"]: (decode_steps(curve["steps"]), decode(curve["values"]))
        for chart in charts
        for curve in chart["curves"]
    }


class Client:
    """Keeps the curves of a page of a run: whole charts, and the increments to them."""

    def __init__(self, news):
        self.news, page = news, news.read_page()
        self.parts, self.version = page, page["live"]["version"]
        self.curves = read_curves(page["charts"])
        self._grow(page["live"]["increments"])

    def ask(self):
        """Take what is new; return the answer."""
        answer = self.news.read(self.version)
        self.version = answer["version"]
        self.parts |= answer["parts"]
        if "charts" in answer["parts"]:
            self.curves = read_curves(answer["parts"]["charts"])
        self._grow(answer["increments"])
        return answer

    def _grow(self, increments):
        for increment in increments:
            for name, added in read_curves(increment["charts"]).items():
                known = self.curves.get(name, (np.array([], int), np.array([])))
                self.curves[name] = tuple(map(np.concatenate, zip(known, added, strict=True)))
