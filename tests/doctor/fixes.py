"""Check public fixes of training mistakes: is each named before the fix, and not after it?

`python -m tests.doctor.fixes --copies FOLDER` checks the fixes of fixes.tsv. FOLDER has a folder
`owner+name` for each repository, with a clone, or a git directory, in it or one level below. Half
of the fixes are held out, so that no rule is written for them: `--half held-out` needs `--final`,
which writes the counts to docs/rules/real-fixes.md, and is allowed three times.
"""

import argparse
import csv
import os
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import date
from enum import StrEnum
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory

from surestep.doctor.cache import ResultCache
from surestep.doctor.check_files import check_files
from surestep.doctor.find_files import find_files

ROOT = Path(__file__).parents[2]
CORPUS = Path(__file__).with_name("fixes.tsv")
PAGE = ROOT / "docs" / "rules" / "real-fixes.md"
HALVES = LOOKED_AT, HELD_OUT = ("looked-at", "held-out")
FINAL_LIMIT = 3  # measurements of the held-out half
# Kinds of mistakes, and the rules that would name one. A kind without a rule is always missed.
KINDS: dict[str, tuple[str, ...]] = {
    "accumulation not divided": ("SS107",),
    "accumulation window wrong": ("SS102", "SS107", "SS108", "SS114", "SS119"),
    "augmentation in validation": ("SS613",),
    "averaged weights wrong": ("SS413",),
    "best by the wrong direction": ("SS412",),
    "best model is a reference": ("SS406",),
    "buffer not registered": ("SS205",),
    "clip at the wrong place": ("SS103", "SS104"),
    "clip without unscale": ("SS105",),
    "data changed in place": (),
    "data not split between ranks": ("SS906",),
    "decay on the wrong parameters": ("SS207",),
    "dropout always on": ("SS410", "SS411"),
    "eval mode left on": ("SS401",),
    "evaluates in train mode": ("SS402", "SS414"),
    "evaluation builds graph": ("SS403", "SS701"),
    "frozen in name only": ("SS210", "SS215"),
    "graph kept": ("SS109", "SS701"),
    "ignored targets": ("SS505", "SS508", "SS514"),
    "input and target wrong": ("SS615",),
    "leakage": ("SS407", "SS604", "SS605", "SS606"),
    "logged value wrong": ("SS119", "SS404", "SS409"),
    "loss arguments wrong": ("SS504", "SS510"),
    "loss computed incorrectly": (),
    "loss detached": ("SS112",),
    "loss shape mismatch": ("SS405",),
    "metric not reduced over ranks": ("SS409",),
    "missing detach": (),
    "missing zero_grad": ("SS101",),
    "module hidden in list": ("SS204",),
    "monitored value missing": (),
    "no set_epoch": ("SS602",),
    "not finite": ("SS507",),
    "optimizer holds wrong parameters": ("SS201", "SS202", "SS210"),
    "option ignored": (),
    "parameter never used": ("SS203",),
    "result not used": ("SS118",),
    "resume incomplete": ("SS308", "SS801", "SS802", "SS805", "SS808"),
    "same random numbers": ("SS603", "SS616", "SS906"),
    "saved by every rank": ("SS804",),
    "scaler misused": ("SS105", "SS110", "SS111"),
    "schedule length wrong": ("SS307", "SS311"),
    "schedule never stepped": ("SS305",),
    "schedule stepped incorrectly": (
        *("SS301", "SS302", "SS303", "SS304", "SS306", "SS309", "SS310"),
    ),
    "softmax before the loss": ("SS501", "SS502", "SS503"),
    "softmax over the wrong dimension": ("SS511",),
    "step misplaced": ("SS102", "SS106"),
    "state changed in evaluation": (),
    "training data not shuffled": ("SS601",),
    "uneven batches": ("SS608", "SS904"),
    "view instead of transpose": ("SS513",),
    "wrapper bypassed": ("SS209", "SS806", "SS901", "SS903"),
}


class Status(StrEnum):
    """What `check` did with a fix."""

    FOUND = "FOUND"
    STILL_THERE = "FOUND AND STILL THERE"
    MISSED = "MISSED"
    NOT_CHECKED = "NOT CHECKED"


class NotCheckedError(Exception):
    """A version of a file that cannot be checked, and why."""


@dataclass(frozen=True)
class Fix:
    """A commit that fixes a mistake.

    Attributes:
        folder: to check, in the repository: some mistakes only show in how another file calls.
        sees: what a reader sees.
        shown: whether the source shows the mistake: "yes" or "no".
    """

    id: str
    repository: str
    commit: str
    file: str
    folder: str
    kind: str
    sees: str
    shown: str
    framework: str
    year: str

    @property
    def half(self) -> str:
        return HALVES[sha256(self.id.encode()).digest()[0] % 2]


