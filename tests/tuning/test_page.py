"""The report in Chromium."""

import pytest

from surestep.tuning.report import write_report
from surestep.tuning.table import find_best
from tests.browser import open_browser
from tests.tuning.studies import ACCURACY, HOSTILE, make_rows, make_study

THREE = (("val/accuracy", "max"), ("seconds", "min"), ("parameters", "min"))


@pytest.fixture(scope="module")
def browser():
    with open_browser() as browser:
        yield browser


@pytest.fixture
def usual(browser, tmp_path):
    """Open the page of a usual study; return its trials."""
    rows = make_rows(30)
    show(browser, make_study(rows), tmp_path)
    return rows


def show(browser, study, tmp_path):
    """Open the page of a study; return the file."""
    file = tmp_path / "report.html"
    write_report(study, file, None)
    browser.open(file)
    return file


def find_plot(browser, title):
    found = browser.run(
        "return [...document.querySelectorAll('section')].filter("
        "s => s.querySelector('h2').textContent === arguments[0])",
        title,
    )
    (section,) = found
    return section


def read_trials(browser):
    """Return the numbers in the first column of the table."""
    cells = browser.run(
        "return [...document.querySelectorAll('.trials tbody tr')].map(r => r.cells[0].textContent)"
    )
    return [int(text) for text in cells]


@pytest.mark.parametrize(
    ("rows", "changes"),
    [
        ([], {}),
        (make_rows(30), {}),
        (make_rows(30, space=HOSTILE), {"space": HOSTILE}),
        (make_rows(30, objectives=THREE), {"objectives": THREE}),
        (make_rows(500), {}),
    ],
    ids=["no trial", "usual", "hostile names", "three objectives", "500 trials"],
)
def test_page_draws_every_plot_and_makes_no_request(browser, tmp_path, rows, changes):
    browser.read_requests()
    browser.read_console()
    file = show(browser, make_study(rows, **changes), tmp_path)
    assert browser.read_requests() == [file.resolve().as_uri()]
    # Without a GPU, Chromium reports that it draws 3-D plots slowly.
    assert [text for text in browser.read_console() if "GL" not in text and "2D" not in text] == []
    plots = browser.find_all(".plot")
    assert len(plots) == len(browser.find_all(".plot.js-plotly-plot"))
    assert all(browser.find_all(".main-svg", plot) for plot in plots)
    assert browser.run("return document.images.length") == 0
    assert read_trials(browser) == [row.number for row in rows]


def test_page_is_kept_from_requests(browser, usual):
    browser.read_requests()
    outcome = browser.run(
        "return fetch('http://127.0.0.1:9999/').then(() => 'sent', () => 'blocked')"
    )
    assert outcome == "blocked"
    assert browser.read_requests() == []


def test_hovering_shows_the_trial_and_its_value(browser, usual):
    history = find_plot(browser, "History of val/accuracy")
    points = browser.find_all(".scatterlayer .point", history)
    finished = [row for row in usual if row.state == "finished"]
    assert len(points) == len(finished) + sum(row.state == "pruned" for row in usual)

    def hover():
        """Move the mouse again and again: a page that is still drawn does not notice it."""
        browser.hover(browser.find_all(".scatterlayer .point", history)[3])
        return browser.run(
            "return [...arguments[0].querySelectorAll('.hoverlayer .hovertext')]"
            ".map(e => e.textContent).join(' ')",
            history,
        )

    label = browser.wait_until(hover, "a label")
    assert f"Trial {finished[3].number}" in label
    assert f"val/accuracy: {finished[3].values[0]:.5g}" in label


def test_clicking_the_legend_hides_and_shows_lines(browser, usual):
    plot = find_plot(browser, "val/accuracy during training")
    pruned = sum(row.state == "pruned" for row in usual)
    (entry,) = [
        entry
        for entry in browser.find_all(".legend .traces", plot)
        if entry.text.strip() == "pruned"
    ]

    def count_lines():
        return len(browser.find_all(".scatterlayer .trace", plot))

    every = count_lines()
    browser.click(browser.find_all(".legendtoggle", entry)[0])
    browser.wait_until(lambda: count_lines() == every - pruned, "the lines to vanish")
    (entry,) = [
        entry
        for entry in browser.find_all(".legend .traces", plot)
        if entry.text.strip() == "pruned"
    ]
    browser.click(browser.find_all(".legendtoggle", entry)[0])
    browser.wait_until(lambda: count_lines() == every, "the lines to return")


def test_table_is_sorted_by_the_column_that_is_clicked(browser, usual):
    heads = {head.text: head for head in browser.find_all(".trials th")}
    browser.click(heads["val/accuracy"])
    browser.click(heads["val/accuracy"])
    finished = sorted(
        (row for row in usual if row.values), key=lambda row: row.values[0], reverse=True
    )
    assert read_trials(browser)[: len(finished)] == [row.number for row in finished]
    assert finished[0].number == find_best(usual, ACCURACY)[0]
    browser.click(heads["state"])
    states = [usual[number].state for number in read_trials(browser)]
    assert states == sorted(states)


def test_plots_follow_the_colors_that_the_user_prefers(browser, usual):
    def text_color():
        # One script finds and reads: the plots may be drawn anew between two.
        return browser.run(
            "return getComputedStyle(document.querySelector('.plot .xtick text')).fill"
        )

    light = text_color()
    browser.set_dark(is_dark=True)
    try:
        browser.wait_until(lambda: text_color() != light, "other colors")
    finally:
        browser.set_dark(is_dark=False)
    browser.wait_until(lambda: text_color() == light, "the colors of before")


def test_names_are_shown_as_they_are(browser, tmp_path):
    rows = make_rows(30, space=HOSTILE)
    show(browser, make_study(rows, space=HOSTILE), tmp_path)
    name = 'task.<b>"x"&y'
    slice_plot = find_plot(browser, f"{name} and val/accuracy")
    assert browser.find_all(".xtitle", slice_plot)[0].text == name
    ticks = [tick.text for tick in browser.find_all(".xtick", slice_plot)]
    assert ticks == HOSTILE[name]
    bars = find_plot(browser, "Importances for val/accuracy")
    assert name in [tick.text.strip() for tick in browser.find_all(".ytick", bars)]
    lines = find_plot(browser, "Parallel coordinates")
    assert name in [tick.text for tick in browser.find_all(".xtick", lines)]
    shown = {text.text for text in browser.find_all(".annotation-text", lines)}
    assert {row.params[name] for row in rows if row.values} <= shown
