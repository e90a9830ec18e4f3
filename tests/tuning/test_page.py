"""The report in Chromium."""

import json
import math
from dataclasses import replace

import pytest

from surestep.tuning.report import write_report
from surestep.tuning.table import find_best
from tests.browser import open_browser
from tests.tuning.studies import ACCURACY, CONDITIONAL, HOSTILE, SPACE, make_rows, make_study

TWO = (("val/accuracy", "max"), ("seconds", "min"))
THREE = (*TWO, ("parameters", "min"))
WHERE = "peak_memory < 5GB"
LONG = "x" * 290
# Names and choices that are long, end an element or a comment, or are written from the right.
STRANGE = {
    "optim.lr": "log(1e-4, 1e-1)",
    f"task.{LONG}": [f"{LONG}1", f"{LONG}2"],
    "task.\u202eabc": ["\u05d0\u05d1\u05d2", "\u202e</script><!--", "]]>"],
}
NAMED = ((f"val/\u202e</script><b>{LONG}", "max"),)


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


def show_winner(browser, tmp_path, rows, winner):
    """Open the page of a study that is complete."""
    study = make_study(rows)
    study.folder = tmp_path
    (tmp_path / "result.json").write_text(json.dumps({"format": 1, "winner": winner, "test": {}}))
    show(browser, study, tmp_path)
    return study


def read_plots(browser):
    """Return by title what each plot shows: its marks, and where they are drawn."""
    plots = browser.run(
        "const describe = ({mark, points, element}) =>"
        "  ({...mark, texts: null, points, kinds: [...element.classList]});"
        "return shownSearch.plots.map(plot => [plot.title, plot.placed.map(describe)])"
    )
    assert len(dict(plots)) == len(plots)
    return dict(plots)


def read_text(browser):
    return browser.run("return document.querySelector('main').innerText")


def read_values(marks):
    """Return the value of each trial whose mark is a point."""
    return {mark["trial"]: mark["values"][0][1] for mark in marks if mark["trial"] is not None}


def find_plot(browser, title):
    """Return the figure with a title."""
    found = browser.run(
        "return [...document.querySelectorAll('figure')].filter("
        "s => s.querySelector('h3').textContent === arguments[0])",
        title,
    )
    (figure,) = found
    return figure


def read_ticks(browser, title):
    """Return the texts at the axes of a plot, in full."""
    return browser.run(
        "return [...arguments[0].querySelectorAll('.tick')].map("
        "tick => (tick.querySelector('title') ?? tick).textContent)",
        find_plot(browser, title),
    )


def read_marked(browser, name):
    """Return how many elements are hovered or selected, by the plot or table that they are in."""
    return browser.run(
        "const [name] = arguments;"
        "return [...document.querySelectorAll(`.drawing .${name}, tr.${name}`)].map("
        "e => e.closest('figure')?.querySelector('h3').textContent ?? 'table')",
        name,
    )


def read_trials(browser):
    """Return the numbers in the first column of the table."""
    cells = browser.run(
        "return [...document.querySelectorAll('.trials tbody tr')].map(r => r.cells[0].textContent)"
    )
    return [int(text) for text in cells]


def last_value(row):
    """Return the value of a finished trial, the last one of a pruned trial, or None."""
    if row.state == "pruned":
        return row.intermediate[max(row.intermediate)]
    return row.values[0] if row.state == "finished" else None


@pytest.mark.parametrize(
    ("rows", "changes"),
    [
        ([], {}),
        (make_rows(30), {}),
        (make_rows(30, space=HOSTILE), {"space": HOSTILE}),
        (make_rows(30, space=STRANGE), {"space": STRANGE, "objectives": NAMED}),
        (make_rows(30, objectives=THREE), {"objectives": THREE}),
        (make_rows(500), {}),
    ],
    ids=["no trial", "usual", "hostile names", "strange names", "three objectives", "500 trials"],
)
def test_page_draws_every_plot_and_makes_no_request(browser, tmp_path, rows, changes):
    browser.read_requests()
    browser.read_console()
    file = show(browser, make_study(rows, **changes), tmp_path)
    assert browser.read_requests() == [file.resolve().as_uri()]
    assert browser.read_console() == []
    drawn = browser.run(
        "return [...document.querySelectorAll('.drawing > svg')].map(svg => svg.innerHTML)"
    )
    assert len(drawn) == len(read_plots(browser))
    assert all('class="mark' in svg and "NaN" not in svg for svg in drawn)
    assert browser.run("return document.images.length") == 0
    assert browser.run("return document.scripts.length") == 2
    assert read_trials(browser) == [row.number for row in rows]
    assert browser.run("return document.documentElement.scrollWidth - innerWidth") <= 0