@dataclass(frozen=True)
class Outcome:
    """What `check` did with a fix.

    Attributes:
        note: why it is not checked, or what is still there.
    """

    fix: Fix
    status: Status
    note: str = ""


def read_corpus(path: Path = CORPUS) -> list[Fix]:
    with path.open(encoding="utf-8", newline="") as file:
        return [Fix(**row) for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)]


def check_fix(fix: Fix, copies: Path) -> Outcome:
    """Check the repository before a fix, and after it if the mistake is named before."""
    try:
        git_folder = find_git_folder(copies, fix.repository)
        with TemporaryDirectory(prefix="fix-") as folder:
            before = find_named(fix, f"{fix.commit}^", git_folder, Path(folder))
            after = find_named(fix, fix.commit, git_folder, Path(folder)) if before else []
    except NotCheckedError as error:
        return Outcome(fix, Status.NOT_CHECKED, str(error))
    if not before:
        return Outcome(fix, Status.MISSED)
    if len(after) < len(before):
        return Outcome(fix, Status.FOUND)
    return Outcome(fix, Status.STILL_THERE, ", ".join(after))


def find_git_folder(copies: Path, repository: str) -> Path:
    """Return the git directory of the copy of a repository."""
    copy = copies / repository.replace("/", "+")
    for pattern in ("HEAD", "*/HEAD", "*/*/HEAD"):
        for head in copy.glob(pattern):
            if (head.parent / "objects").is_dir():
                return head.parent
    raise NotCheckedError(f"{copy} has no git directory")


def find_named(fix: Fix, revision: str, git_folder: Path, folder: Path) -> list[str]:
    """Return what names the mistake in the file of a fix: the rule and line of each finding.

    Args:
        fix: its kind has the rules, and its folder is checked.
        revision: of its repository.
        git_folder: of its repository.
        folder: for the files; the same for both versions, so that unchanged files are checked once.
    """
    tree = folder / "tree"
    write_tree(tree, git_folder, revision)
    if not (tree / fix.file).is_file():
        raise NotCheckedError(f"{fix.file} is not in {revision}")
    paths = (path for path, _ in find_files([str(tree / fix.folder)]).files)
    files = [(path, KINDS[fix.kind]) for path in paths]
    reports = check_files(files, ResultCache(folder / "results"))
    report = next((report for report in reports if Path(report.path) == tree / fix.file), None)
    if report is None:
        raise NotCheckedError(f"{fix.file} is not among the files of {fix.folder} to check")
    if report.problem or report.failed:
        problems = [report.problem, *report.notes]
        raise NotCheckedError(" ".join(filter(None, problems)).replace(f"{tree}/", ""))
    return [f"{finding.rule} in line {finding.line}" for finding in report.findings]


