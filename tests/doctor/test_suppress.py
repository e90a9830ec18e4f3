from dataclasses import replace
from pathlib import Path

import pytest

from surestep.doctor.check import check_file
from surestep.doctor.problem import Location, Problem
from surestep.doctor.report.file_report import FileReport
from surestep.doctor.rule import load_rules
from surestep.doctor.source.files import Project, parse_source
from surestep.doctor.suppress import read_suppressions
from surestep.doctor.watch.watch import WatchSession
from surestep.doctor.watcher import Watcher
from tests.doctor.scripts import BAD, notebook

RULES = [rule for rule in load_rules() if rule.code == "SS101"]
STEP = "    optimizer.step()\n"


def check(text, name="a.py"):
    report = FileReport(name)
    file = parse_source(Path(name), text.encode())
    return check_file(file, RULES, Project(), report), report.notes


@pytest.mark.parametrize(
    "comment",
    [
        "# surestep: ignore[SS101]",
        "#surestep:ignore[SS101] the sum is wanted",
        "# surestep: ignore[SS702, SS101] reason",
        "# surestep: ignore[missing-zero-grad] reason",
        "# surestep: ignore[SS1] reason",
        "# noqa  # surestep: ignore[SS101] reason",
        "# Surestep: Ignore[ss101] reason",
    ],
)
def test_comment_suppresses_the_finding_of_its_line(comment):
    found, notes = check(BAD.replace(STEP, f"    optimizer.step()  {comment}\n"))
    assert found == []
    assert [note for note in notes if "SS702" not in note] == []


@pytest.mark.parametrize(
    "text",
    [
        BAD.replace(STEP, "    optimizer.step()  # surestep: ignore[SS999] reason\n"),
        BAD.replace(STEP, '    optimizer.step(), "# surestep: ignore[SS101]"\n'),
        BAD.replace(STEP, f"    # surestep: ignore[SS101] another line\n{STEP}"),
        BAD.replace("for _", "for _ in range(2):  # surestep: ignore[SS101]\n  for _"),
        f"# surestep: ignore-file[SS999] reason\n{BAD}",
    ],
)
def test_other_comment_or_text_suppresses_nothing(text):
    found, _ = check(text)
    assert [finding.rule for finding in found] == ["SS101"]


def test_comment_on_the_first_line_of_a_statement_covers_all_its_lines():
    statement = "    (  # surestep: ignore[SS101] reason\n        optimizer.step()\n    )\n"
    assert check(BAD.replace(STEP, statement))[0] == []


@pytest.mark.parametrize(
    "statement",
    [
        "    (\n        optimizer.step()\n    )  # surestep: ignore[SS101] reason\n",
        "    print(\n        optimizer.step(),  # surestep: ignore[SS101]\n        1,\n    )\n",
    ],
)
def test_comment_on_another_line_of_a_statement_covers_all_its_lines(statement):
    assert check(BAD.replace(STEP, statement))[0] == []


def test_comment_inside_a_body_does_not_cover_the_statement_around_it():
    text = BAD.replace(STEP, "    print(1)  # surestep: ignore[SS101]\n    optimizer.step()\n")
    assert len(check(text)[0]) == 1
    match = (
        "    match optimizer.step():\n        case _:\n            x = 1  # surestep: ignore[SS1]\n"
    )
    assert len(check(BAD.replace(STEP, match))[0]) == 1


def test_comment_in_a_line_of_its_own_suppresses_nothing():
    text = "for x in y:\n    # surestep: ignore[SS101] reason\n    step(x)\n"
    assert read_suppressions(parse_source(Path("a.py"), text.encode())).of_lines == {}


def test_comment_behind_a_statement_in_one_line_covers_it():
    one_line = "    if True: optimizer.step()  # surestep: ignore[SS101] reason\n"
    assert check(BAD.replace(STEP, one_line))[0] == []


@pytest.mark.parametrize(
    "comment", ["# surestep ignore[SS101]", "# surestep: disable=SS101", "#Surestep: noqa SS101"]
)
def test_comment_that_seems_to_be_meant_is_reported(comment):
    found, notes = check(BAD.replace(STEP, f"    optimizer.step()  {comment}\n"))
    assert len(found) == 1
    (note,) = notes
    assert note.startswith("a.py:8: the comment suppresses nothing. Write `# surestep: ignore[")
    for prose in ("is a library", "ignores this file's seeds", "skips nothing here"):
        assert check(f"{BAD}# surestep {prose}\n")[1] == []


def test_comment_for_the_file_may_be_anywhere_in_it():
    assert check(f"{BAD}# surestep: ignore-file[SS101] reason\n")[0] == []


def test_comment_in_a_notebook_suppresses_the_finding_of_its_cell():
    comment = "optimizer.step()  # surestep: ignore[SS101] reason"
    text = notebook("import torch\n", BAD.replace("optimizer.step()", comment))
    assert check(text, "a.ipynb")[0] == []
    assert check(notebook("import torch\n", BAD), "a.ipynb")[0] != []


def test_unknown_rule_in_a_comment_is_reported():
    comment = "# surestep: ignore[missing-zero-grads]"
    found, notes = check(BAD.replace(STEP, f"    optimizer.step()  {comment}\n"))
    assert len(found) == 1
    (note,) = notes
    expected = "a.py:8: There is no rule 'missing-zero-grads'. Did you mean 'missing-zero-grad'"
    assert note.startswith(expected)


def test_comment_without_a_rule_is_reported():
    found, notes = check(BAD.replace(STEP, "    optimizer.step()  # surestep: ignore\n"))
    assert len(found) == 1
    assert notes == ["a.py:8: the comment names no rule. Write `# surestep: ignore[SS101] reason`."]


class DiffersBetweenRanks(Watcher):
    """A rule that finds something only by comparing the ranks."""

    def __init__(self, path):
        self._path = path

    def report_rank(self, run):
        return 1

    def observe_ranks(self, facts):
        yield Problem("The ranks differ.", location=Location(str(self._path), 1), since_step=1)


def test_notes_of_all_ranks_and_of_their_comparison_are_merged(tmp_path):
    path = tmp_path / "train.py"
    path.write_text("x = 1  # surestep: ignore[SS99999] reason\n")
    (rule,) = RULES
    session = WatchSession([replace(rule, watcher=lambda: DiffersBetweenRanks(path))])
    own = session.report()
    merged = session.merge({0: own, 1: replace(own, notes=["a note"])})
    assert [finding.rule for finding in merged.findings] == ["SS101"]
    assert merged.notes[0] == "a note"
    assert "There is no rule 'SS99999'" in merged.notes[1]
