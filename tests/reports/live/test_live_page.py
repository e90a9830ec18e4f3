"""Live pages in Chromium."""

import shutil
from contextlib import ExitStack

import pytest

from surestep.record.run import Run
from surestep.reports.live import follow_run, follow_runs
from surestep.reports.live.follow_run import RunFollower
from surestep.reports.live.follow_runs import RunsFollower
from surestep.reports.live.server import serve
from surestep.reports.write import LIVE_ASSETS
from tests.record.test_decision_regions import make_event
from tests.reports.folders import HOSTILE, checkpoint, evaluation, log_point
from tests.reports.live.runs import append, end_run, hold, start_run


@pytest.fixture
def open_live(browser, monkeypatch):
    """Serve what a follower has, and open the page; return its address and what ends the server."""
    monkeypatch.setattr(follow_run, "SOONEST_S", 0.0)
    monkeypatch.setattr(follow_run, "SHARE", 1e9)
    monkeypatch.setattr(follow_runs, "SOONEST_S", 0.0)
    monkeypatch.setattr(follow_runs, "SHARE", 1e9)
    stack = ExitStack()

    def open_live(follower):
        assert follower.update() == ""
        address = stack.enter_context(serve(follower.news, LIVE_ASSETS))
        browser.read_requests()
        browser.read_console()
        browser.open_url(address)
        browser.wait_until(lambda: browser.find_all("main"), "the page", 10)
        browser.scroll_to(browser.find_all(".charts")[0])
        return address, stack.close

    yield open_live
    stack.close()
    browser.open_url("about:blank")


@pytest.fixture
def run(tmp_path):
    folder = start_run(tmp_path / "a", log_point(1, [3.0, 2.0]), evaluation(2, 1.5))
    with hold(folder):
        yield folder


def read_chart(browser, script, title="loss"):
    """Return what a script finds in a chart, which it has as `chart`."""
    return browser.run(
        "const [chart] = [...document.querySelectorAll('.chart')].map(f => f.chart).filter("
        f"chart => chart.title === arguments[0]); return chart ? (() => {{ {script} }})() : null",
        title,
    )


DRAWN = "return chart.plot && [...chart.plot.data].map(column => [...column])"


def wait_for(browser, script, value, title="loss"):
    browser.wait_until(lambda: read_chart(browser, script, title) == value, f"{value}", 15)


def read_header(browser):
    return browser.run("return document.querySelector('header').textContent")


def test_points_arrive_in_place_and_no_request_leaves_the_server(browser, open_live, run):
    follower = RunFollower(Run(run), str(run))
    address, _ = open_live(follower)
    wait_for(browser, DRAWN, [[1, 2], [3, 2], [None, 1.5]])
    browser.run(
        "document.querySelector('.chart').chart.view.zoom([1, 2]); window.same = true;"
        "window.canvas = document.querySelector('.chart canvas')"
    )
    browser.click(browser.find_all(".chart summary")[0])
    scrolled = browser.run("return scrollY")
    append(run, log_point(3, [1.0, 0.5]), evaluation(4, 0.75), checkpoint(4))
    follower.update()
    wait_for(browser, DRAWN, [[1, 2, 3, 4], [3, 2, 1, 0.5], [None, 1.5, None, 0.75]])
    wait_for(
        browser, "return chart.plot && [chart.plot.scales.x.min, chart.plot.scales.x.max]", [1, 2]
    )
    kept = (
        "return [window.same, window.canvas === document.querySelector('.chart canvas'), scrollY]"
    )
    assert browser.run(kept) == [True, True, scrolled]
    assert browser.find_all(".chart details[open] .table")
    assert browser.find_all(".mark.checkpoint")
    assert "train/loss: last 0.5 in step 4" in read_chart(browser, "return chart.figure.ariaLabel")
    browser.wait_until(lambda: "step 4" in read_header(browser), "the step", 10)
    header = read_header(browser)
    assert "Live: running" in header
    assert "updated 0 s ago" in header or "updated 1 s ago" in header
    browser.run("document.querySelector('.chart').chart.view.zoom(null)")
    wait_for(
        browser, "return chart.plot && [chart.plot.scales.x.min, chart.plot.scales.x.max]", [0, 4]
    )
    assert all(request.startswith(address) for request in browser.read_requests())
    assert browser.read_console() == []


