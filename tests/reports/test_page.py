"""The page of runs in Chromium."""

import base64
import hashlib
import re
from importlib.resources import files

import pytest

from surestep.base.png import encode_png
from surestep.base.text import format_duration
from surestep.reports.page import render_page
from surestep.reports.write import report
from tests.record.test_decision_regions import make_event
from tests.reports.folders import HOSTILE, checkpoint, evaluation, log_point, write_run

ASSETS = files("surestep.reports") / "assets"
UPLOT = {  # of version 1.6.32, as npm has it
    "LICENSE": "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd",
    "uPlot.iife.min.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
    "uPlot.min.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
}


LATER = [1.0 + step / 1000 for step in range(51, 601)]


@pytest.fixture(scope="module")
def pair(browser, tmp_path_factory):
    """Open the page of two runs, of which the second has no first steps, and ends before."""
    folder = tmp_path_factory.mktemp("pair")
    points = [log_point(first, [2.0] * 50, epoch=first // 200) for first in range(1, 600, 50)]
    later = [log_point(51, LATER[:300]), log_point(351, LATER[300:], epoch=1)]
    more = log_point(601, [2.0] * 50, epoch=3)
    runs = [
        write_run(folder / "a", [*points, more], decided={"optim.lr": 0.1}),
        write_run(folder / "b", later, decided={"optim.lr": 0.2}),
    ]
    browser.open(report(runs, folder / "page.html"))
    browser.wait_until(lambda: browser.find_all(".charts"), "the page", 10)
    browser.scroll_to(browser.find_all(".charts")[0])
    browser.wait_until(lambda: count_drawn(browser) >= 1, "a chart", 10)


def texts(browser, selector):
    return [element.text for element in browser.find_all(selector)]


def count_drawn(browser):
    return len(browser.find_all(".chart canvas"))


def read_plots(browser, script):
    """Return what a script finds in each chart, which it has as `chart`."""
    return browser.run(
        "return [...document.querySelectorAll('.chart')].map(f => f.chart).map(chart => "
        f"{{ {script} }})"
    )


USUAL = [
    *(log_point(1, [3.0, 2.0]), evaluation(2, 1.5), checkpoint(2)),
    *(log_point(3, [1.0, 0.5]), evaluation(4, 0.75), checkpoint(4)),
]


def test_vendored_files_are_those_of_the_release():
    found = {name: (ASSETS / "uplot" / name).read_bytes() for name in UPLOT}
    assert {name: hashlib.sha256(data).hexdigest() for name, data in found.items()} == UPLOT


def test_scripts_set_no_html_and_cannot_end_their_element():
    for asset in ASSETS.iterdir():
        if asset.name.endswith(".js"):
            text = asset.read_text()
            assert "</script" not in text.lower()
            assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(", text)


def test_policy_has_the_hash_of_each_script_and_style():
    page = render_page("a", {"text": HOSTILE}, ["run.js"])
    policy = re.search(r'Policy" content="([^"]*)"', page)[1]
    assert "unsafe" not in policy
    assert "connect-src" not in policy
    for tag in ("script", "style"):
        (text,) = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    (data,) = re.findall(r'id="data">(.*?)</script>', page, re.DOTALL)
    assert "<" not in data


@pytest.mark.parametrize("count", [1, 3])
def test_page_shows_the_run_and_requests_nothing(browser, show, count):
    page = show(*USUAL, count=count)
    assert browser.read_requests() == [page.resolve().as_uri()]
    assert browser.read_console() == []
    browser.wait_until(lambda: count_drawn(browser) >= 2, "charts", 10)
    titles = texts(browser, ".chart h3")
    assert ("loss" if count == 1 else "train/loss") in titles
    assert browser.run("return document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.parametrize("count", [1, 2])
def test_hostile_names_are_texts(browser, show, count):
    finding = {
        **dict.fromkeys(("rule", "message", "fix", "name", "file"), HOSTILE),
        **{"severity": f"error {HOSTILE}", "line": 1, "evidence": {HOSTILE: HOSTILE}},
    }
    point = log_point(1, [3.0], logged={HOSTILE: [1.0]}, group_lr={HOSTILE: 0.1})
    recipe = {"name": HOSTILE, "path": HOSTILE, "sha256": ""}
    skipped = {"event": "skipped", "time": 1.0, "step": 1, "epoch": 0, "reason": HOSTILE}
    show(
        *(point, evaluation(1, 1.0, metrics={f"val/{HOSTILE}": 1.0})),
        {**skipped, "positions": None, "samples": None},
        count=count,
        about={"model": HOSTILE, "recipe": recipe},
        config={HOSTILE: HOSTILE},
        ending={"findings": [finding], "reason": HOSTILE, "monitor": [f"val/{HOSTILE}", "max"]},
        plan=[{"option": HOSTILE, "value": HOSTILE, "reason": HOSTILE}],
        environment={HOSTILE: HOSTILE},
        **{"out-of-memory-step-3": {"format": 1, "where": "", "text": f"Of step 3\n{HOSTILE}"}},
    )
    if count == 1:
        (report,) = browser.find_all("#memory-that-ran-out .finding")
        assert report.text.splitlines()[0] == "Of step 3"
    assert browser.run("return document.title") in ("run 0 - surestep", "2 runs - surestep")
    assert browser.run("return document.images.length") == 0
    assert len(browser.find_all("script")) == 2
    assert HOSTILE in browser.run("return document.querySelector('main').textContent")


def test_page_is_kept_from_requests_and_other_scripts(browser, show):
    show(*USUAL)
    outcome = browser.run(
        """
        const script = document.createElement("script");
        script.textContent = "window.ran = true";
        document.body.append(script);
        const image = document.createElement("img");
        image.src = "http://127.0.0.1:9/x.png";
        document.body.append(image);
        document.body.insertAdjacentHTML("beforeend", "<p id=styled style='color: red'>x</p>");
        return [window.ran ?? null, getComputedStyle(document.getElementById("styled")).color];
        """
    )
    assert outcome[0] is None
    assert outcome[1] != "rgb(255, 0, 0)"
    assert any("Content Security Policy" in text for text in browser.read_console())


def test_spike_of_one_step_in_a_million_is_in_the_chart(browser, show):
    losses = [1.0] * 20_000
    points = [log_point(first, losses) for first in range(1, 1_000_001, 20_000)]
    points[25] = log_point(500_001, [*losses[:4321], 50.0, *losses[4322:]])
    page = show(*points)
    assert page.stat().st_size < 1e6
    browser.wait_until(lambda: count_drawn(browser) >= 1, "a chart", 10)
    count, spikes, top = read_plots(
        browser,
        "return [chart.plot?.data[0].length, (chart.plot?.data[1] ?? []).flatMap((y, at) => "
        "y === 50 ? [chart.plot.data[0][at]] : []), chart.plot?.scales.y.max]",
    )[0]
    assert spikes == [504_322]
    assert top >= 50
    assert count < 10_000


def test_axis_zoom_and_scale_are_those_of_all_charts(browser, show):
    show(*USUAL)
    browser.wait_until(lambda: count_drawn(browser) >= 2, "charts", 10)
    ends = "return chart.plot ? [chart.plot.scales.x.min, chart.plot.scales.x.max] : null"
    assert read_plots(browser, ends)[:2] == [[0, 4], [0, 4]]
    browser.run("document.querySelector('.chart').chart.view.zoom([1, 3])")
    browser.wait_until(lambda: read_plots(browser, ends)[:2] == [[1, 3], [1, 3]], "the zoom", 10)
    (reset,) = (one for one in browser.find_all("button") if one.text == "Show all")
    browser.click(reset)
    browser.wait_until(lambda: read_plots(browser, ends)[:2] == [[0, 4], [0, 4]], "all", 10)
    browser.run(
        "const s = document.getElementById('unit'); s.value = 'samples';"
        "s.dispatchEvent(new Event('change'))"
    )
    browser.wait_until(lambda: read_plots(browser, ends)[0] == [0, 16], "samples", 10)
    browser.click(browser.find_all(".controls input[type=checkbox]")[0])
    scale = "return chart.plot?.scales.y.distr"
    browser.wait_until(lambda: read_plots(browser, scale)[0] == 3, "a logarithmic axis", 10)


SET_UNIT = (
    "const s = document.getElementById('unit'); s.value = %r; s.dispatchEvent(new Event('change'));"
    "document.querySelector('.chart').chart.redraw()"
)
DRAWN = (
    "return chart.plot?.data.slice(1).map(column => column.filter(y => Number.isFinite(y)).length)"
)


@pytest.mark.parametrize("unit", ["step", "epoch", "samples", "seconds"])
def test_every_value_of_different_runs_is_drawn_on_each_axis(pair, browser, unit):
    browser.run(SET_UNIT % unit)
    counts = read_plots(browser, DRAWN)[0]
    assert sorted(counts) == [550, 550, 650, 650]  # with the smoothed ones
    browser.run(SET_UNIT % "step")


def test_steps_without_a_value_are_left_out_of_the_smoothed_line(pair, browser):
    weight, total, expected = 0.8, 0.0, 0.0
    for loss in LATER:
        expected, total = weight * expected + 0.2 * loss, weight * total + 0.2
    (lines, data) = read_plots(
        browser, "return [chart.lines.map(line => line.run), chart.plot?.data]"
    )[0]
    smoothed = data[1 + [at for at, run in enumerate(lines) if run == 1][1]]
    assert smoothed[599] == pytest.approx(expected / total)


def test_table_of_different_runs_has_empty_cells(pair, browser):
    browser.run("document.querySelector('.chart details').open = true")
    browser.wait_until(lambda: len(browser.find_all(".chart .table")) == 2, "the tables", 10)
    row = browser.run(
        "return [...document.querySelectorAll('.chart .table')[1].querySelector('tbody tr').cells]"
        ".map(cell => cell.textContent)"
    )
    assert row == ["1", "2", ""]


def test_charts_of_a_run_from_another_one_begin_at_its_first_step(browser, show):
    show(log_point(1_000_001, [3.0, 2.0]), evaluation(1_000_002, 1.0))
    browser.wait_until(lambda: count_drawn(browser) >= 1, "a chart", 10)
    ends = "return chart.plot && [chart.plot.scales.x.min, chart.plot.scales.x.max]"
    for unit, expected in (("step", [1_000_000, 1_000_002]), ("samples", [0, 8])):
        browser.run(SET_UNIT % unit)
        assert read_plots(browser, ends)[0] == expected


DRAWN_MARKS = "return chart.drawn?.map(mark => [mark.kind, chart.plot.posToVal(mark.x, 'x')])"


def test_mark_after_many_others_is_drawn(browser, show):
    evaluations = (evaluation(step, 1.0) for step in range(1, 701))
    incident = {"event": "incident", "time": 1.0, "step": 700}
    show(log_point(1, [1.0] * 700), *evaluations, incident)
    browser.wait_until(lambda: count_drawn(browser) >= 1, "a chart", 10)
    marks = read_plots(browser, DRAWN_MARKS)[0]
    assert [kind for kind, _ in marks].count("incident") == 1
    assert len(marks) == 701


def test_mark_of_a_run_is_at_its_own_place_on_other_axes(browser, tmp_path):
    lost = log_point(1, [1.0, "nan", 1.0], grad_norm=[1.0] * 3, samples=300)
    points = {"a": log_point(1, [1.0, 2.0, 3.0]), "b": lost}
    runs = [write_run(tmp_path / name, [point]) for name, point in points.items()]
    browser.open(report(runs, tmp_path / "page.html"))
    browser.wait_until(lambda: browser.find_all(".chart"), "the page", 10)
    browser.scroll_to(browser.find_all(".chart")[0])
    browser.run(SET_UNIT % "samples")
    ((kind, place),) = read_plots(browser, DRAWN_MARKS)[0]
    assert (kind, place) == ("incident", pytest.approx(200))


def test_durations_are_those_of_the_terminal(browser, show):
    show(*USUAL)
    seconds = [0.25, 59.94, 59.99, 119.7, 3599.6, 7199, 1e6]
    found = browser.run("return arguments[0].map(formatDuration)", seconds)
    assert found == [format_duration(one) for one in seconds]


def test_table_has_the_digits_of_the_values(browser, show):
    show(log_point(1, [0.3, 1 / 3], logged={"tokens": [123_456_789, 2**53]}))
    cells = read_plots(
        browser,
        "return [...chart.makeTable().querySelectorAll('.table')[1].querySelectorAll('td')]"
        ".map(cell => cell.title || cell.textContent)",
    )
    assert [cells[0][0], cells[1]] == ["0.3", ["123456789", "9007199254740992"]]
    assert float(cells[0][1]) == pytest.approx(1 / 3, rel=1e-7)


def test_keys_move_cursor_and_zoom(browser, show):
    show(*USUAL)
    browser.wait_until(lambda: count_drawn(browser) >= 1, "a chart", 10)
    press = (
        "document.querySelector('.chart').dispatchEvent(new KeyboardEvent('keydown', {key: %r}))"
    )
    browser.run(press % "+")
    ends = "return [chart.plot?.scales.x.min, chart.plot?.scales.x.max]"
    browser.wait_until(lambda: read_plots(browser, ends)[0] == [1, 3], "the zoom", 10)
    browser.run(press % "ArrowRight")
    browser.wait_until(lambda: "step" in texts(browser, ".note")[0], "the values at the cursor", 10)
    browser.run(press % "Escape")
    browser.wait_until(lambda: read_plots(browser, ends)[0] == [0, 4], "all", 10)


def test_table_behind_a_chart_has_its_values_and_sorts(browser, show):
    show(*USUAL)
    browser.click(browser.find_all(".chart summary")[0])
    browser.wait_until(lambda: len(browser.find_all(".chart .table")) == 2, "the tables", 10)
    rows = "return [...document.querySelectorAll('.chart .table')[1].querySelectorAll('tbody tr')]"
    cells = f"{rows}.map(row => [...row.cells].map(cell => cell.textContent))"
    assert browser.run(cells) == [
        *(["1", "3", ""], ["2", "2", "1.5"], ["3", "1", ""], ["4", "0.5", "0.75"])
    ]
    browser.run(
        "document.querySelectorAll('.chart .table')[1].querySelectorAll('thead button')[2].click()"
    )
    assert [row[0] for row in browser.run(cells)] == ["4", "2", "1", "3"]  # empty ones come last


SERIES = "return chart.plot?.series.length"


def test_curve_can_be_hidden(browser, show):
    show(*USUAL)
    browser.wait_until(lambda: count_drawn(browser) >= 1, "a chart", 10)
    browser.click(browser.find_all(".entry")[0])
    browser.wait_until(lambda: read_plots(browser, SERIES)[0] == 2, "one curve", 10)


def test_means_of_groups_with_one_evaluation_are_points(browser, tmp_path):
    folders = []
    for rate, seed in ((0.1, 0), (0.1, 1), (0.2, 0), (0.2, 1)):
        config = {"optim.lr": rate, "seed": seed}
        events = [log_point(1, [3.0]), evaluation(1, rate + seed)]
        folder = tmp_path / f"{rate} {seed}"
        folders.append(write_run(folder, events, config=config, decided=config))
    browser.open(report(folders, tmp_path / "page.html"))
    browser.scroll_to(browser.find_all(".charts")[0])
    browser.wait_until(lambda: count_drawn(browser) >= 2, "charts", 10)
    shown = "return chart.plot?.series.map(one => one.points?.show?.() ?? one.points?.show)"
    assert read_plots(browser, shown)[1].count(True) >= 2


def test_run_can_be_hidden(browser, show):
    show(*USUAL, count=2)
    browser.wait_until(lambda: count_drawn(browser) >= 1, "a chart", 10)
    before = read_plots(browser, SERIES)[0]
    browser.click(browser.find_all("label.run input")[0])
    browser.wait_until(lambda: read_plots(browser, SERIES)[0] < before, "one run", 10)


@pytest.mark.parametrize("is_dark", [False, True])
def test_colors_follow_the_theme(browser, show, is_dark):
    browser.set_dark(is_dark=is_dark)
    show(*USUAL)
    color = browser.run("return getComputedStyle(document.body).backgroundColor")
    browser.set_dark(is_dark=False)
    assert color == ("rgb(14, 19, 26)" if is_dark else "rgb(245, 247, 250)")


def test_phone_shows_all_within_its_width(browser, show):
    browser.resize(390, 844)
    try:
        show(*USUAL, plan=[{"option": "a" * 80, "value": "b" * 200, "reason": "c" * 300}])
        width, most = browser.run(
            "return [innerWidth, Math.max(...[...document.querySelectorAll('.card')].map("
            "card => card.getBoundingClientRect().right))]"
        )
        assert most <= width
        assert browser.run("return document.documentElement.scrollWidth <= innerWidth")
    finally:
        browser.resize(1280, 900)


def test_printed_page_has_every_chart_whole(browser, show):
    browser.set_dark(is_dark=True)
    show(*USUAL)
    browser.run("dispatchEvent(new Event('beforeprint'))")
    drawn = read_plots(browser, "return chart.plot !== null")
    background = browser.run(
        "return getComputedStyle(document.querySelector('.card')).backgroundColor"
    )
    browser.run("dispatchEvent(new Event('afterprint'))")
    browser.set_dark(is_dark=False)
    assert all(drawn)
    assert background == "rgb(255, 255, 255)"


def predictions(name="cat", **more):
    """Return the content of predictions.json, with a picture of two pixels."""
    pixels = encode_png(bytes([255, 0, 0, 0, 0, 255]), 1, 2, 3)
    shown = {"kind": "picture", "shape": [3, 1, 2], "size": [1, 2, 3]}
    shown["png"] = base64.b64encode(pixels).decode()
    sample = {"index": 7, "loss": 2.5, "target": 0, "prediction": 1, "confidence": 0.9}
    found = {
        **{"set": f"val {name}", "loss": "", "kind": "classes", "n_samples": 9, "n_elements": 9},
        **{"classes": 2, "class_names": {"0": name, "1": "dog"}, "matrix": [[4, 1], [1, 3]]},
        **{"right": 7, "wrong": 2, "pairs": [[0, 1, 1], [1, 0, 1]], "pairs_left_out": 0},
        "calibration": {"bins": [[0, None, None], [9, 0.75, 0.5]], "ece": 0.25},
        **{"samples": [{**sample, "input": shown}], "worst": [0], "confident": [0], **more},
    }
    numbers = {
        **{"set": "far", "loss": "size", "kind": "numbers", "n_samples": 3, "n_elements": 3},
        "residuals": {"first": -1.0, "width": 0.5, "counts": [1, 0, 2]},
        **{"points": [[1.0, 1.5], [2.0, 1.0]], "worst": [0]},
        "samples": [
            {
                **{"index": 3, "loss": 1.5, "target": 1.0, "prediction": 2.5},
                "input": {"kind": "numbers", "shape": [2], "values": [0.25, -1.5]},
            }
        ],
    }
    missing = {"set": "other", "loss": "", "kind": "none", "why": f"of {name}"}
    evaluation = {"step": 4, "is_newest": True, "is_best": True, "measured": "weights"}
    sets = [found, numbers, missing]
    return {"format": 1, "evaluations": [{**evaluation, "sets": sets, "left_out": [name]}]}


def test_page_shows_the_predictions(browser, show):
    show(*USUAL, predictions=predictions())
    assert browser.read_console() == []
    assert texts(browser, "#predictions h3") == ["val cat", "far: size", "other"]
    assert "77.8% right" in browser.find_all("#predictions .set p")[0].text
    assert texts(browser, ".matrix td") == ["4", "1", "1", "3"]
    assert texts(browser, ".matrix tbody th") == ["cat", "dog"]
    assert texts(browser, ".sample")[0].split("\n") == [
        "sample 7",
        "predicted dog, target cat",
        "loss 2.5, confidence 0.9",
    ]
    assert "0.25 -1.5" in texts(browser, ".sample")[-1]
    images = "return [...document.images].map(one => [one.naturalWidth, one.naturalHeight])"
    browser.scroll_to(browser.find_all(".sample")[0])
    browser.wait_until(lambda: browser.run(images) == [[2, 1]] * 2, "the pictures", 10)
    assert len(browser.find_all(".diagram circle")) == 2
    assert len(browser.find_all(".diagram rect")) == 1 + 3


POINTS = {"event": "decision_points", "time": 1.0, "x": [0.5, -1.0], "y": [0.625, 0.75]}
SHOWN = """
    const figure = document.querySelector('.regions');
    const dots = [...figure.querySelectorAll('circle')];
    return [figure.querySelector('.frame').textContent,
      figure.querySelector('image').href.baseVal.slice(0, 22),
      dots.map(dot => [dot.cx.baseVal.value / 440, dot.cy.baseVal.value / 440])]
"""


def test_page_shows_the_decision_regions_of_each_evaluation(browser, show):
    show(*USUAL, {**POINTS, "labels": [2, -1]}, make_event(2), make_event(4))
    assert browser.read_console() == []
    text, picture, dots = browser.run(SHOWN)
    assert text == "step 4: val/loss 0.75"
    assert picture == "data:image/png;base64,"
    assert dots == [[0.5, 0.5], [0, 0]]
    slider = "document.querySelector('.regions input')"
    assert browser.run(f"return [{slider}.min, {slider}.max, {slider}.value]") == ["0", "1", "1"]
    browser.run(f"{slider}.value = 0; {slider}.dispatchEvent(new Event('input'))")
    assert browser.run(SHOWN)[0] == "step 2: val/loss 1.5"
    assert browser.run(f"return {slider}.getAttribute('aria-valuetext')") == "step 2: val/loss 1.5"
    assert texts(browser, ".regions .legend span") == ["class 0", "class 1", "class 2"]
    browser.click(browser.find_all(".regions button")[0])
    browser.wait_until(lambda: "step 4" in browser.run(SHOWN)[0], "the last frame", 10)
    browser.wait_until(lambda: texts(browser, ".regions button") == ["Play"], "the end", 10)


def test_damaged_decision_regions_are_counted(browser, show):
    show(*USUAL, {**make_event(2), "content": HOSTILE})
    assert browser.read_console() == []
    assert texts(browser, "#decision-regions p") == ["Evaluations that are damaged: 1."]


def range_tests(**more):
    """Return the event of two range tests, of which the second diverged."""
    losses = [[2.0, 1.5, 1.0], [2.0, 1.0, None]]
    curves = [{"rates": [0.01, 0.1, 1.0], "losses": values} for values in losses]
    found = {"option": "optim.lr", "lr": 0.05, "why": "by the fall", "seeds": [0, 1]}
    found["trainings"] = [{"lr": 0.03, "losses": [1.5, None]}]
    return {"event": "lr_find", "time": 1.0, **found, "curves": curves, **more}


def test_page_shows_the_range_tests(browser, show):
    show(*USUAL, range_tests(why=HOSTILE))
    assert browser.read_console() == []
    section = "#range-tests-of-the-learning-rate"
    lines = browser.run(
        f"return [...document.querySelectorAll('{section} polyline')].map(one => "
        "one.getAttribute('points').split(' ').length)"
    )
    assert lines == [3, 2]
    assert "the line is optim.lr = 0.05" in texts(browser, f"{section} figcaption")[0]
    assert texts(browser, f"{section} p") == [HOSTILE]
    assert texts(browser, f"{section} .legend span") == ["seed 0", "seed 1"]
    assert texts(browser, f"{section} tbody tr > *") == ["0.03", "1.5", "diverged"]
    wide = f"return document.querySelector('{section} svg').clientWidth"
    assert browser.run(wide) > 0.9 * browser.run(wide.replace(" svg", ""))
    assert {"0.01", "1"} <= set(texts(browser, f"{section} text"))


def test_hostile_predictions_are_texts(browser, show):
    hostile = predictions(HOSTILE, why=HOSTILE)
    show(*USUAL, predictions=hostile)
    assert browser.run("return document.title") == "run 0 - surestep"
    assert browser.run("return document.images.length") == 2
    text = browser.run("return document.querySelector('#predictions').textContent")
    assert text.count(HOSTILE) == 8
