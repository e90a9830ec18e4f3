"""The corpus of real fixes, and how `check` is measured by it."""

import os
import shutil
import subprocess
from collections import Counter
from dataclasses import replace

import pytest

from surestep.doctor.rule import load_rules
from tests.doctor import fixes
from tests.doctor.fixes import KINDS, Fix, Outcome, Status
from tests.doctor.scripts import BAD, GOOD

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
FRAMEWORKS = ("plain", "class", "lightning", "hf", "accelerate", "other")
FORGETS = Fix(
    *("f1", "owner/name", "HEAD", "package/train.py", ".", "missing zero_grad"),
    *("gradients of all steps add up", "yes", "plain", "2024"),
)


def git(folder, *words):
    """Run git without the settings of the user."""
    names = dict.fromkeys(("GIT_AUTHOR_NAME", "GIT_COMMITTER_NAME"), "-")
    emails = dict.fromkeys(("GIT_AUTHOR_EMAIL", "GIT_COMMITTER_EMAIL"), "-")
    environment = {"PATH": os.environ["PATH"], "GIT_CONFIG_GLOBAL": os.devnull, **names, **emails}
    subprocess.run(["git", "-C", folder, *words], env=environment, check=True)


@pytest.fixture(scope="module")
def copies(tmp_path_factory):
    """A copy of owner/name: its first commit has BAD and a file of data, HEAD has GOOD."""
    folder = tmp_path_factory.mktemp("copies")
    copy = folder / "owner+name" / "repo"
    (copy / "package").mkdir(parents=True)
    git(copy, "init", "--quiet")
    (copy / "data.bin").write_bytes(b"\0")
    for text in (BAD, GOOD):
        (copy / "package" / "train.py").write_text(text)
        git(copy, "add", ".")
        git(copy, "commit", "--quiet", "--message", "-")
    return folder


@needs_git
def test_a_mistake_named_before_the_fix_and_not_after_it_is_found(copies):
    assert fixes.check_fix(FORGETS, copies) == Outcome(FORGETS, Status.FOUND)


@needs_git
def test_a_mistake_of_another_kind_is_missed(copies):
    other = replace(FORGETS, kind="no set_epoch")
    assert fixes.check_fix(other, copies) == Outcome(other, Status.MISSED)


@needs_git
def test_a_finding_that_a_commit_leaves_is_still_there(copies, tmp_path):
    copy = shutil.copytree(copies / "owner+name", tmp_path / "owner+name") / "repo"
    git(copy, "reset", "--quiet", "--hard", "HEAD^")
    with (copy / "package" / "train.py").open("a") as file:
        file.write("print('done')\n")
    git(copy, "commit", "--quiet", "--all", "--message", "-")
    assert fixes.check_fix(FORGETS, tmp_path) == Outcome(
        FORGETS, Status.STILL_THERE, "SS101 in line 8"
    )


@needs_git
@pytest.mark.parametrize(
    ("change", "note"),
    [
        ({"repository": "owner/other"}, "owner+other has no git directory"),
        ({"commit": "HEAD^"}, "HEAD^^"),
        ({"file": "train.py"}, "train.py is not in HEAD^"),
    ],
)
def test_a_fix_without_a_copy_of_both_versions_is_not_checked(copies, change, note):
    outcome = fixes.check_fix(replace(FORGETS, **change), copies)
    assert outcome.status == Status.NOT_CHECKED
    assert note in outcome.note


@needs_git
def test_a_file_that_cannot_be_read_is_not_checked(copies, tmp_path):
    copy = shutil.copytree(copies / "owner+name", tmp_path / "owner+name") / "repo"
    git(copy, "checkout", "--quiet", "HEAD^")
    (copy / "package" / "train.py").write_text("print 1\n")
    git(copy, "commit", "--quiet", "--all", "--message", "-")
    outcome = fixes.check_fix(FORGETS, tmp_path)
    assert outcome.status == Status.NOT_CHECKED
    assert outcome.note.startswith("package/train.py")


def test_figures_are_of_what_the_source_shows():
    outcomes = [Outcome(FORGETS, status) for status in (Status.FOUND, Status.FOUND, *Status)]
    outcomes.append(Outcome(replace(FORGETS, shown="no"), Status.MISSED))
    assert fixes.render_total(outcomes) == "6 | 3 | 1 | 1 | 1 | 60%"
    assert fixes.tabulate(outcomes)[2:] == [
        "| (not in the source) | 1 | 0 | 0 | 1 | 0 |",
        "| missing zero_grad | 6 | 3 | 1 | 1 | 1 |",
    ]