@pytest.mark.parametrize(("chosen", "stays"), [(0, "step 1"), (1, "step 3")])
def test_chosen_decision_regions_stay_and_the_newest_follow(browser, open_live, run, chosen, stays):
    append(run, make_event(1), make_event(2))
    follower = RunFollower(Run(run), str(run))
    open_live(follower)
    slider = "document.querySelector('.regions input')"
    browser.run(f"{slider}.value = {chosen}; {slider}.dispatchEvent(new Event('input'))")
    append(run, log_point(3, [1.0]), make_event(3))
    follower.update()
    browser.wait_until(lambda: browser.run(f"return {slider}.max") == "2", "the new regions", 15)
    assert browser.run("return document.querySelector('.frame').textContent") == stays


def test_hidden_curve_stays_hidden_and_new_ones_appear(browser, open_live, run):
    follower = RunFollower(Run(run), str(run))
    open_live(follower)
    wait_for(browser, DRAWN, [[1, 2], [3, 2], [None, 1.5]])
    browser.click(browser.find_all(".entry")[0])
    wait_for(browser, DRAWN, [[2], [1.5]])
    append(run, log_point(3, [1.0]), evaluation(3, 0.5, metrics={"test/loss": 4, "val/f1": 0.5}))
    follower.update()
    wait_for(browser, DRAWN, [[2, 3], [1.5, 0.5], [None, 4]])
    assert read_chart(browser, "return chart.curves.map(curve => curve.count)", "f1") == [1]
    append(run, {"event": "resume", "time": 1.0, "step": 2}, log_point(3, [0.25]))
    follower.update()
    wait_for(browser, DRAWN, [[2], [1.5]])
    pressed = "return [...document.querySelectorAll('.entry')].map(e => e.ariaPressed)"
    assert browser.run(pressed)[0] == "false"
    assert read_chart(browser, "return chart.title", "f1") is None
    assert browser.read_console() == []


def test_range_is_selected_while_points_arrive(browser, open_live, run):
    follower = RunFollower(Run(run), str(run))
    open_live(follower)
    append(run, log_point(3, [1.0] * 97))
    follower.update()
    shown = "[chart.plot.scales.x.min, chart.plot.scales.x.max].map(Math.round)"
    ends = f"return chart.plot ? {shown} : null"
    wait_for(browser, ends, [0, 99])

    def record():
        append(run, log_point(100, [1.0] * 101))
        follower.update()
        before = browser.run("return performance.now()")
        later = "return performance.now() > arguments[0] + 2500"
        browser.wait_until(lambda: browser.run(later, before), "points", 10)

    plot = browser.find_all(".chart .u-over")[0]
    width = browser.run("return arguments[0].clientWidth", plot)
    browser.drag(plot, -width / 4, width / 4, record)
    browser.wait_until(lambda: read_chart(browser, ends) != [0, 99], "the zoom", 10)
    low, high = read_chart(browser, ends)
    assert low == pytest.approx(25, abs=2)
    assert high == pytest.approx(75, abs=2)
    assert read_chart(browser, "return chart.curves[0].count") == 200


def test_first_step_and_end_are_shown(browser, open_live, tmp_path):
    run = start_run(tmp_path / "b")
    with hold(run):
        follower = RunFollower(Run(run), str(run))
        open_live(follower)
        assert "No step has been recorded yet." in browser.find_all("main")[0].text
        append(run, log_point(1, [3.0, 2.0], logged={HOSTILE: [1.0, 1.0]}))
        follower.update()
        wait_for(browser, "return chart.curves[0].count", 2)
        assert HOSTILE in [title.text for title in browser.find_all(".chart h3")]
        assert "No step has been recorded yet." not in browser.find_all("main")[0].text
        finding = {"rule": "SS601", "severity": "error", "message": HOSTILE, "fix": "a"}
        end_run(run, "failed", HOSTILE, findings=[finding])
        follower.update()
    browser.wait_until(lambda: "Live: failed" in read_header(browser), "the end", 10)
    assert browser.find_all(".numbers .state-failed")
    assert HOSTILE in browser.run("return document.querySelector('#findings').textContent")
    assert browser.run("return [document.title, document.images.length]") == ["b - surestep", 0]