def test_page_is_kept_from_requests_and_other_scripts(browser, usual):
    blocked = browser.run(
        "return new Promise(resolve => {"
        "  const found = [], url = 'http://127.0.0.1:9999/';"
        "  addEventListener('securitypolicyviolation', event => {"
        "    if (found.push(event.effectiveDirective) === 3) resolve(found.sort());"
        "  });"
        "  fetch(url).catch(() => null);"
        "  const image = new Image(), script = document.createElement('script');"
        "  [image.src, script.textContent] = [url, 'window.ran = true'];"
        "  document.body.append(image, script);"
        "})"
    )
    assert blocked == ["connect-src", "img-src", "script-src-elem"]
    assert browser.run("return window.ran ?? 'blocked'") == "blocked"


SINGLE = ["History of val/accuracy", "val/accuracy during training"]
SLICES = [f"{name} and val/accuracy" for name in SPACE]


@pytest.mark.parametrize(
    ("rows", "titles"),
    [
        ([], []),
        (make_rows(1), SINGLE),
        ([replace(row, state="failed", values=None, intermediate={}) for row in make_rows(3)], []),
        (
            [replace(row, state="waiting", params={}, values=None) for row in make_rows(1)],
            SINGLE[1:],
        ),
        (make_rows(5), [*SINGLE, "Parallel coordinates", *SLICES]),
        (
            make_rows(30),
            [SINGLE[0], "Importances for val/accuracy", SINGLE[1], "Parallel coordinates", *SLICES],
        ),
    ],
    ids=["none", "one", "all failed", "waiting", "few", "enough"],
)
def test_study_in_any_state_has_the_plots_that_it_has_values_for(browser, tmp_path, rows, titles):
    show(browser, make_study(rows), tmp_path)
    shown = browser.run(
        "return [...document.querySelectorAll('figure h3')].map(e => e.textContent)"
    )
    assert shown == titles


def test_page_shows_the_numbers_of_the_trials(browser, usual):
    text = read_text(browser)
    best = usual[find_best(usual, ACCURACY)[0]]
    assert f"{best.values[0]:.5g}\nbest val/accuracy, trial {best.number}" in text
    assert repr(best.params["optim.lr"]) in text  # all digits, to train with them
    for part in ("Search of digits", "log(0.0001, 0.1)", "cosine | linear | constant", "15 in all"):
        assert part in text
    plots = read_plots(browser)
    measured = {row.number: last_value(row) for row in usual if last_value(row) is not None}
    assert read_values(plots["History of val/accuracy"]) == measured
    for name in SPACE:
        marks = plots[f"{name} and val/accuracy"]
        assert read_values(marks) == measured
        drawn = [mark["trial"] for mark in marks if "cross" in mark["kinds"]]
        assert sorted(drawn) == [row.number for row in usual if row.state == "pruned"]
    cells = browser.run(
        "return document.querySelectorAll('.trials tbody td, .trials tbody th').length"
    )
    assert cells == 30 * (6 + len(SPACE))
    shown = browser.run(
        "return [...document.querySelector('.trials tbody').rows].map(row => row.cells[2].title)"
    )
    assert shown == [repr(row.values[0]) if row.values else "" for row in usual]


