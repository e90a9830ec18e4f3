"""What the live page of a run gets."""

import shutil
from types import SimpleNamespace

import numpy as np
import pytest

from surestep.record.run import Run
from surestep.reports.describe_run import describe_run
from surestep.reports.live import follow_run
from surestep.reports.live.follow_run import RunFollower
from surestep.reports.live.follow_runs import RunsFollower
from surestep.reports.write import encode_arrays
from tests.reports.folders import checkpoint, evaluation, log_point
from tests.reports.live.runs import Client, append, end_run, hold, read_curves, start_run


@pytest.fixture
def clock(monkeypatch):
    """The seconds that follow_run sees; a test moves them."""
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(follow_run, "time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


@pytest.fixture
def run(tmp_path):
    about = {"data": {"train samples": 20}}  # an epoch has 5 steps
    return start_run(tmp_path / "a", log_point(1, [3.0, 2.0]), evaluation(2, 1.5), about=about)


def follow(run, **more):
    follower = RunFollower(Run(run), str(run), **more)
    assert follower.update() == ""
    return follower, Client(follower.news)


def assert_page_is_that_of_now(client, run):
    whole = encode_arrays(describe_run(Run(run), "a"))
    expected = read_curves(whole["charts"])
    assert client.curves.keys() == expected.keys()
    for name, curve in expected.items():
        np.testing.assert_array_equal(client.curves[name], curve, err_msg=name)


def test_page_with_increments_has_what_a_new_page_has(run, clock):
    follower, client = follow(run)
    append(run, log_point(3, [1.0, 0.5]), evaluation(4, 0.75, metrics={"val/f1": 0.5}))
    follower.update()
    answer = client.ask()
    assert "charts" not in answer["parts"]
    assert len(answer["increments"]) == 1
    assert_page_is_that_of_now(client, run)
    append(run, log_point(5, [0.25]), checkpoint(5), {**log_point(6, [0.5]), "epoch": 1})
    follower.update()
    answer = client.ask()
    assert_page_is_that_of_now(client, run)
    assert answer["step"] == 6
    assert [mark["kind"] for mark in answer["increments"][0]["marks"]] == ["checkpoint"]
    (axis,) = answer["increments"][0]["axes"].values()
    assert axis.pop("epoch") == pytest.approx([1.2])
    assert axis == {"steps": [6.0], "samples": [24.0], "seconds": [6.0]}
    assert client.ask()["increments"] == []
    assert Client(follower.news).curves.keys() == client.curves.keys()  # one that comes later


def test_numbers_are_computed_again_after_seconds_and_only_if_something_changed(run, clock):
    follower, client = follow(run)
    append(run, log_point(3, [1.0]))
    follower.update()
    assert client.ask()["parts"] == {}
    clock.now += follow_run.SOONEST_S
    follower.update()
    assert client.ask()["parts"].keys() == {"time", "curve"}
    clock.now += 100
    before = follower.news.read_page()["live"]["version"]
    follower.update()
    assert client.ask()["version"] == before


def test_steps_that_were_undone_leave_the_page(run, clock):
    follower, client = follow(run)
    append(run, log_point(3, [1.0, 0.5]), evaluation(4, 9.0))
    follower.update()
    client.ask()
    append(run, {"event": "resume", "time": 1.0, "step": 3}, log_point(4, [0.125]))
    follower.update()
    clock.now += follow_run.SOONEST_S
    follower.update()
    assert "charts" in client.ask()["parts"]
    assert_page_is_that_of_now(client, run)
    assert client.curves["train/loss"][1].tolist() == [3.0, 2.0, 1.0, 0.125]
    append(run, log_point(3, [0.75]))  # a step again, without a word
    follower.update()
    clock.now += follow_run.SOONEST_S
    follower.update()
    client.ask()
    assert_page_is_that_of_now(client, run)


def test_long_curves_grow_by_few_points_and_every_spike(run, clock):
    append(run, *(log_point(first, [1.0, 2.0] * 500) for first in range(3, 20_000, 1000)))
    follower, client = follow(run)
    count = len(client.curves["train/loss"][0])
    for first in range(20_003, 30_000, 1000):
        losses = [1.0, 2.0] * 500
        losses[77] = 50.0
        append(run, log_point(first, losses))
        follower.update()
        client.ask()
        clock.now += 1
    steps, values = client.curves["train/loss"]
    assert (np.diff(steps) > 0).all()
    assert steps[values == 50.0].tolist() == list(range(20_080, 30_000, 1000))
    assert len(steps) < 2.5 * count


def test_curve_that_has_grown_much_is_thinned_again(run, clock):
    follower, client = follow(run)
    sizes = []
    for first in range(3, 15_000, 3000):
        append(run, log_point(first, list(np.linspace(2, 1, 3000))))
        clock.now += follow_run.SOONEST_S
        follower.update()
        client.ask()
        sizes.append(len(client.curves["train/loss"][0]))
    assert max(sizes) < 10_000
    assert client.curves["train/loss"][0][-1] == 15_002


def test_end_of_a_run_is_reported_at_once(run, clock):
    with hold(run):
        follower, client = follow(run)
        assert client.parts["live"]["state"] == client.parts["state"] == "running"
    follower.update()
    answer = client.ask()
    assert answer["state"] == answer["parts"]["state"] == "killed"
    end_run(run, "stopped", "Ctrl-C")
    follower.update()
    answer = client.ask()
    assert (answer["parts"]["state"], answer["parts"]["reason"]) == ("stopped", "Ctrl-C")


def test_damaged_line_is_reported_and_reading_continues_after_it_is_mended(run, clock):
    follower, client = follow(run)
    append(run, log_point(3, [1.0]))
    size = (run / "events.jsonl").stat().st_size
    with (run / "events.jsonl").open("a") as file:
        file.write("{damaged\n")
    append(run, log_point(4, [0.5]))
    assert "is not an event" in follower.update()
    answer = client.ask()
    assert "is not an event" in answer["problem"]
    assert client.curves["train/loss"][0].tolist() == [1, 2, 3]
    with (run / "events.jsonl").open("r+b") as file:
        file.seek(size)
        file.write(b"\n" * len("{damaged\n"))
    assert follower.update() == ""
    assert client.ask()["problem"] == ""
    assert client.curves["train/loss"][0].tolist() == [1, 2, 3, 4]


def test_deleted_run_and_another_in_its_place_are_noticed(run, clock, tmp_path):
    follower, client = follow(run)
    shutil.rmtree(run)
    assert "There is no run folder" in follower.update()
    answer = client.ask()
    assert "There is no run folder" in answer["problem"]
    assert answer["state"] is None
    start_run(run, log_point(1, [7.0]))
    assert follower.update() == ""
    assert follower.news.read(client.version) == {"is_other": True}
    assert Client(follower.news).curves["train/loss"][1].tolist() == [7.0]


def test_page_can_be_loaded_while_what_replaced_a_run_cannot_be_read(run, clock):
    follower, client = follow(run)
    shutil.rmtree(run)
    start_run(run, log_point(1, [7.0]))
    (run / "config.json").write_text("{")
    assert "config.json cannot be read" in follower.update()
    assert follower.news.read_page()["run"] == "a"
    assert follower.news.read(client.version) == {"is_other": True}


def test_run_without_steps_grows_charts(tmp_path, clock):
    run = start_run(tmp_path / "a")
    follower, client = follow(run)
    assert client.curves == {}
    append(run, log_point(1, [2.0]))
    follower.update()
    client.ask()
    assert_page_is_that_of_now(client, run)


def test_charts_that_the_page_does_not_have_get_no_points(tmp_path, clock):
    logged = {f"m{number:03}": [1.0] for number in range(120)}
    run = start_run(tmp_path / "a", log_point(1, [3.0], logged=logged))
    follower, client = follow(run)
    shown = {chart["title"] for chart in client.parts["charts"]}
    append(run, log_point(2, [2.0], logged=logged | {"late": [1.0]}))
    follower.update()
    (increment,) = client.ask()["increments"]
    assert {chart["title"] for chart in increment["charts"]} == shown
    assert len(shown) == 100


def test_redacted_page_has_no_paths(run, clock):
    follower, client = follow(run, redacted=True)
    append(run, log_point(3, [1.0], logged={"/home/ada/loss": [1.0]}))
    follower.update()
    client.ask()
    shutil.rmtree(run)
    follower.update()
    client.ask()
    assert "ada" not in str(client.news.read(0)) + str(client.parts)
    assert str(run.parent) not in str(client.news.read(0)) + str(client.parts)


def test_following_changes_nothing_in_the_folder(run, clock):
    before = snapshot(run)
    follower, client = follow(run)
    several = RunsFollower(lambda: [str(run)])
    for _ in range(3):
        clock.now += 10
        follower.update()
        several.update()
        client.ask()
    assert several.news.read_page()["runs"][0]["step"] == 2
    assert snapshot(run) == before


def snapshot(folder):
    """Return the content of all files, and when files and folders were changed."""
    paths = sorted([folder, *folder.rglob("*")])
    texts = {path: path.read_bytes() for path in paths if path.is_file()}
    return texts, [path.stat().st_mtime_ns for path in paths]