def test_killed_run_and_deleted_folder_are_reported(browser, open_live, tmp_path):
    run = start_run(tmp_path / "b", log_point(1, [3.0, 2.0]))
    with hold(run):
        follower = RunFollower(Run(run), str(run))
        open_live(follower)
    follower.update()
    browser.wait_until(lambda: "Live: killed" in read_header(browser), "the state", 10)
    shutil.rmtree(run)
    follower.update()
    browser.wait_until(lambda: "There is no run folder" in read_header(browser), "it", 10)
    wait_for(browser, "return chart.curves[0].count", 2)


def test_lost_connection_is_reported_and_taken_up_again(browser, open_live, run, monkeypatch):
    follower = RunFollower(Run(run), str(run))
    address, close = open_live(follower)
    wait_for(browser, "return chart.curves[0].count", 2)
    close()
    browser.wait_until(lambda: "Connection lost at" in read_header(browser), "the loss", 20)
    wait_for(browser, "return chart.curves[0].count", 2)
    port, token = address.removeprefix("http://127.0.0.1:").strip("/").split("/")
    monkeypatch.setattr("secrets.token_urlsafe", lambda _: token)
    append(run, log_point(3, [1.0]))
    follower.update()
    with serve(follower.news, LIVE_ASSETS, int(port)):
        wait_for(browser, "return chart.curves[0].count", 3)
        assert "Live: running" in read_header(browser)


def test_several_pages_get_the_same_points(browser, open_live, run):
    follower = RunFollower(Run(run), str(run))
    address, _ = open_live(follower)
    first = browser.open_tab(address)
    append(run, log_point(3, [1.0]))
    follower.update()
    wait_for(browser, "return chart.curves[0].count", 3)
    browser.return_to_tab(first)
    wait_for(browser, "return chart.curves[0].count", 3)


def test_new_runs_appear_beside_those_that_grow(browser, open_live, tmp_path):
    folder = tmp_path / HOSTILE.replace("/", "")
    first = start_run(folder / "a", log_point(1, [3.0, 2.0]), evaluation(2, 1.5))
    names = lambda: sorted(map(str, folder.iterdir()))  # noqa: E731
    follower = RunsFollower(names, "objective: val/loss (min)")
    open_live(follower)
    title = "train/loss"
    values = "return chart.curves.map(curve => [...chart.decode(curve).y])"
    wait_for(browser, values, [[3, 2]], title)
    assert "1 run · objective: val/loss (min)" in read_header(browser)
    append(first, log_point(3, [1.0]))
    follower.update()
    wait_for(browser, values, [[3, 2, 1]], title)
    start_run(folder / "b", log_point(1, [4.0]), config={"optim.lr": 0.5})
    follower.update()
    wait_for(browser, values, [[3, 2, 1], [4, None, None]], title)
    browser.click(browser.find_all("label.run input")[0])
    heads = browser.find_all("#runs thead button")
    browser.click(next(head for head in heads if head.text.startswith("step")))
    append(folder / "b", log_point(2, [5.0, 6.0, 7.0]), evaluation(4, 0.5))
    follower.update()
    wait_for(browser, values, [[3, 2, 1, None], [4, 5, 6, 7]], title)
    boxes = "return [...document.querySelectorAll('label.run input')].map(box => box.checked)"
    browser.wait_until(lambda: browser.run(boxes) == [False, True], "the boxes", 10)
    assert browser.find_all("#runs th[aria-sort=ascending]")
    assert browser.run("return document.images.length") == 0
    assert browser.read_console() == []