def test_marks_are_where_their_values_are(browser, tmp_path):
    losses = [1.0, 10.0, 100.0]
    rows = [
        replace(row, state="finished", values=(loss,), params={**row.params, "optim.lr": lr})
        for row, loss, lr in zip(make_rows(3), losses, [1e-4, 1e-3, 1e-2], strict=True)
    ]
    show(browser, make_study(rows, objectives=[("val/loss", "min")]), tmp_path)
    marks = read_plots(browser)["optim.lr and val/loss"]
    centers = browser.run(
        "const plot = shownSearch.plots.find(plot => plot.title === 'optim.lr and val/loss');"
        "return [0, 1, 2].map(trial => plot.elements.get(trial).getBBox()).map("
        "box => [box.x + box.width / 2, box.y + box.height / 2])"
    )
    points = {mark["trial"]: mark["points"][0] for mark in marks}
    assert [points[number] for number in range(3)] == [pytest.approx(c, abs=0.1) for c in centers]
    (x0, y0), (x1, y1), (x2, y2) = centers
    assert x1 - x0 == pytest.approx(x2 - x1, abs=0.3)
    assert x1 - x0 > 50
    assert y0 - y1 == pytest.approx(y1 - y2, abs=0.3)
    assert y0 - y1 > 50


def test_hovering_shows_the_trial_and_its_value_in_every_plot(browser, usual):
    history = find_plot(browser, "History of val/accuracy")
    finished = [row for row in usual if row.state == "finished"]
    points = {mark["trial"]: at for at, mark in enumerate(read_plots(browser)[SINGLE[0]])}
    row = finished[3]
    browser.hover(browser.find_all(".drawing .mark", history)[points[row.number]])
    (tip,) = browser.find_all(".tip", history)
    label = browser.wait_until(lambda: tip.text, "a label")
    assert label == f"Trial {row.number}\nval/accuracy: {row.values[0]:.5g}"
    assert read_marked(browser, "hovered") == [*SINGLE, "Parallel coordinates", *SLICES, "table"]
    browser.hover(browser.find_all("h1")[0])
    browser.wait_until(lambda: read_marked(browser, "hovered") == [], "the label to vanish")
    assert tip.text == ""


def test_click_selects_the_trial_in_every_plot_and_the_table(browser, usual):
    every = [*SINGLE, "Parallel coordinates", *SLICES, "table"]
    marks = {mark["trial"]: at for at, mark in enumerate(read_plots(browser)[SLICES[0]])}
    plot = find_plot(browser, SLICES[0])
    row = next(row for row in usual if row.state == "pruned")
    browser.click(browser.find_all(".drawing .mark", plot)[marks[row.number]])
    assert read_marked(browser, "selected") == every
    topmost = "return [...document.querySelectorAll('.mark.selected')].map(e => e.nextSibling)"
    assert set(browser.run(topmost)) == {None}
    (bar,) = browser.find_all(".selected-trial")
    assert bar.text.startswith(f"Trial {row.number}, pruned")
    button = browser.find_all(".trials tbody button")[4]
    browser.click(button)
    assert read_marked(browser, "selected")[-1] == "table"
    assert bar.text.startswith("Trial 4, finished")
    browser.press("Escape")
    assert read_marked(browser, "selected") == []
    assert bar.text == ""


def test_keyboard_moves_through_the_trials_of_a_plot(browser, usual):
    plot = find_plot(browser, "History of val/accuracy")
    browser.run("arguments[0].querySelector('.drawing svg').focus({focusVisible: true})", plot)
    shown = [row.number for row in usual if last_value(row) is not None]
    (tip,) = browser.find_all(".tip", plot)
    for key, number in (
        ("ArrowRight", shown[0]),
        ("ArrowRight", shown[1]),
        ("End", shown[-1]),
        ("ArrowLeft", shown[-2]),
        ("Home", shown[0]),
    ):
        browser.press(key)
        assert tip.text.split("\n")[0].split(",")[0] == f"Trial {number}"
    browser.press("Enter")
    assert browser.run("return shownSearch.shown.selected") == shown[0]
    browser.press("Enter")
    assert browser.run("return shownSearch.shown.selected") is None


def test_clicking_the_legend_hides_and_shows_lines(browser, usual):
    plot = find_plot(browser, "val/accuracy during training")
    pruned = sum(row.state == "pruned" for row in usual)
    (entry,) = [e for e in browser.find_all(".legend .entry", plot) if e.text == "pruned"]

    def count_lines():
        return len(browser.find_all(".drawing .mark", plot))

    every = count_lines()
    browser.click(entry)
    assert count_lines() == every - pruned
    assert entry.get_attribute("aria-pressed") == "false"
    browser.click(entry)
    assert count_lines() == every