def write_tree(tree: Path, git_folder: Path, revision: str) -> None:
    """Write the Python files of a revision, without any other, to a folder."""
    shutil.rmtree(tree, ignore_errors=True)
    tree.mkdir()
    index = tree.with_suffix(".index")
    index.unlink(missing_ok=True)
    command = ["git", f"--git-dir={git_folder}", f"--work-tree={tree}", "checkout", "--quiet"]
    done = subprocess.run(
        [*command, revision, "--", "*.py"],
        env={**os.environ, "GIT_INDEX_FILE": str(index)},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise NotCheckedError(done.stderr.strip())


def tabulate(outcomes: Iterable[Outcome]) -> list[str]:
    """Return a Markdown table of counts by kind, of what the source shows."""
    by_kind: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        name = outcome.fix.kind if outcome.fix.shown == "yes" else "(not in the source)"
        by_kind.setdefault(name, []).append(outcome)
    rows = [f"| {kind} | {render_counts(by_kind[kind])} |" for kind in sorted(by_kind)]
    return [
        "| kind | fixes | found | still there | missed | not checked |",
        "|---" * 6 + "|",
        *rows,
    ]


def render_counts(outcomes: list[Outcome]) -> str:
    counts = Counter(outcome.status for outcome in outcomes)
    return " | ".join(map(str, [len(outcomes), *(counts[status] for status in Status)]))


def render_total(outcomes: list[Outcome]) -> str:
    """Return the counts of what the source shows, and the share of it that is found."""
    shown = [outcome for outcome in outcomes if outcome.fix.shown == "yes"]
    checked = [outcome for outcome in shown if outcome.status != Status.NOT_CHECKED]
    named = sum(outcome.status == Status.FOUND for outcome in checked)
    return f"{render_counts(shown)} | {named / max(len(checked), 1):.0%}"


INTRO = """\
<!-- Written by `python -m tests.doctor.fixes --copies FOLDER --final`. -->

# What the doctor finds of real mistakes

`tests/doctor/fixes.tsv` lists commits of public repositories that fix a mistake in training code.
`surestep check` reads each repository before the fix and after it. A mistake is found if a rule for
its kind names it in the file before the fix, and has fewer findings there after it. It is still
there if the number is the same. The counts are of mistakes that a reader can see in the source.

No rule is written for the half that is held out, and it is measured three times at most. The halves
are chosen by a hash.
"""
MEASURED = """\
| date | commit | half | fixes | found | still there | missed | not checked | share |
|---|---|---|---|---|---|---|---|---|"""


def list_measured(text: str, half: str = "") -> list[str]:
    """Return the rows of the measurements on the page, of one half or of both."""
    rows = re.findall(r"^\| \d{4}-.*$", text, re.MULTILINE)
    return [row for row in rows if not half or f"| {half} |" in row]


def render_page(text: str, half: str, outcomes: list[Outcome], today: str, commit: str) -> str:
    """Return the page with a measurement added, and the counts of its half by kind."""
    row = f"| {today} | {commit} | {half} | {render_total(outcomes)} |"
    measured = "\n".join([MEASURED, *list_measured(text), row])
    tables = dict(re.findall(r"^## By kind: (\S+)\n\n((?:\|.*\n)+)", text, re.MULTILINE))
    tables[half] = "\n".join(tabulate(outcomes)) + "\n"
    sections = [f"## By kind: {name}\n\n{tables[name]}" for name in HALVES if name in tables]
    return "\n".join([INTRO, f"## Measurements\n\n{measured}\n", *sections])


def describe_commit() -> str:
    command = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout[:-1]


def check_all(fixes: list[Fix], copies: Path) -> Iterator[Outcome]:
    """Check fixes, and print each that is not held out."""
    for fix in fixes:
        outcome = check_fix(fix, copies)
        place = f"{fix.repository} {fix.commit[:8]} {fix.file}"
        note = f": {outcome.note}" if outcome.note else ""
        if fix.half != HELD_OUT:
            print(f"{outcome.status:21} {fix.id} {fix.kind}: {place}{note}", flush=True)
        yield outcome


def parse(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--copies", type=Path, required=True, help="folder of the repositories")
    parser.add_argument("--half", choices=HALVES, default=LOOKED_AT)
    parser.add_argument("--kind", choices=sorted(KINDS), help="only this kind")
    parser.add_argument("--final", action="store_true", help=f"write the counts to {PAGE.name}")
    given = parser.parse_args(words)
    if not given.copies.is_dir():
        parser.error(f"--copies {given.copies} is not a folder. It holds clones as owner+name.")
    if given.final and given.kind:
        parser.error("--final writes the counts of a half: give it without --kind.")
    if given.half == HELD_OUT:
        check_held_out(parser, is_final=given.final)
    return given


def check_held_out(parser: argparse.ArgumentParser, *, is_final: bool) -> None:
    """Reject the half that is held out, unless this is one of its few measurements."""
    if not is_final:
        parser.error("--half held-out needs --final: each measurement of it is recorded.")
    count = len(list_measured(read_page(), HELD_OUT))
    if count >= FINAL_LIMIT:
        parser.error(
            f"The held-out half has been measured {count} times. Collect new fixes instead."
        )


def require_copies(fixes: list[Fix], copies: Path) -> None:
    """Exit if a repository has no copy: the measurement would count for less."""
    missing = set()
    for fix in fixes:
        try:
            find_git_folder(copies, fix.repository)
        except NotCheckedError:
            missing.add(fix.repository)
    if missing:
        names = ", ".join(sorted(missing))
        raise SystemExit(f"Nothing was measured: {copies} has no copy of {names}.")


def read_page() -> str:
    return PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""


def main(words: list[str] | None = None) -> int:
    """Print what `check` finds of the fixes."""
    given = parse(words)
    fixes = [fix for fix in read_corpus() if fix.half == given.half]
    fixes = [fix for fix in fixes if given.kind in (None, fix.kind)]
    if given.final:
        require_copies(fixes, given.copies)
    outcomes = list(check_all(fixes, given.copies))
    print("\n".join(["", *tabulate(outcomes), "", MEASURED]))
    commit, today = describe_commit(), date.today().isoformat()
    print(f"| {today} | {commit} | {given.half} | {render_total(outcomes)} |")
    if given.final:
        page = render_page(read_page(), given.half, outcomes, today, commit)
        PAGE.write_text(page, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
