import json
import re
from dataclasses import replace

import pytest

from surestep.doctor.finding import SEVERITIES, Edit, Finding, to_json
from surestep.doctor.problem import Problem
from surestep.doctor.report.formats import format_github, format_text, summarize
from surestep.doctor.report.sarif import to_sarif
from surestep.doctor.rule import load_rule, load_rules

FINDING = Finding(
    rule="SS101",
    name="missing-zero-grad",
    severity="error",
    file="src/a.py",
    line=8,
    column=5,
    message="`optimizer.step()` uses old gradients.",
    evidence={"loop_line": 5},
    fix="Call zero_grad().",
    end_column=21,
    source="    optimizer.step()",
)


def marked(source, start, end):
    """Return the part of the shown line above the carets."""
    text = format_text(replace(FINDING, source=source, column=start + 1, end_column=end + 1))
    _, shown, marks, _ = text.splitlines()
    first, last = marks.index("^"), marks.rindex("^")
    return shown[first : last + 1]


def test_text_shows_position_message_source_marks_and_fix():
    assert format_text(FINDING).splitlines() == [
        "src/a.py:8:5 SS101 missing-zero-grad `optimizer.step()` uses old gradients.",
        "  8 |     optimizer.step()",
        "    |     ^^^^^^^^^^^^^^^^",
        "  Fix: Call zero_grad().",
    ]


def test_text_of_a_finding_without_a_source_is_shorter():
    assert len(format_text(replace(FINDING, source="", fix="")).splitlines()) == 1


@pytest.mark.parametrize("indent", ["", "    ", "\t", "\t  "])
def test_marks_are_below_what_is_wrong(indent):
    source = f"{indent}opt.step()  # comment"
    assert marked(source, len(indent), len(indent) + 10) == "opt.step()"


def test_long_line_is_shortened_around_what_is_wrong():
    source = "x = 1; " * 100 + "opt.step(); " + "y = 2; " * 100
    assert marked(source, 700, 710) == "opt.step()"
    assert all(len(line) < 120 for line in format_text(FINDING).splitlines())
    text = format_text(replace(FINDING, source=source, column=701, end_column=711))
    assert max(map(len, text.splitlines())) < 120


def test_wide_characters_take_two_columns():
    lines = format_text(replace(FINDING, source="名前 = a.step()", column=6, end_column=14))
    assert lines.splitlines()[2] == "    |        ^^^^^^^^"


def test_control_characters_are_escaped():
    text = format_text(replace(FINDING, file="\x1b[2Ja.py", source="x = '\x1b[2J'"))
    assert "\x1b" not in text


@pytest.mark.parametrize(
    ("counts", "line"),
    [
        ((0, 3, 0, 0), "0 findings in 3 files."),
        ((0, 1, 2, 0), "0 findings in 1 file, 2 could not be read."),
        ((0, 0, 0, 4), "0 findings in 0 files, 4 excluded."),
    ],
)
def test_summary_counts_files(counts, line):
    assert summarize([FINDING] * counts[0], *counts[1:]) == line


def test_summary_counts_findings_by_severity():
    severities = ("error", "warning", "warning", "speed", "info")
    found = [replace(FINDING, severity=severity) for severity in severities]
    assert summarize(found, 2, 0, 0) == (
        "5 findings (1 error, 2 warnings, 1 speed, 1 info) in 2 files. `surestep explain SS101` "
        "explains a rule."
    )


def test_json_form_holds_every_field():
    assert json.loads(json.dumps(to_json([FINDING]))) == {
        "version": 1,
        "findings": [
            {
                "rule": "SS101",
                "name": "missing-zero-grad",
                "severity": "error",
                "file": "src/a.py",
                "line": 8,
                "column": 5,
                "message": "`optimizer.step()` uses old gradients.",
                "evidence": {"loop_line": 5},
                "fix": "Call zero_grad().",
                "end_column": 21,
                "source": "    optimizer.step()",
                "assumed": "",
                "fixable": False,
                "confidence": "certain",
            }
        ],
    }


def test_every_form_says_what_was_assumed():
    found = replace(FINDING, severity="warning", assumed="Nothing else zeroes them.")
    assert "  Assumed: Nothing else zeroes them." in format_text(found).splitlines()
    (described,) = to_json([found])["findings"]
    assert (described["confidence"], described["assumed"]) == ("assumed", found.assumed)
    assert "old gradients.%0ANothing else zeroes them.%0ACall" in format_github(found)
    (result,) = sarif([found])["results"]
    assert result["properties"] == {"confidence": "assumed"}
    assert " Nothing else zeroes them. Call " in result["message"]["text"]