def test_table_is_sorted_by_the_column_that_is_clicked(browser, usual):
    heads = {head.text: head for head in browser.find_all(".trials th button")}
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
    marked = browser.run(
        "return [...document.querySelectorAll('tr.best')].map(row => row.cells[0].textContent)"
    )
    assert marked == [str(finished[0].number)]


def test_plots_follow_the_colors_that_the_user_prefers(browser, usual):
    def read_colors():
        return browser.run(
            "const read = name => getComputedStyle(document.querySelector(`.drawing ${name}`));"
            "return [read('.tick').fill, read('.dot.finished').fill, read('.line.shade-5').stroke]"
        )

    light = read_colors()
    browser.set_dark(is_dark=True)
    try:
        assert all(one != other for one, other in zip(read_colors(), light, strict=True))
    finally:
        browser.set_dark(is_dark=False)
    assert read_colors() == light


def test_plots_fit_a_phone_and_paper(browser, usual):
    measure = (
        "return [...document.querySelectorAll('.drawing svg')].filter(svg => {"
        "  const [a, b] = [svg, svg.closest('figure')].map(e => e.getBoundingClientRect());"
        "  return a.left < b.left || a.right > b.right || a.bottom > b.bottom;"
        "}).length"
    )
    with browser.use_screen(390, 844):
        assert browser.run("return document.documentElement.scrollWidth") == 390
        assert browser.run(measure) == 0
    with browser.use_screen(700, 1000, media="print"):
        assert browser.run("return document.documentElement.scrollWidth") <= 700
        assert browser.run(measure) == 0


@pytest.mark.parametrize(
    ("space", "objectives"), [(HOSTILE, ACCURACY), (STRANGE, NAMED)], ids=["hostile", "strange"]
)
def test_names_are_shown_as_they_are(browser, tmp_path, space, objectives):
    rows, metric = make_rows(30, space=space), objectives[0][0]
    show(browser, make_study(rows, space=space, objectives=objectives), tmp_path)
    name = list(space)[1]
    assert set(read_ticks(browser, f"{name} and {metric}")) > set(space[name])
    assert name in browser.run(
        "return [...document.querySelectorAll('.bars bdi')].map(e => e.textContent)"
    )
    lines = set(read_ticks(browser, "Parallel coordinates"))
    assert {metric, *space, *space[name]} <= lines
    axes = browser.run(
        "return [...arguments[0].querySelectorAll('.axis-name')].map(e => e.lastChild.textContent)",
        find_plot(browser, f"History of {metric}"),
    )
    assert axes == [metric, "trial"]
    text = browser.run("return document.querySelector('main').textContent")
    assert all(choice in text for choice in space[name])


def test_choices_that_read_the_same_have_different_labels(browser, tmp_path):
    rows = make_rows(60, space=HOSTILE)
    show(browser, make_study(rows, space=HOSTILE), tmp_path)
    labels = ["none", '"none"', "1", '"1"', "2.5", "false", "[1, 2]"]
    assert read_ticks(browser, "task.mixed and val/accuracy")[-7:] == labels
    for mark in read_plots(browser)["task.mixed and val/accuracy"]:
        assert (
            HOSTILE["task.mixed"][mark["values"][0][0]] == rows[mark["trial"]].params["task.mixed"]
        )


def test_plots_have_the_numbers_of_trials_after_a_gap(browser, tmp_path):
    rows = [row for row in make_rows(20) if row.number not in (0, 3, 4)]
    show(browser, make_study(rows), tmp_path)
    marks = read_plots(browser)["History of val/accuracy"]
    finished = {row.number: row.values[0] for row in rows if row.state == "finished"}
    shown = [mark for mark in marks if mark["kind"] in ("finished", "best")]
    assert {mark["values"][0][0]: mark["values"][0][1] for mark in shown} == finished
    assert read_values(shown) == finished


