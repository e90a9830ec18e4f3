import json
import math
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from types import SimpleNamespace

import optuna
import pytest

from surestep.base.errors import ConfigError, RunError
from surestep.tuning import report
from surestep.tuning.plots import draw_plots
from surestep.tuning.report import describe_study, find_winners, write_report
from surestep.tuning.search import run_search
from surestep.tuning.table import find_best, tabulate_trials
from surestep.tuning.view import compute_importances
from tests.tuning.studies import ACCURACY, CONDITIONAL, HOSTILE, SPACE, make_rows, make_study

PYTHON = sys.executable  # not the one of `warm_python`
WALL = "wall time"
TWO = (("val/accuracy", "max"), ("seconds", "min"))


class Page(HTMLParser):
    """What a browser reads of a page: its elements with attributes, its text, its scripts."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.text, self.scripts, self._within = [], "", [], None
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self._within = tag if tag in ("script", "style") else None

    def handle_endtag(self, tag):
        self._within = None

    def handle_data(self, data):
        if self._within == "script":
            self.scripts.append(data)
        elif self._within is None:
            self.text += data + "\n"


def last_value(row):
    """Return the value of a finished trial, the last one of a pruned trial, or None."""
    if row.state == "pruned":
        return row.intermediate[max(row.intermediate)]
    return row.values[0] if row.state == "finished" else None


def write(study, tmp_path):
    write_report(study, tmp_path / "report.html", tmp_path / "report.json")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    return Page(page), json.loads((tmp_path / "report.json").read_text())


def contents(page):
    """Return data and layout of the plots."""
    found = [json.loads(text) for text in page.scripts if text.startswith('{"data":')]
    assert len(found) == sum("data-height" in attrs for _, attrs in page.elements)
    return found


def drawn_plots(study):
    rows, settings = study.rows(), study.settings
    best = find_best(rows, settings.objectives)
    plots = draw_plots(rows, settings.objectives, settings.space, best)
    return {plot.title: plot for plot in plots}


def test_missing_plotly_is_reported_before_the_training(tmp_path, monkeypatch):
    monkeypatch.setattr(report, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"not installed\. Install it: pip install optuna plotly"):
        run_search(None, SimpleNamespace(check=lambda: None))
    with pytest.raises(ConfigError, match="needs plotly"):
        write_report(None, tmp_path / "report.html", None)
    assert not list(tmp_path.iterdir())


def test_json_has_every_number_of_the_trials(tmp_path):
    rows = make_rows(30)
    _, report = write(make_study(rows), tmp_path)
    assert [trial["number"] for trial in report["trials"]] == list(range(30))
    for row, trial in zip(rows, report["trials"], strict=True):
        assert trial["state"] == row.state
        assert trial["params"] == row.params
        assert trial["values"] == (row.values and {"val/accuracy": row.values[0]})
        assert trial["intermediate"] == {str(k): v for k, v in row.intermediate.items()}
    assert sum(report["counts"].values()) == 30
    assert report["counts"]["pruned"] == 9
    assert report["evaluations"] == sum(row.evaluations for row in rows)
    assert report["best"] == find_best(rows, ACCURACY)
    assert report["objectives"] == [{"name": "val/accuracy", "direction": "max"}]
    assert report["space"]["optim.lr"] == "log(0.0001, 0.1)"


def test_number_that_is_not_finite_is_null_in_json_and_in_no_plot(tmp_path):
    rows = make_rows(12)
    rows[0] = replace(rows[0], intermediate={1: math.nan, 2: math.inf, 3: 0.5})
    rows[1] = replace(rows[1], values=(math.inf,))
    page, report = write(make_study(rows), tmp_path)
    assert report["trials"][0]["intermediate"] == {"1": None, "2": None, "3": 0.5}
    assert report["trials"][1]["values"] == {"val/accuracy": None}
    assert report["best"] != [1]
    history = contents(page)[0]["data"][0]
    assert 0 in history["x"]
    assert 1 not in history["x"]


def test_page_shows_the_numbers_of_the_json(tmp_path):
    page, report = write(make_study(make_rows(30)), tmp_path)
    best = report["trials"][report["best"][0]]
    assert f"{best['values']['val/accuracy']:.5g}" in page.text
    assert repr(best["params"]["optim.lr"]) in page.text  # all digits, to train with them
    for text in ("Search of digits", "log(0.0001, 0.1)", "cosine | linear | constant", "15"):
        assert text in page.text
    cells = [attrs for tag, attrs in page.elements if tag == "td" and "data-value" in attrs]
    assert len(cells) == 30 * (6 + len(SPACE))
    history = contents(page)[0]["data"][0]
    values = {trial["number"]: trial["values"] for trial in report["trials"] if trial["values"]}
    shown = dict(zip(history["x"], history["y"], strict=True))
    assert shown == {number: value["val/accuracy"] for number, value in values.items()}


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
def test_study_in_any_state_has_a_page_with_the_plots_that_it_has_values_for(
    tmp_path, rows, titles
):
    study = make_study(rows)
    assert list(drawn_plots(study)) == titles
    page, report = write(study, tmp_path)
    assert len(contents(page)) == len(titles)
    assert len(report["trials"]) == len(rows)
    assert report["best"] == find_best(rows, ACCURACY)


def test_page_loads_nothing_and_has_plotly_once(tmp_path):
    page, _ = write(make_study(make_rows(12)), tmp_path)
    assert [attrs for _, attrs in page.elements if {"src", "href", "srcset"} & attrs.keys()] == []
    assert {tag for tag, _ in page.elements} & {"link", "img", "iframe", "object", "base"} == set()
    assert sum("plotly.js v" in script for script in page.scripts) == 1
    (policy,) = [a["content"] for t, a in page.elements if t == "meta" and "http-equiv" in a]
    assert policy.startswith("default-src 'none'")


def test_names_and_choices_are_shown_as_text(tmp_path):
    study = make_study(make_rows(30, space=HOSTILE), space=HOSTILE)
    page, report = write(study, tmp_path)
    assert {tag for tag, _ in page.elements} & {"img", "b"} == {"b"}
    assert sum(tag == "b" for tag, _ in page.elements) == 1  # the name of the objective
    for name in HOSTILE:
        assert name in page.text
    assert "</script><img src=x onerror=alert(1)>" in page.text
    for plot in contents(page):  # plotly shows some tags as such
        assert "<img" not in json.dumps(plot)
        assert "a<b>" not in json.dumps(plot)
    assert [trial["params"] for trial in report["trials"]] == [row.params for row in study.rows()]


def test_choices_that_read_the_same_have_different_labels(tmp_path):
    study = make_study(make_rows(60, space=HOSTILE), space=HOSTILE)
    drawn = json.loads(drawn_plots(study)["task.mixed and val/accuracy"].content)
    labels = ["none", '"none"', "1", '"1"', "2.5", "false", "[1, 2]"]
    assert drawn["layout"]["xaxis"]["categoryarray"] == labels
    numbers = drawn["data"][0]["marker"]["color"]
    choices = dict(zip(labels, HOSTILE["task.mixed"], strict=True))
    for number, label in zip(numbers, drawn["data"][0]["x"], strict=True):
        assert study.rows()[number].params["task.mixed"] == choices[label]
    _, cells = tabulate_trials(study.rows(), ACCURACY, study.settings.space)
    assert {line[-2] for line in cells} == set(labels)


def test_plots_have_the_numbers_of_trials_after_a_gap():
    rows = [row for row in make_rows(20) if row.number not in (0, 3, 4)]
    drawn = json.loads(drawn_plots(make_study(rows))["History of val/accuracy"].content)
    finished = {row.number: row.values[0] for row in rows if row.state == "finished"}
    points = drawn["data"][0]
    assert dict(zip(points["x"], points["y"], strict=True)) == finished


def test_intermediate_values_are_grouped_by_state():
    rows = make_rows(30)
    drawn = json.loads(drawn_plots(make_study(rows))["val/accuracy during training"].content)
    best = find_best(rows, ACCURACY)[0]
    groups = {}
    for trace in drawn["data"]:
        number = int(trace["hovertemplate"].split(",")[0].removeprefix("<b>Trial "))
        groups[number] = trace["legendgroup"]
        assert dict(zip(trace["x"], trace["y"], strict=True)) == rows[number].intermediate
    states = {row.number: row.state for row in rows if row.state != "failed"}
    assert groups == {**states, best: "best"}
    assert sum(trace["showlegend"] for trace in drawn["data"]) == 4


@pytest.mark.parametrize("direction", ["max", "min"])
def test_parallel_coordinates_have_a_line_for_each_trial_colored_by_its_rank(direction):
    rows = make_rows(30)
    study = make_study(rows, objectives=[("val/accuracy", direction)])
    drawn = json.loads(drawn_plots(study)["Parallel coordinates"].content)
    *lines, _ = drawn["data"]
    expected = {row.number: value for row in rows if (value := last_value(row)) is not None}
    values = sorted(expected.values())
    assert sorted(float(line["customdata"][0][1]) for line in lines) == pytest.approx(values, 1e-3)
    dotted = [line["customdata"][0][1] for line in lines if line["line"]["dash"] == "dot"]
    pruned = [expected[row.number] for row in rows if row.state == "pruned"]
    assert sorted(map(float, dotted)) == pytest.approx(sorted(pruned), 1e-3)
    colors = {line["y"][0]: line["line"]["color"] for line in lines}
    worst, best = (0.0, 1.0) if direction == "max" else (1.0, 0.0)
    assert colors[best] == "rgb(217, 70, 239)"
    assert colors[worst] == "rgb(124, 199, 242)"
    assert drawn["layout"]["xaxis"]["ticktext"] == ["val/accuracy", *sorted(SPACE)]


def test_losses_over_a_wide_range_have_a_logarithmic_axis():
    losses = [3.0, 0.02, 100.0, 0.05, 0.03]
    rows = [
        replace(row, state="finished", values=(loss,), intermediate={1: math.inf, 2: loss})
        for row, loss in zip(make_rows(5), losses, strict=True)
    ]
    found = drawn_plots(make_study(rows, objectives=[("val/loss", "min")]))
    for title in ("History of val/loss", "val/loss during training", "optim.lr and val/loss"):
        assert json.loads(found[title].content)["layout"]["yaxis"]["type"] == "log"
    lines = json.loads(found["Parallel coordinates"].content)
    shown = {line["customdata"][0][1] for line in lines["data"] if "customdata" in line}
    assert shown == {"3", "0.02", "100", "0.05", "0.03"}
    ticks = [tick["text"] for tick in lines["layout"]["annotations"] if tick["x"] == 0]
    assert [ticks[0], ticks[-1]] == ["0.02", "100"]
    usual = json.loads(drawn_plots(make_study(make_rows(9)))["History of val/accuracy"].content)
    assert "type" not in usual["layout"]["yaxis"]


@pytest.mark.parametrize("count", [2, 3])
def test_objectives_over_a_wide_range_have_logarithmic_axes(count):
    objectives = [("val/accuracy", "max"), ("parameters", "min"), ("seconds", "min")][:count]
    rows = [
        replace(row, values=(row.values[0], 10.0 ** (row.number % 5), 2.0)[:count])
        for row in make_rows(12, objectives=objectives)
        if row.values
    ]
    plots = drawn_plots(make_study(rows, objectives=objectives))
    layout = json.loads(plots["Pareto front"].content)["layout"]
    layout = layout["scene"] if count == 3 else layout
    assert layout["yaxis"]["type"] == "log"
    assert "type" not in layout["xaxis"]
    lines = json.loads(plots["Parallel coordinates"].content)
    found = {line["customdata"][1][1] for line in lines["data"] if "customdata" in line}
    assert found == {f"{row.values[1]:.4g}" for row in rows}
    accuracies = {line["customdata"][0][1] for line in lines["data"] if "customdata" in line}
    assert accuracies == {f"{row.values[0]:.4g}" for row in rows}
    ticks = {tick["text"] for tick in lines["layout"]["annotations"] if tick["x"] == 1}
    assert {"1", "1e+04"} <= ticks
    parameters = json.loads(plots["optim.lr and parameters"].content)["layout"]
    assert (parameters["xaxis"]["type"], parameters["yaxis"]["type"]) == ("log", "log")


def test_pareto_front_is_that_of_optuna():
    rows = make_rows(40, objectives=TWO)
    rows[4] = replace(rows[4], values=rows[0].values)  # equal values are on the front together
    study = optuna.create_study(directions=["maximize", "minimize"])
    finished = [row for row in rows if row.state == "finished"]
    for row in finished:
        study.add_trial(optuna.trial.create_trial(values=list(row.values)))
    expected = [finished[trial.number].number for trial in study.best_trials]
    assert find_best(rows, TWO) == expected


def test_report_of_two_objectives_has_the_pareto_front(tmp_path):
    rows = make_rows(30, objectives=TWO)
    page, report = write(make_study(rows, objectives=TWO), tmp_path)
    front = contents(page)[0]["data"][1]
    assert sorted(front["customdata"]) == report["best"]
    assert report["importances"].keys() == {"val/accuracy", "seconds"}
    titles = list(drawn_plots(make_study(rows, objectives=TWO)))
    assert titles[0] == "Pareto front"
    assert {"History of seconds", "optim.lr and seconds", "Parallel coordinates"} < set(titles)


@pytest.mark.parametrize("count", [3, 4])
def test_three_and_four_objectives_have_a_page(tmp_path, count):
    objectives = [("val/accuracy", "max"), ("seconds", "min"), ("parameters", "min")]
    objectives = [*objectives, ("peak_memory", "min")][:count]
    rows = make_rows(12, objectives=objectives)
    page, report = write(make_study(rows, objectives=objectives), tmp_path)
    assert len(report["trials"][0]["values"]) == count
    assert ("Pareto front" in drawn_plots(make_study(rows, objectives=objectives))) == (count == 3)
    assert "trials on the Pareto front" in page.text


WHERE = "peak_memory < 5GB"


@pytest.mark.parametrize("count", [1, 2, 3])
def test_trials_outside_of_a_constraint_are_shown_as_such(tmp_path, count):
    objectives = [("val/accuracy", "max"), ("seconds", "min"), ("parameters", "min")][:count]
    rows = [
        replace(
            row,
            measured={"peak_memory": 1e9 * (row.number % 7)},
            is_feasible=row.number % 7 < 5,
            reason=row.reason or ("" if row.number % 7 < 5 else f"violates {WHERE}"),
        )
        for row in make_rows(30, objectives=objectives)
    ]
    study = make_study(rows, objectives=objectives, where=(WHERE,))
    page, report = write(study, tmp_path)
    assert WHERE in page.text
    assert report["where"] == [WHERE]
    assert all(rows[number].is_feasible for number in report["best"])
    assert len(contents(page)) == len(drawn_plots(study))
    columns, cells = tabulate_trials(rows, objectives, study.settings.space, None, ["peak_memory"])
    assert columns[2 + count] == "peak_memory"
    assert cells[3][2 + count] == "3000000000"
    plots = drawn_plots(study)
    finished = [row for row in rows if row.state == "finished"]
    outside = {row.number for row in finished if not row.is_feasible}
    history = {t["name"]: t for t in json.loads(plots["History of val/accuracy"].content)["data"]}
    assert set(history["outside of a constraint"]["x"]) == outside
    highest = max(row.values[0] for row in finished if row.is_feasible)
    assert max(y for y in history["best so far"]["y"] if y is not None) == highest
    lines = json.loads(plots["Parallel coordinates"].content)["data"]
    shown = [line for line in lines if "customdata" in line]
    if count == 1:
        pruned = {row.number for row in rows if row.state == "pruned"}
        dotted = [line for line in shown if line["line"]["dash"] == "dot"]
        assert len(dotted) == len(outside | pruned)
        return
    assert len(shown) == len(finished) - len(outside)
    front = {t["name"]: t for t in json.loads(plots["Pareto front"].content)["data"]}
    assert set(front["outside of a constraint"]["customdata"]) == outside
    assert sorted(front["Pareto front"]["customdata"]) == report["best"]
    orange = [line for line in shown if line["line"]["color"] == "#f97316"]
    assert len(orange) == len(report["best"])


@pytest.mark.parametrize("objectives", [ACCURACY, TWO])
def test_page_of_a_study_in_which_no_trial_satisfies_the_constraints(tmp_path, objectives):
    rows = [replace(row, is_feasible=False) for row in make_rows(30, objectives=objectives)]
    page, report = write(make_study(rows, objectives=objectives, where=(WHERE,)), tmp_path)
    assert report["best"] == []
    assert "No trial is finished and satisfies the constraints." in page.text


def test_best_trial_is_the_best_of_those_that_were_trained_and_satisfy_the_constraints(tmp_path):
    rows = [replace(row, state="finished", values=(0.5,), reason="") for row in make_rows(6)]
    rows[1] = replace(rows[1], is_feasible=False)
    rows[2] = replace(rows[2], same_as=0, run=None)
    page, _ = write(make_study(rows, where=(WHERE,)), tmp_path)
    assert "The best of 4 noisy values" in page.text


def test_the_first_of_equal_trials_is_the_best():
    rows = [replace(row, values=(0.5,)) for row in make_rows(2)]
    assert find_best(rows, ACCURACY) == [0]
    assert find_best(rows[::-1], ACCURACY) == [0]
    assert find_best([replace(rows[0], values=(math.nan,)), rows[1]], ACCURACY) == [1]
    lower = replace(rows[1], values=(0.4,))
    assert find_best([rows[0], lower], [("val/loss", "min")]) == [1]


def test_importance_is_highest_for_the_parameter_that_decides_and_always_the_same():
    rows, space = make_rows(60), make_study([]).settings.space
    found = compute_importances(rows, ACCURACY, space)["val/accuracy"]
    assert next(iter(found)) == "optim.lr"
    assert found["optim.lr"] > 0.5
    assert sum(found.values()) == pytest.approx(1)
    assert compute_importances(rows, ACCURACY, space)["val/accuracy"] == found


def test_importances_of_few_or_equal_trials_are_left_out():
    space = make_study([]).settings.space
    assert compute_importances(make_rows(11), ACCURACY, space) == {}
    equal = [replace(row, values=row.values and (0.5,)) for row in make_rows(60)]
    equal = [replace(row, intermediate=row.intermediate and {1: 0.5}) for row in equal]
    assert compute_importances(equal, ACCURACY, space) == {}


def importances_of_optuna(rows, space):
    """Return the importances of Optuna for the last values of finished and pruned trials."""
    study, distributions = optuna.create_study(direction="maximize"), space.distributions()
    for row in rows:
        if (value := last_value(row)) is not None:
            params = space.stored(row.params)
            own = {name: distributions[name] for name in params}
            study.add_trial(
                optuna.trial.create_trial(value=value, params=params, distributions=own)
            )
    share = min(0.5, max(0.1, 5 / len(study.trials)))
    evaluator = optuna.importance.PedAnovaImportanceEvaluator(target_quantile=share)
    return optuna.importance.get_param_importances(study, evaluator=evaluator)


@pytest.mark.parametrize("count", [12, 60])
def test_importances_are_those_of_optuna_with_the_last_values_of_pruned_trials(count):
    rows, space = make_rows(count), make_study([]).settings.space
    found = compute_importances(rows, ACCURACY, space)["val/accuracy"]
    assert found == pytest.approx(importances_of_optuna(rows, space))
    assert list(found) == list(importances_of_optuna(rows, space))


def test_space_with_conditions_has_a_page_with_the_importances_of_optuna(tmp_path):
    rows = make_rows(60, space=CONDITIONAL)
    study = make_study(rows, space=CONDITIONAL)
    page, report = write(study, tmp_path)
    expected = importances_of_optuna(rows, study.settings.space)
    assert expected.keys() == study.settings.space.distributions().keys()
    assert report["importances"]["val/accuracy"] == pytest.approx(expected)
    plots = drawn_plots(study)
    sgd = [row for row in rows if row.params["optim.name"] == "sgd" and last_value(row)]
    for name, shown in (("optim.lr", "optim.lr if optim.name=sgd"), ("optim.momentum",) * 2):
        (points,) = json.loads(plots[f"{shown} and val/accuracy"].content)["data"]
        assert sorted(points["x"]) == sorted(row.params[name] for row in sgd)
    lines = json.loads(plots["Parallel coordinates"].content)["data"]
    measured = [row for row in rows if last_value(row)]
    assert sum("customdata" in line for line in lines) == len(measured)
    assert "optim.momentum, if optim.name is sgd" in page.text
    columns, cells = tabulate_trials(rows, ACCURACY, study.settings.space)
    at = columns.index("optim.momentum")
    assert {line[at] == "" for line, row in zip(cells, rows, strict=True) if row in sgd} == {False}
    assert sum(line[at] != "" for line in cells) == sum(
        row.params["optim.name"] == "sgd" for row in rows
    )


def test_parameter_whose_bad_values_were_pruned_keeps_its_importance(tmp_path):
    """Among the finished trials, which all have a good learning rate, only dropout matters."""
    rows = []
    for row in make_rows(60):
        lr, dropout = row.params["optim.lr"], row.params["task.dropout"]
        value = 0.9 - 0.3 * (lr < 0.04) - 0.001 * dropout
        state = "pruned" if lr < 0.04 else "finished"
        values = (value,) if state == "finished" else None
        rows.append(replace(row, state=state, values=values, intermediate={1: value}))
    study = make_study(rows)
    finished = [row for row in rows if row.state == "finished"]
    alone = compute_importances(finished, ACCURACY, study.settings.space)["val/accuracy"]
    assert next(iter(alone)) == "task.dropout"
    page, report = write(study, tmp_path)
    assert next(iter(report["importances"]["val/accuracy"])) == "optim.lr"
    counts = {"finished": len(finished), "pruned": 60 - len(finished)}
    assert report["importance_trials"] == counts
    assert (
        f"the best of {counts['finished']} finished and {counts['pruned']} pruned trials (with the "
        "last value), by PED-ANOVA"
    ) in page.text


def test_plots_show_the_last_values_of_pruned_trials_as_such():
    rows = make_rows(30)
    plots = drawn_plots(make_study(rows))
    pruned = {row.number: last_value(row) for row in rows if row.state == "pruned"}
    history = json.loads(plots["History of val/accuracy"].content)["data"]
    crosses = next(trace for trace in history if trace["name"] == "pruned")
    assert dict(zip(crosses["x"], crosses["y"], strict=True)) == pruned
    for parameter in SPACE:
        (points,) = json.loads(plots[f"{parameter} and val/accuracy"].content)["data"]
        marker = points["marker"]
        drawn = zip(marker["color"], points["y"], marker["symbol"], strict=True)
        found = {number: y for number, y, symbol in drawn if symbol == "x"}
        assert found == pruned


def test_pruned_trial_is_never_the_best_so_far():
    rows = [replace(row, state="finished", values=(0.5,)) for row in make_rows(3)]
    rows[1] = replace(rows[1], state="pruned", values=None, intermediate={1: 0.9})
    rows[2] = replace(rows[2], state="pruned", values=None, intermediate={1: math.nan})
    history = json.loads(drawn_plots(make_study(rows))["History of val/accuracy"].content)["data"]
    so_far = next(trace for trace in history if trace["name"] == "best so far")
    assert set(so_far["y"]) == {0.5}
    crosses = next(trace for trace in history if trace["name"] == "pruned")
    assert crosses["x"] == [1]


def test_table_marks_the_best_trial_and_gives_reasons():
    rows, space = make_rows(12), make_study([]).settings.space
    columns, cells = tabulate_trials(rows, ACCURACY, space)
    assert columns == ["trial", "state", "val/accuracy", "evaluations", WALL, *SPACE, "reason"]
    assert [line[0] for line in cells if "*" in line[0]] == [f"{find_best(rows, ACCURACY)[0]} *"]
    assert cells[2][-1] == "worse than the median"
    assert cells[2][2] == ""
    columns, _ = tabulate_trials(rows[:1], ACCURACY, space)
    assert columns[-1] != "reason"
    assert tabulate_trials([], ACCURACY, space)[1] == []
    _, cells = tabulate_trials(rows, ACCURACY, space, [3])
    assert [line[0] for line in cells if "*" in line[0]] == ["3 *"]


def test_table_has_a_whole_sentence_of_each_reason_and_names_the_log_that_has_the_rest():
    space = make_study([]).settings.space
    whole = "RecipeError: recipe.py, line 3: ValueError: " + "a reason\nof many words " * 10
    more = (
        "OutOfMemory: no memory; the batch is large. Use --micro-batch-size 8, or " + "less " * 20
    )
    keys = "ValueError: missing keys: " + "layer.weight, " * 200
    rows = [
        replace(row, state="failed", values=None, reason=reason)
        for row, reason in zip(make_rows(4), [whole, more, "short", keys], strict=True)
    ]
    _, cells = tabulate_trials(rows, ACCURACY, space)
    shown = [line[-1] for line in cells]
    assert shown[0] == " ".join(whole.split())
    assert shown[1] == "OutOfMemory: no memory; the batch is large. See trials/0001.log"
    assert shown[2] == "short"
    assert shown[3].endswith("layer.weight, ... See trials/0003.log")
    assert len(shown[3]) < 450


def test_report_that_did_not_change_is_not_written_again(tmp_path):
    rows = make_rows(12)
    write(make_study(rows), tmp_path)
    (tmp_path / "report.html").write_text("the page of before")
    write_report(make_study(rows), tmp_path / "report.html", tmp_path / "report.json")
    assert (tmp_path / "report.html").read_text() == "the page of before"
    page, _ = write(make_study(rows[:-1]), tmp_path)
    assert "Search of digits" in page.text


def test_study_of_few_trials_is_described_without_importing_the_importances():
    code = (
        "import sys\nfrom surestep.tuning.report import describe_study\n"
        "from tests.tuning.studies import make_rows, make_study\n"
        "describe_study(make_study(make_rows(5)))\n"
        "assert 'optuna' not in sys.modules"
    )
    subprocess.run([PYTHON, "-c", code], check=True)


def test_report_leaves_the_settings_of_optuna_as_they_are(tmp_path, capfd):
    optuna.logging.set_verbosity(optuna.logging.INFO)
    try:
        write(make_study(make_rows(12)), tmp_path)
        assert optuna.logging.get_verbosity() == optuna.logging.INFO
    finally:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
    assert capfd.readouterr().err == ""


def test_description_alone_is_that_of_the_file(tmp_path):
    study = make_study(make_rows(12))
    _, report = write(study, tmp_path)
    assert describe_study(study) == report


def test_winner_is_shown_with_its_confirmed_values_and_test_metrics(tmp_path):
    study = make_study(make_rows(30))
    study.folder = tmp_path
    confirmed = [
        {"number": 3, "values": [0.91, 0.93], "mean": 0.92, "spread": 0.0141},
        {"number": 6, "values": [0.9, "nan"], "mean": "nan", "spread": "nan"},
    ]
    winner = {"number": 3, "test": {"test/accuracy": 0.905}, "confirmed": confirmed}
    (tmp_path / "result.json").write_text(json.dumps({"format": 1, "winner": winner, "test": {}}))
    page, report = write(study, tmp_path)
    assert report["winner"]["confirmed"][1]["values"] == [0.9, None]
    assert report["winner"]["test"] == {"test/accuracy": 0.905}
    assert "Winner: trial 3" in page.text
    assert repr(study.rows()[3].params["optim.lr"]) in page.text
    assert "0.905 (measured once, at the end)" in page.text
    for text in ("seed 2", "0.0141", "failed", "standard deviation"):
        assert text in page.text
    assert "mean val/accuracy of the winner, trial 3" in page.text
    assert "best val/accuracy" not in page.text
    marked = [attrs for tag, attrs in page.elements if tag == "tr" and attrs.get("class") == "best"]
    assert (len(marked), find_winners(study, study.rows())) == (1, [3])


def test_plots_show_the_winner_and_not_the_best_single_value(tmp_path):
    study = make_study(make_rows(30))
    study.folder = tmp_path
    confirmed = [{"number": 3, "values": [0.91], "mean": 0.91, "spread": 0.0}]
    winner = {"number": 3, "test": None, "confirmed": confirmed}
    (tmp_path / "result.json").write_text(json.dumps({"winner": winner}))
    page, report = write(study, tmp_path)
    assert report["best"] != [3]
    history, during, *_ = [plot["data"] for plot in contents(page) if len(plot["data"]) != 1]
    colors = dict(zip(history[0]["x"], history[0]["marker"]["color"], strict=True))
    assert [number for number, color in colors.items() if color != colors[0]] == [3]
    (best,) = [line for line in during if line["legendgroup"] == "best"]
    assert best["hovertemplate"].startswith("<b>Trial 3,")


def test_single_other_seed_has_no_standard_deviation_on_the_page(tmp_path):
    study = make_study(make_rows(5))
    study.folder = tmp_path
    confirmed = [{"number": 0, "values": [0.91], "mean": 0.91, "spread": 0.0}]
    winner = {"number": 0, "test": None, "confirmed": confirmed}
    (tmp_path / "result.json").write_text(json.dumps({"winner": winner}))
    page, _ = write(study, tmp_path)
    assert "seed 1" in page.text
    assert "standard deviation" not in page.text


@pytest.mark.parametrize(
    ("count", "name", "is_biased"),
    [(1, "val/accuracy", False), (2, "val/accuracy", True), (5, "parameters", False)],
)
def test_bias_is_explained_only_if_there_is_one(tmp_path, count, name, is_biased):
    study = make_study(make_rows(count)[:2], objectives=[(name, "max")])
    page, _ = write(study, tmp_path)
    assert ("--confirm 2 trains the best 2 again" in page.text) == is_biased
    assert ("noisy" in page.text) == is_biased


def test_winner_of_before_is_left_out_once_a_trial_is_better(tmp_path):
    study = make_study(make_rows(30))
    study.folder = tmp_path
    winner = {"number": 3, "test": None, "confirmed": None}
    assert find_best(study.rows(), ACCURACY) != [3]
    (tmp_path / "result.json").write_text(json.dumps({"winner": winner}))
    page, report = write(study, tmp_path)
    assert report["winner"] is None
    assert "--confirm 3" in page.text
    assert f"Best trial {report['best'][0]}" in page.text


@pytest.mark.parametrize("text", ["{", "[]", '{"winner": {"number": "x"}}', '{"winner": 3}'])
def test_unreadable_result_is_an_error_that_names_the_file(tmp_path, text):
    study = make_study(make_rows(3))
    study.folder = tmp_path
    (tmp_path / "result.json").write_text(text)
    with pytest.raises(RunError, match=r"result\.json cannot be read"):
        describe_study(study)
