import json
import math
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser

import optuna
import pytest

from surestep.base.errors import RunError
from surestep.tuning.importances import compute_importances
from surestep.tuning.page import describe_page
from surestep.tuning.report import describe_study, find_winners, write_report
from surestep.tuning.table import find_best, tabulate_trials
from tests.tuning.studies import ACCURACY, CONDITIONAL, HOSTILE, SPACE, make_rows, make_study

PYTHON = sys.executable  # not the one of `warm_python`
WALL = "wall time"
TWO = (("val/accuracy", "max"), ("seconds", "min"))


class Page(HTMLParser):
    """What a browser reads of a page before its scripts run: elements with attributes, data."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.data = [], None
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data):
        if self.elements and self.elements[-1][1].get("id") == "data" and self.data is None:
            self.data = json.loads(data)


def last_value(row):
    """Return the value of a finished trial, the last one of a pruned trial, or None."""
    if row.state == "pruned":
        return row.intermediate[max(row.intermediate)]
    return row.values[0] if row.state == "finished" else None


def write(study, tmp_path):
    write_report(study, tmp_path / "report.html", tmp_path / "report.json")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    return Page(page), json.loads((tmp_path / "report.json").read_text())


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


def test_number_that_is_not_finite_is_null_in_json(tmp_path):
    rows = make_rows(12)
    rows[0] = replace(rows[0], intermediate={1: math.nan, 2: math.inf, 3: 0.5})
    rows[1] = replace(rows[1], values=(math.inf,))
    page, report = write(make_study(rows), tmp_path)
    assert page.data["trials"][1]["values"] == [None]
    assert report["trials"][0]["intermediate"] == {"1": None, "2": None, "3": 0.5}
    assert report["trials"][1]["values"] == {"val/accuracy": None}
    assert report["best"] != [1]


def test_page_loads_nothing_and_allows_no_script_but_its_own(tmp_path):
    page, _ = write(make_study(make_rows(12)), tmp_path)
    links = [attrs for _, attrs in page.elements if {"src", "href", "srcset"} & attrs.keys()]
    assert links == [{"rel": "icon", "href": "data:,"}]
    assert {tag for tag, _ in page.elements} & {"img", "iframe", "object", "base"} == set()
    (policy,) = [a["content"] for t, a in page.elements if t == "meta" and "http-equiv" in a]
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy


def test_names_and_choices_are_only_in_the_data_of_the_page(tmp_path):
    study = make_study(make_rows(30, space=HOSTILE), space=HOSTILE)
    page, report = write(study, tmp_path)
    usual = {"html", "head", "meta", "link", "title", "style", "body", "noscript", "script"}
    assert {tag for tag, _ in page.elements} == usual
    assert [trial["params"] for trial in report["trials"]] == [row.params for row in study.rows()]


def test_trials_of_the_page_are_those_of_the_json(tmp_path):
    study = make_study(make_rows(60, space=HOSTILE), space=HOSTILE)
    page, report = write(study, tmp_path)
    labels = {one["key"]: one["labels"] for one in page.data["parameters"]}
    assert labels["task.mixed"] == ["none", '"none"', "1", '"1"', "2.5", "false", "[1, 2]"]
    for shown, trial in zip(page.data["trials"], report["trials"], strict=True):
        assert shown["values"] == (trial["values"] and list(trial["values"].values()))
        for name, value in trial["params"].items():
            at = shown["params"][name]
            assert (HOSTILE[name][at] if labels[name] else at) == value
        same = ("number", "state", "intermediate", "seconds", "evaluations", "run", "reason")
        assert [shown[key] for key in same] == [trial[key] for key in same]
    _, cells = tabulate_trials(study.rows(), ACCURACY, study.settings.space)
    assert {line[-2] for line in cells} == set(labels["task.mixed"])


def test_choices_that_are_numbers_are_in_their_order():
    space = {**SPACE, "task.width": [64, 16, 32.5]}
    rows = make_rows(5, space=space)
    page = describe_page(describe_study(make_study(rows, space=space)))
    labels = page["parameters"][-1]["labels"]
    assert labels == [16, 32.5, 64]
    shown = [labels[trial["params"]["task.width"]] for trial in page["trials"]]
    assert shown == [row.params["task.width"] for row in rows]


def test_page_of_200_trials_is_small(tmp_path, monkeypatch):
    curve = {at: 0.123456789012345 * at for at in range(1, 21)}
    space = {**SPACE, **{f"task.number{at}": "uniform(0, 1)" for at in range(4)}}
    rows = [replace(row, intermediate=curve) for row in make_rows(200, space=space)]
    monkeypatch.setattr("surestep.tuning.report._compute_importances", lambda *_: {})
    write_report(make_study(rows, space=space), tmp_path / "report.html", None)
    assert (tmp_path / "report.html").stat().st_size < 600_000


def test_pareto_front_is_that_of_optuna():
    rows = make_rows(40, objectives=TWO)
    rows[4] = replace(rows[4], values=rows[0].values)  # equal values are on the front together
    study = optuna.create_study(directions=["maximize", "minimize"])
    finished = [row for row in rows if row.state == "finished"]
    for row in finished:
        study.add_trial(optuna.trial.create_trial(values=list(row.values)))
    expected = [finished[trial.number].number for trial in study.best_trials]
    assert find_best(rows, TWO) == expected


WHERE = "peak_memory < 5GB"


def test_best_trial_is_the_best_of_those_that_were_trained_and_satisfy_the_constraints():
    rows = [replace(row, state="finished", values=(0.5,), reason="") for row in make_rows(6)]
    rows[1] = replace(rows[1], is_feasible=False)
    rows[2] = replace(rows[2], same_as=0, run=None)
    page = describe_page(describe_study(make_study(rows, where=(WHERE,))))
    assert "The best of 4 noisy values" in page["bias"]


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
    assert ["optim.momentum, if optim.name is sgd", "uniform(0.5, 0.99)"] in page.data["space"]
    sgd = [row for row in rows if row.params["optim.name"] == "sgd"]
    for shown, row in zip(page.data["trials"], rows, strict=True):
        keys = {"optim.lr if optim.name=sgd", "optim.momentum"}
        keys = keys if row in sgd else {"optim.lr if optim.name=adamw"}
        assert shown["params"].keys() == {"optim.name", "task.width", *keys}
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
    _, report = write(study, tmp_path)
    assert next(iter(report["importances"]["val/accuracy"])) == "optim.lr"
    counts = {"finished": len(finished), "pruned": 60 - len(finished)}
    assert report["importance_trials"] == counts


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
    assert page.data["recipe"] == "digits"


def test_page_of_few_trials_is_written_without_importing_optuna(tmp_path):
    code = (
        "import sys\nfrom pathlib import Path\nfrom surestep.tuning.report import write_report\n"
        "from tests.tuning.studies import make_rows, make_study\n"
        "write_report(make_study(make_rows(5)), Path(sys.argv[1]), None)\n"
        "assert {'optuna', 'torch'} & sys.modules.keys() == set()"
    )
    subprocess.run([PYTHON, "-c", code, str(tmp_path / "report.html")], check=True)


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


@pytest.mark.parametrize(
    ("count", "name", "is_biased"),
    [(1, "val/accuracy", False), (2, "val/accuracy", True), (5, "parameters", False)],
)
def test_bias_is_explained_only_if_there_is_one(count, name, is_biased):
    study = make_study(make_rows(count)[:2], objectives=[(name, "max")])
    text = describe_page(describe_study(study))["bias"]
    assert ("--confirm 2 trains the best 2 again" in text) == is_biased
    assert ("noisy" in text) == is_biased


def test_winner_of_before_is_left_out_once_a_trial_is_better(tmp_path):
    study = make_study(make_rows(30))
    study.folder = tmp_path
    winner = {"number": 3, "test": None, "confirmed": None}
    assert find_best(study.rows(), ACCURACY) != [3]
    (tmp_path / "result.json").write_text(json.dumps({"winner": winner}))
    page, report = write(study, tmp_path)
    assert report["winner"] is None
    assert page.data["winner"] is None
    assert "--confirm 3" in page.data["bias"]
    assert find_winners(study, study.rows()) == report["best"]


@pytest.mark.parametrize("text", ["{", "[]", '{"winner": {"number": "x"}}', '{"winner": 3}'])
def test_unreadable_result_is_an_error_that_names_the_file(tmp_path, text):
    study = make_study(make_rows(3))
    study.folder = tmp_path
    (tmp_path / "result.json").write_text(text)
    with pytest.raises(RunError, match=r"result\.json cannot be read"):
        describe_study(study)