def test_number_that_is_not_finite_is_in_no_plot(browser, tmp_path):
    rows = make_rows(12)
    rows[0] = replace(rows[0], intermediate={1: math.nan, 2: math.inf, 3: 0.5})
    rows[1] = replace(rows[1], values=(math.inf,))
    rows[2] = replace(rows[2], intermediate={1: 0.5, 2: math.nan})
    show(browser, make_study(rows), tmp_path)
    plots = read_plots(browser)
    assert 0 in read_values(plots[SINGLE[0]])
    assert {1, 2}.isdisjoint(read_values(plots[SINGLE[0]]))
    (line,) = [mark for mark in plots[SINGLE[1]] if mark["trial"] == 0]
    assert line["values"] == [[3, 0.5]]


def test_lines_of_the_training_are_grouped_by_state(browser, usual):
    best = find_best(usual, ACCURACY)[0]
    groups = {}
    for mark in read_plots(browser)["val/accuracy during training"]:
        groups[mark["trial"]] = mark["kind"]
        assert dict(mark["values"]) == usual[mark["trial"]].intermediate
        assert ("dotted" in mark["kinds"]) == (mark["kind"] == "running")
    states = {row.number: row.state for row in usual if row.state != "failed"}
    assert groups == {**states, best: "best"}
    plot = find_plot(browser, "val/accuracy during training")
    entries = [entry.text for entry in browser.find_all(".entry", plot)]
    assert entries == ["pruned", "finished", "running", "best trial"]


@pytest.mark.parametrize("direction", ["max", "min"])
def test_parallel_coordinates_have_a_line_for_each_trial_colored_by_its_rank(
    browser, tmp_path, direction
):
    rows = make_rows(30)
    show(browser, make_study(rows, objectives=[("val/accuracy", direction)]), tmp_path)
    lines = {mark["trial"]: mark for mark in read_plots(browser)["Parallel coordinates"]}
    expected = {row.number: value for row in rows if (value := last_value(row)) is not None}
    names = ["schedule.name", "task.width"]
    for number, line in lines.items():
        choices = [SPACE[name].index(rows[number].params[name]) for name in names]
        params = rows[number].params
        values = [expected[number], params["optim.lr"], choices[0], params["task.dropout"]]
        assert line["values"] == [*values, choices[1]]
    assert lines.keys() == expected.keys()
    dotted = {number for number, line in lines.items() if "dotted" in line["kinds"]}
    assert dotted == {row.number for row in rows if row.state == "pruned"}
    order = sorted(expected, key=expected.get, reverse=direction == "min")
    shades = [lines[number]["shade"] for number in order]
    assert shades == sorted(shades)
    assert (shades[0], shades[-1]) == (0, 5)
    assert set(read_ticks(browser, "Parallel coordinates")) > {"val/accuracy", *SPACE}


def test_losses_over_a_wide_range_have_a_logarithmic_axis(browser, tmp_path):
    losses = [3.0, 0.02, 100.0, 0.05, 0.03]
    rows = [
        replace(row, state="finished", values=(loss,), intermediate={1: math.inf, 2: loss})
        for row, loss in zip(make_rows(5), losses, strict=True)
    ]
    show(browser, make_study(rows, objectives=[("val/loss", "min")]), tmp_path)
    for title in (
        *("History of val/loss", "val/loss during training", "optim.lr and val/loss"),
        "Parallel coordinates",
    ):
        assert {"0.1", "1", "10", "100"} <= set(read_ticks(browser, title)), title
    show(browser, make_study(make_rows(9)), tmp_path)
    assert {"0.8", "0.9"} <= set(read_ticks(browser, SINGLE[0]))


@pytest.mark.parametrize("count", [2, 3])
def test_objectives_over_a_wide_range_have_logarithmic_axes(browser, tmp_path, count):
    objectives = [("val/accuracy", "max"), ("parameters", "min"), ("seconds", "min")][:count]
    rows = [
        replace(row, values=(row.values[0], 10.0 ** (row.number % 5), 2.0)[:count])
        for row in make_rows(12, objectives=objectives)
        if row.values
    ]
    show(browser, make_study(rows, objectives=objectives), tmp_path)
    front = "Pareto front: val/accuracy and parameters" if count == 3 else "Pareto front"
    for title in (front, "Parallel coordinates", "optim.lr and parameters"):
        assert {"10", "100", "1000", "10K"} <= set(read_ticks(browser, title)), title
    for mark in read_plots(browser)["Parallel coordinates"]:
        assert tuple(mark["values"][:count]) == rows_by_number(rows)[mark["trial"]].values
    fronts = [title for title in read_plots(browser) if title.startswith("Pareto")]
    assert len(fronts) == (3 if count == 3 else 1)