def test_assumed_error_is_a_warning_that_is_not_fixed():
    rule, edit = load_rule("SS101"), Edit(0, 1, "")
    problem = Problem("The mistake.", edits=(edit,))
    certain, assumed = map(rule.to_finding, (problem, replace(problem, assumed="A sentence.")))
    assert (certain.severity, certain.edits, certain.confidence) == ("error", (edit,), "certain")
    assert (assumed.severity, assumed.edits, assumed.confidence) == ("warning", (), "assumed")
    speed = rule.to_finding(replace(problem, severity="speed", assumed="A sentence."))
    assert speed.severity == "speed"


@pytest.mark.parametrize(
    ("severity", "level"),
    [("error", "error"), ("warning", "warning"), ("speed", "notice"), ("info", "notice")],
)
def test_github_command_annotates_the_line(severity, level):
    assert format_github(replace(FINDING, severity=severity)) == (
        f"::{level} file=src/a.py,line=8,col=5,title=SS101 missing-zero-grad::"
        "`optimizer.step()` uses old gradients.%0ACall zero_grad()."
    )


def test_github_command_escapes_what_would_end_it():
    text = format_github(replace(FINDING, file="a,b:c.py", message="100%\n::error::x", fix=""))
    assert text.startswith("::error file=a%2Cb%3Ac.py,line=8")
    assert text.endswith("::100%25%0A::error::x")
    assert "\n" not in text


def test_github_command_of_a_notebook_names_the_cell():
    text = format_github(replace(FINDING, file="a.ipynb:cell 3"))
    assert "file=a.ipynb,title" in text
    assert "::Cell 3, line 8: `optimizer" in text


# From the schema of SARIF 2.1.0: required properties, and the values of enumerations.
LEVELS = {"none", "note", "warning", "error"}


def sarif(findings, problems=()):
    log = json.loads(json.dumps(to_sarif(findings, load_rules(), problems)))
    assert log["version"] == "2.1.0"
    (run,) = log["runs"]
    return run


def test_sarif_has_what_github_requires():
    run = sarif([FINDING])
    rules = run["tool"]["driver"]["rules"]
    assert run["tool"]["driver"]["name"] == "surestep"
    for rule in rules:
        assert re.fullmatch(r"SS\d{3}", rule["id"])
        assert rule["shortDescription"]["text"]
        assert rule["fullDescription"]["text"]
        assert rule["help"]["text"]
        assert rule["defaultConfiguration"]["level"] in LEVELS
    (result,) = run["results"]
    assert rules[result["ruleIndex"]]["id"] == result["ruleId"] == "SS101"
    assert result["level"] == "error"
    assert result["message"]["text"].startswith("`optimizer.step()` uses old gradients.")
    (location,) = result["locations"]
    assert location["physicalLocation"] == {
        "artifactLocation": {"uri": "src/a.py"},
        "region": {"startLine": 8, "startColumn": 5, "endColumn": 21},
    }


@pytest.mark.parametrize("severity", SEVERITIES)
def test_every_severity_has_a_level_of_sarif(severity):
    assert sarif([replace(FINDING, severity=severity)])["results"][0]["level"] in LEVELS


@pytest.mark.parametrize(
    ("file", "uri"),
    [("a b/ü%.py", "a%20b/%C3%BC%25.py"), ("./a.py", "a.py"), ("/gone/a.py", "file:///gone/a.py")],
)
def test_path_in_sarif_is_an_address(file, uri):
    (result,) = sarif([replace(FINDING, file=file)])["results"]
    (location,) = result["locations"]
    assert location["physicalLocation"]["artifactLocation"]["uri"] == uri


def test_sarif_of_a_notebook_names_the_cell():
    (result,) = sarif([replace(FINDING, file="a.ipynb:cell 3")])["results"]
    assert result["message"]["text"].startswith("Cell 3, line 8: ")
    assert result["locations"][0]["physicalLocation"] == {
        "artifactLocation": {"uri": "a.ipynb"},
        "region": {"startLine": 1},
    }


def test_sarif_reports_unreadable_files():
    (invocation,) = sarif([], ["a.py:3: invalid syntax."])["invocations"]
    (notification,) = invocation["toolExecutionNotifications"]
    assert notification["message"]["text"] == "a.py:3: invalid syntax."
