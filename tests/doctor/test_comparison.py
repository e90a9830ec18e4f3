"""How the findings of other tools are counted; the tools themselves are not installed here."""

from tests.doctor.planted.compare import (
    PAGE,
    count_warnings,
    find_new,
    is_examined,
    render_page,
)
from tests.doctor.planted.corpus import plant_all
from tests.doctor.planted.run import Result
from tests.doctor.planted.tools import TOOLS, read_lines


def report(*found):
    return Result([{"rule": rule, "at": at, "severity": severity} for rule, at, severity in found])


def test_lines_of_torchfix_belong_to_the_script_of_their_folder():
    text = "1/train.py:5:1: TOR101 old function\nFinished.\n./0/data.py:7:3: TOR401 seed\n"
    first, second = read_lines(text, 2)
    assert first.found == [
        {"rule": "TOR401", "severity": "info", "at": "data.py", "message": "seed"}
    ]
    assert [(f["rule"], f["severity"]) for f in second.found] == [("TOR101", "warning")]


def test_only_what_the_correct_script_does_not_have_is_found():
    correct = report(("A", "train.py:1", "warning"), ("B", "train.py:2", "warning"))
    mutant = report(("A", "train.py:1", "warning"), ("C", "train.py:3", "info"))
    assert find_new(mutant, correct) == ["C"]
    assert find_new(correct, correct) == []


def test_a_second_report_at_one_line_is_new():
    once, twice = [report(*[("A", "train.py:1", "warning")] * count) for count in (1, 2)]
    assert find_new(twice, once) == ["A"]


def test_information_about_a_correct_script_is_no_warning():
    results = [
        report(("A", "", "info"), ("B", "", "warning")),
        report(("C", "", "error")),
        Result(),
    ]
    assert count_warnings(results) == (2, 2)


def test_a_script_that_failed_without_a_report_is_not_examined():
    assert not is_examined(Result(error="no model was found"))
    assert is_examined(Result(report(("A", "", "info")).found, "later error"))
    assert is_examined(Result())


def test_page_has_a_row_for_each_group_of_rules():
    mutants = list(plant_all(["lbfgs"], ["SS1", "SS2"]))
    found = {"surestep": {m.name: True for m in mutants}, TOOLS[0].name: {mutants[0].name: False}}
    page = render_page(mutants, ["lbfgs"], found, {"surestep": (0, 0), TOOLS[0].name: (3, 1)})
    groups = [sum(m.planter.rule.startswith(code) for m in mutants) for code in ("SS1", "SS2")]
    assert f"| SS1 steps and gradients | {groups[0]} | {groups[0]} | 0 |" in page
    assert f"| **all** | {sum(groups)} | **{sum(groups)}** (100.0%) | **0** (0.0%) |" in page
    assert f"| scripts that it examined | {sum(groups)} | {sum(groups)} | 1 |" in page
    assert "| none | 3 in 1 scripts |" in page
    assert TOOLS[0].install in page


def test_written_page_names_the_versions_that_the_command_uses():
    page = PAGE.read_text(encoding="utf-8")
    assert all(tool.install in page for tool in TOOLS)