def rows_by_number(rows):
    return {row.number: row for row in rows}


def test_page_of_two_objectives_has_the_pareto_front(browser, tmp_path):
    rows = make_rows(30, objectives=TWO)
    show(browser, make_study(rows, objectives=TWO), tmp_path)
    plots = read_plots(browser)
    front = [mark["trial"] for mark in plots["Pareto front"] if mark["kind"] == "front"]
    assert sorted(front) == find_best(rows, TWO)
    for mark in plots["Pareto front"]:
        assert tuple(mark["values"][0]) == rows[mark["trial"]].values
    assert next(iter(plots)) == "Pareto front"
    assert {"History of seconds", "optim.lr and seconds", "Parallel coordinates"} < set(plots)
    assert "Importances for seconds" in read_text(browser)


def test_four_objectives_have_a_page_without_a_plot_of_the_front(browser, tmp_path):
    objectives = [*THREE, ("peak_memory", "min")]
    show(browser, make_study(make_rows(12, objectives=objectives), objectives=objectives), tmp_path)
    assert not any(title.startswith("Pareto") for title in read_plots(browser))
    assert "trials on the Pareto front" in read_text(browser)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_trials_outside_of_a_constraint_are_shown_as_such(browser, tmp_path, count):
    objectives = THREE[:count]
    rows = [
        replace(
            row,
            measured={"peak_memory": 1e9 * (row.number % 7)},
            is_feasible=row.number % 7 < 5,
            reason=row.reason or ("" if row.number % 7 < 5 else f"violates {WHERE}"),
        )
        for row in make_rows(30, objectives=objectives)
    ]
    rows[6] = replace(rows[6], values=(0.999, *rows[6].values[1:]))  # the highest is not feasible
    show(browser, make_study(rows, objectives=objectives, where=(WHERE,)), tmp_path)
    text = read_text(browser)
    assert WHERE in browser.find_all("header")[0].text
    assert "peak_memory" in [head.text for head in browser.find_all(".trials th button")]
    assert "3,000,000,000" in text
    finished = [row for row in rows if row.state == "finished"]
    outside = {row.number for row in finished if not row.is_feasible}
    plots = read_plots(browser)

    def find_rings(title):
        return {mark["trial"] for mark in plots[title] if "ring" in mark["kinds"]}

    assert find_rings("History of val/accuracy") == outside
    assert find_rings("optim.lr and val/accuracy") == outside
    (so_far,) = [m for m in plots["History of val/accuracy"] if m["kind"] == "best-so-far"]
    highest = max(row.values[0] for row in finished if row.is_feasible)
    assert max(value for _, value in so_far["values"]) == highest
    lines = plots["Parallel coordinates"]
    if count == 1:
        pruned = {row.number for row in rows if row.state == "pruned"}
        assert {m["trial"] for m in lines if "dotted" in m["kinds"]} == outside | pruned
        return
    best = find_best(rows, objectives)
    assert {mark["trial"] for mark in lines} == {row.number for row in finished} - outside
    assert sorted(mark["trial"] for mark in lines if mark["kind"] == "front") == best
    for title in (title for title in plots if title.startswith("Pareto")):
        assert find_rings(title) == outside
        assert sorted(m["trial"] for m in plots[title] if m["kind"] == "front") == best


@pytest.mark.parametrize("objectives", [ACCURACY, TWO])
def test_page_of_a_study_in_which_no_trial_satisfies_the_constraints(browser, tmp_path, objectives):
    rows = [replace(row, is_feasible=False) for row in make_rows(30, objectives=objectives)]
    show(browser, make_study(rows, objectives=objectives, where=(WHERE,)), tmp_path)
    assert "No trial is finished and satisfies the constraints." in read_text(browser)


