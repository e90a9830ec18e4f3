"""What the live page of several runs gets."""

import shutil
from types import SimpleNamespace

import numpy as np
import pytest

from surestep.record.run import Run
from surestep.reports.describe_runs import describe_runs
from surestep.reports.live import follow_runs
from surestep.reports.live.follow_runs import RunsFollower
from surestep.reports.write import encode_arrays
from tests.reports.folders import evaluation, log_point
from tests.reports.live.runs import append, decode, decode_steps, end_run, start_run


class Client:
    """Keeps what a page has of the curves of runs: columns at the same steps."""

    def __init__(self, news):
        self.news, self.parts = news, news.read_page()
        self.version = self.parts["live"]["version"]
        self.charts = read_charts(self.parts["charts"])
        self._grow(self.parts["live"]["increments"])

    def ask(self):
        """Take what is new; return the answer."""
        answer = self.news.read(self.version)
        self.version = answer["version"]
        self.parts |= answer["parts"]
        if "charts" in answer["parts"]:
            self.charts = read_charts(answer["parts"]["charts"])
        self._grow(answer["increments"])
        return answer

    def _grow(self, increments):
        for increment in increments:
            for chart in increment["charts"]:
                known = self.charts[chart["title"]]
                for steps, values in (("steps", "values"), ("mean_steps", "means")):
                    known[steps] = np.append(known[steps], decode_steps(chart[steps]))
                    for curve in known["curves"].values():
                        missing = len(known[steps]) - len(curve[values])
                        curve[values] = np.append(curve[values], np.full(missing, np.nan))
                    for curve in chart["curves"]:
                        end = decode(curve[values])
                        at = curve[f"{values}_from"]
                        known["curves"][curve["run"]][values][at : at + len(end)] = end


def read_charts(charts):
    return {
        chart["title"]: {
            **{name: decode_steps(chart[name]) for name in ("steps", "mean_steps")},
            "curves": {
                curve["run"]: {name: decode(curve[name]).copy() for name in ("values", "means")}
                for curve in chart["curves"]
            },
        }
        for chart in charts
    }


@pytest.fixture
def clock(monkeypatch):
    """The seconds that follow_runs sees; a test moves them."""
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(follow_runs, "time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


@pytest.fixture
def folder(tmp_path):
    for name, loss in (("a", 3.0), ("b", 4.0)):
        start_run(tmp_path / name, log_point(1, [loss, 2.0]), evaluation(2, 1.5))
    return tmp_path


def follow(folder):
    follower = RunsFollower(lambda: sorted(map(str, folder.iterdir())))
    assert follower.update() == ""
    return follower, Client(follower.news)


def update(follower, clock):
    clock.now += follow_runs.SOONEST_S
    return follower.update()


def assert_page_is_that_of_now(client, folder):
    runs = {str(path): Run(path) for path in sorted(folder.iterdir())}
    expected = read_charts(encode_arrays(describe_runs(runs))["charts"])
    assert client.charts.keys() == expected.keys()
    for title, chart in expected.items():
        np.testing.assert_equal(client.charts[title], chart, err_msg=title)


def test_page_with_increments_has_what_a_new_page_has(folder, clock):
    follower, client = follow(folder)
    for first in (3, 5, 7):
        append(folder / "a", log_point(first, [1.0, 0.5]))
        append(folder / "b", log_point(first, [0.25]) if first == 3 else evaluation(first, 0.5))
        update(follower, clock)
        client.ask()
        assert_page_is_that_of_now(client, folder)
    assert [run["step"] for run in client.parts["runs"]] == [8, 3]


def test_steps_that_only_one_run_takes_are_a_piece(folder, clock):
    follower, client = follow(folder)
    append(folder / "a", log_point(3, [1.0]))
    update(follower, clock)
    answer = client.ask()
    assert "charts" not in answer["parts"]
    (loss,) = (
        chart for chart in answer["increments"][0]["charts"] if chart["title"] == "train/loss"
    )
    assert [(curve["run"], curve["values_from"]) for curve in loss["curves"]] == [(0, 2)]
    assert answer["increments"][0]["axes"]["0"]["steps"] == [3]
    assert client.charts["train/loss"]["curves"][1]["values"].tolist()[:2] == [4.0, 2.0]


def test_long_curves_grow_by_their_last_ranges(folder, clock):
    for name in ("a", "b"):
        append(folder / name, *(log_point(first, [1.0] * 100) for first in range(3, 6500, 100)))
    follower, client = follow(folder)
    whole = 0
    for first in range(6503, 7503, 250):
        append(folder / "a", log_point(first, [2.0] * 250))
        update(follower, clock)
        whole += "charts" in client.ask()["parts"]
        assert_page_is_that_of_now(client, folder)
    assert whole <= 1  # the ranges became wider once


def test_steps_that_were_undone_leave_the_page(folder, clock):
    follower, client = follow(folder)
    append(folder / "a", log_point(3, [9.0, 9.0]))
    update(follower, clock)
    client.ask()
    append(folder / "a", {"event": "rollback", "time": 1.0, "step": 1}, log_point(2, [0.5]))
    update(follower, clock)
    client.ask()
    assert_page_is_that_of_now(client, folder)
    assert client.charts["train/loss"]["steps"].tolist() == [1, 2]


def test_new_runs_appear_and_deleted_ones_vanish(folder, clock):
    follower, client = follow(folder)
    start_run(folder / "aa", log_point(1, [7.0]))
    update(follower, clock)
    client.ask()
    assert [run["name"] for run in client.parts["runs"]] == [
        str(folder / name) for name in ("a", "aa", "b")
    ]
    assert_page_is_that_of_now(client, folder)
    shutil.rmtree(folder / "a")
    update(follower, clock)
    client.ask()
    assert_page_is_that_of_now(client, folder)


def test_run_that_cannot_be_read_is_named_and_the_others_are_shown(folder, clock):
    follower, client = follow(folder)
    (folder / "b" / "events.jsonl").write_text("{damaged\n{}\n")
    append(folder / "a", log_point(3, [1.0]))
    update(follower, clock)
    client.ask()
    assert "is not an event" in client.parts["problems"][str(folder / "b")]
    assert client.charts["train/loss"]["steps"].tolist() == [1, 2, 3]
    named = RunsFollower(lambda: [str(folder / "a"), str(folder / "gone")])
    named.update()
    assert "gone" in Client(named.news).parts["problems"][str(folder / "gone")]


def test_runs_are_read_after_seconds_and_published_only_if_something_changed(folder, clock):
    follower, client = follow(folder)
    append(folder / "a", log_point(3, [1.0]))
    follower.update()
    assert client.ask()["increments"] == []
    update(follower, clock)
    assert len(client.ask()["increments"]) == 1
    before = client.version
    update(follower, clock)
    assert client.ask()["version"] == before
    end_run(folder / "b", "failed", "a")
    update(follower, clock)
    client.ask()
    assert client.parts["runs"][1]["state"] == "failed"