def test_page_keeps_earlier_measurements_and_the_other_half():
    page = fixes.render_page("", "held-out", [Outcome(FORGETS, Status.MISSED)], "2026-01-01", "abc")
    page = fixes.render_page(
        page, "looked-at", [Outcome(FORGETS, Status.MISSED)], "2026-01-02", "def"
    )
    page = fixes.render_page(
        page, "looked-at", [Outcome(FORGETS, Status.FOUND)], "2026-01-03", "123"
    )
    assert fixes.list_measured(page) == [
        "| 2026-01-01 | abc | held-out | 1 | 0 | 0 | 1 | 0 | 0% |",
        "| 2026-01-02 | def | looked-at | 1 | 0 | 0 | 1 | 0 | 0% |",
        "| 2026-01-03 | 123 | looked-at | 1 | 1 | 0 | 0 | 0 | 100% |",
    ]
    assert page.count("## By kind") == 2
    assert page.count("| missing zero_grad | 1 | 0 | 0 | 1 | 0 |") == 1
    assert page.count("| missing zero_grad | 1 | 1 | 0 | 0 | 0 |") == 1


@pytest.fixture
def held_out_row(monkeypatch, tmp_path):
    """The row of a fix that is held out, on an empty page, in a corpus of it alone."""
    # No date and no commit contains such an id, so a page without it does not name the fix.
    fixes_of_both = (replace(FORGETS, id=f"row-{n}") for n in range(99))
    fix = next(fix for fix in fixes_of_both if fix.half == "held-out")
    monkeypatch.setattr(fixes, "PAGE", tmp_path / "page.md")
    monkeypatch.setattr(fixes, "read_corpus", lambda: [fix])
    return fix


def test_half_that_is_held_out_is_not_opened_without_a_record(held_out_row, tmp_path, capsys):
    with pytest.raises(SystemExit):
        fixes.main(["--copies", str(tmp_path), "--half", "held-out"])
    assert "needs --final" in capsys.readouterr().err


@needs_git
def test_half_that_is_held_out_is_measured_three_times(held_out_row, copies, capsys):
    words = ["--copies", str(copies), "--half", "held-out", "--final"]
    for _ in range(3):
        assert fixes.main(words) == 0
    assert held_out_row.id not in capsys.readouterr().out
    assert len(fixes.list_measured(fixes.read_page(), "held-out")) == 3
    with pytest.raises(SystemExit):
        fixes.main(words)
    assert "has been measured 3 times" in capsys.readouterr().err


def test_nothing_is_measured_without_all_copies(held_out_row, tmp_path):
    with pytest.raises(SystemExit, match=r"Nothing was measured: .* has no copy of owner/name"):
        fixes.main(["--copies", str(tmp_path), "--half", "held-out", "--final"])
    assert fixes.read_page() == ""


def test_kinds_name_rules_that_exist():
    codes = {code for codes in KINDS.values() for code in codes}
    assert codes <= {rule.code for rule in load_rules()}


def test_rows_are_complete_and_differ():
    corpus = fixes.read_corpus()
    assert [fix.id for fix in corpus if not all(vars(fix).values())] == []
    assert [fix.id for fix in corpus if fix.kind not in KINDS] == []
    assert [fix.id for fix in corpus if fix.framework not in FRAMEWORKS] == []
    assert {fix.shown for fix in corpus} == {"yes", "no"}
    assert len({fix.id for fix in corpus}) == len(corpus)
    assert len({(fix.repository, fix.commit, fix.file, fix.kind) for fix in corpus}) == len(corpus)


def test_no_kind_and_no_repository_dominates_the_corpus():
    corpus = fixes.read_corpus()
    assert len(corpus) >= 238
    assert max(Counter(fix.kind for fix in corpus).values()) <= len(corpus) / 10
    assert max(Counter(fix.repository for fix in corpus).values()) <= 3


def test_corpus_has_frameworks_and_years():
    corpus = fixes.read_corpus()
    assert sum(fix.framework not in ("plain", "class") for fix in corpus) >= 40
    assert len({fix.year for fix in corpus}) >= 3