def test_parameters_are_shown_for_the_trials_that_have_them(browser, tmp_path):
    rows = make_rows(60, space=CONDITIONAL)
    show(browser, make_study(rows, space=CONDITIONAL), tmp_path)
    plots = read_plots(browser)
    measured = [row for row in rows if last_value(row) is not None]
    sgd = [row for row in measured if row.params["optim.name"] == "sgd"]
    for name, shown in (("optim.lr", "optim.lr if optim.name=sgd"), ("optim.momentum",) * 2):
        marks = plots[f"{shown} and val/accuracy"]
        values = {mark["trial"]: mark["values"][0][0] for mark in marks}
        assert values == {row.number: row.params[name] for row in sgd}
    assert {mark["trial"] for mark in plots["Parallel coordinates"]} == {r.number for r in measured}
    assert "not set" in read_ticks(browser, "Parallel coordinates")
    columns = [head.text for head in browser.find_all(".trials thead button")]
    cells = browser.run(
        "return [...document.querySelector('.trials tbody').rows].map("
        "row => [...row.cells].map(cell => cell.textContent))"
    )
    assert columns[5:9] == ["optim.name", "task.width", "optim.lr", "optim.momentum"]
    for line, row in zip(cells, rows, strict=True):
        assert float(line[7]) == pytest.approx(row.params["optim.lr"], 1e-4)
        assert (line[8] != "") == (row.params["optim.name"] == "sgd")


def test_importances_say_which_trials_they_compare(browser, usual):
    text = read_text(browser)
    states = [row.state for row in usual]
    finished, pruned = states.count("finished"), states.count("pruned")
    assert (
        f"the best of {finished} finished and {pruned} pruned trials (with the last value), by "
        "PED-ANOVA"
    ) in text
    assert "A rough estimate: it needs about 50 trials." in text
    names = browser.run("return [...document.querySelectorAll('.bars th')].map(e => e.textContent)")
    assert names[0] == "optim.lr"
    assert set(names) == set(SPACE)


def test_pruned_trial_is_never_the_best_so_far(browser, tmp_path):
    rows = [replace(row, state="finished", values=(0.5,)) for row in make_rows(3)]
    rows[1] = replace(rows[1], state="pruned", values=None, intermediate={1: 0.9})
    rows[2] = replace(rows[2], state="pruned", values=None, intermediate={1: math.nan})
    show(browser, make_study(rows), tmp_path)
    marks = {mark["kind"]: mark for mark in read_plots(browser)["History of val/accuracy"]}
    assert {value for _, value in marks["best-so-far"]["values"]} == {0.5}
    assert (marks["pruned"]["trial"], marks["best"]["trial"]) == (1, 0)


def test_winner_is_shown_with_its_confirmed_values_and_test_metrics(browser, tmp_path):
    confirmed = [
        {"number": 3, "values": [0.91, 0.93], "mean": 0.92, "spread": 0.0141},
        {"number": 6, "values": [0.9, "nan"], "mean": "nan", "spread": "nan"},
    ]
    winner = {"number": 3, "test": {"test/accuracy": 0.905}, "confirmed": confirmed}
    rows = make_rows(30)
    assert find_best(rows, ACCURACY) != [3]
    show_winner(browser, tmp_path, rows, winner)
    text = read_text(browser)
    assert "Winner: trial 3" in text
    assert repr(rows[3].params["optim.lr"]) in text
    assert "0.905 (measured once, at the end)" in text
    for part in ("seed 2", "0.0141", "failed", "standard deviation"):
        assert part in text
    assert "0.92\nmean val/accuracy of the winner, trial 3" in text
    assert "best val/accuracy" not in text
    for title in SINGLE:
        assert [m["trial"] for m in read_plots(browser)[title] if m["kind"] == "best"] == [3]
    (row,) = browser.find_all(".trials tr.best")
    assert row.text.split()[0] == "3"


def test_single_other_seed_has_no_standard_deviation_on_the_page(browser, tmp_path):
    confirmed = [{"number": 0, "values": [0.91], "mean": 0.91, "spread": 0.0}]
    winner = {"number": 0, "test": None, "confirmed": confirmed}
    show_winner(browser, tmp_path, make_rows(5), winner)
    text = read_text(browser)
    assert "seed 1" in text
    assert "standard deviation" not in text
