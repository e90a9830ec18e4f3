"""The examples of the rules: scripts whose first line says what is found in them.

`tests/doctor/rules/ss101/bad_*.py` have the mistake of SS101, and `good_*.py` are correct. What
`surestep check` finds comes first, then what is found while the script runs, if that differs:

    # expect: SS101 line 12
    # expect: nothing; watch: SS101 line 12, SS103 line 14
    # expect: SS101 line 12; watch: skip, needs lightning

A script that trains on two ranks has `ranks:` in place of `watch:`, and a run of Trainer `train:`.
A script of a rule that watches nothing is only checked. The wrong and the right example on the page
of a rule are examples too.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import CodeType

from surestep.doctor.check import check_file
from surestep.doctor.finding import Finding
from surestep.doctor.rule import Rule, load_rules
from surestep.doctor.source.files import Project, SourceFile, parse_source

FOLDER = Path(__file__).with_name("rules")
RULES = {rule.code: rule for rule in load_rules()}
KINDS = ("bad", "good")
RUNS = ("watch", "ranks", "train")  # the ways to run a script
GPU = "needs a GPU"
# Of the examples on the pages, those that need more than the code of their rule.
ON_PAGES = {
    ("SS111", "bad"): f"SS111; watch: skip, {GPU}",
    ("SS212", "bad"): "nothing; watch: SS212, SS509",
    ("SS304", "bad"): "SS304; watch: skip, raises a TypeError",
    ("SS308", "bad"): "SS308; watch: nothing",
    ("SS403", "bad"): "nothing; watch: SS403",
    ("SS409", "bad"): "SS409; watch: nothing",
    ("SS508", "bad"): "SS508; watch: nothing",
    ("SS509", "bad"): "nothing; watch: SS212, SS509",
    ("SS601", "bad"): "SS601; watch: skip, needs torchvision",
    ("SS606", "bad"): "SS606; watch: nothing",
    ("SS610", "bad"): "SS610; watch: nothing",
    ("SS702", "bad"): f"SS702; watch: skip, {GPU}",
    ("SS708", "bad"): f"SS708; watch: skip, {GPU}",
    ("SS709", "bad"): f"nothing; watch: skip, {GPU}",
    ("SS801", "bad"): "SS801; watch: nothing",
    ("SS903", "bad"): "SS203; ranks: SS903",
    ("SS907", "bad"): f"SS907; ranks: skip, {GPU}",
    ("SS907", "good"): f"nothing; ranks: skip, {GPU}",
}


@dataclass(frozen=True)
class Example:
    """A script of a rule.

    Attributes:
        code: of the rule.
        name: such as "bad_loop".
        path: of the script.
        text: of the script, with its first line.
        expected: what is found, such as "SS101 line 12", by "check" and by how the script is run.
        skipped: why the script is not run in the way that it would be.
    """

    code: str
    name: str
    path: Path
    text: str = field(repr=False)
    expected: dict[str, list[str]] = field(hash=False)
    skipped: dict[str, str] = field(hash=False)

    @property
    def kind(self) -> str:
        """Either "bad" or "good"."""
        return self.name.partition("_")[0]

    @property
    def is_on_page(self) -> bool:
        """Whether it is on the page of its rule: its lines may change."""
        return self.name in KINDS

    def parse(self) -> SourceFile:
        return parse_source(self.path, self.text.encode())

    def compile(self) -> CodeType:
        return compile(self.text, str(self.path), "exec")

    def describe(self, findings: Iterable[Finding]) -> list[str]:
        """Return findings as they are expected."""
        return [
            code if self.is_on_page or not line else f"{code} line {line}"
            for line, code in sorted((found.line, found.rule) for found in findings)
        ]


@cache
def list_examples() -> tuple[Example, ...]:
    """Return all examples, by their rules and names."""
    scripts = [read_script(path) for path in FOLDER.glob("ss*/*.py")]
    pages = [read_page(rule, kind) for rule in RULES.values() for kind in KINDS]
    return tuple(sorted([*scripts, *pages], key=lambda made: (made.code, made.name)))


def read_script(path: Path) -> Example:
    code, text = path.parent.name.upper(), path.read_text(encoding="utf-8")
    (line,) = re.findall("^# expect: (.+)", text)
    return make_example(code, path.stem, path, text, line)


def read_page(rule: Rule, kind: str) -> Example:
    """Return the example of a kind on the page of a rule."""
    text = rule.wrong if kind == "bad" else rule.right
    found = rule.code if kind == "bad" else "nothing"
    if "surestep.Trainer(" in text or "surestep.prepare(" in text:
        line = f"nothing; train: {found}"
    elif rule.watcher is None:
        line = found
    else:
        checked = found if "check" in rule.commands else "nothing"
        way = "ranks" if "init_process_group(" in text else "watch"
        line = f"{checked}; {way}: {found}"
    line = ON_PAGES.get((rule.code, kind), line)
    return make_example(rule.code, kind, Path(f"{kind}.py"), f"# expect: {line}\n{text}\n", line)


def make_example(code: str, name: str, path: Path, text: str, line: str) -> Example:
    """Return an example of which the first line says `line`."""
    first, *rest = line.split("; ")
    parts = {"check": first, **dict(part.split(": ") for part in rest)}
    if RULES[code].watcher is not None and not parts.keys() & set(RUNS):
        parts["watch"] = first
    skipped = {way: part.removeprefix("skip, ") for way, part in parts.items() if "skip" in part}
    expected = {
        way: [] if part == "nothing" else part.split(", ")
        for way, part in parts.items()
        if way not in skipped
    }
    return Example(code, name, path, text, expected, skipped)


def list_run(way: str, kind: str) -> dict[str, list[Example]]:
    """Return the examples of a kind that are run in a way, by the codes of their rules."""
    found = [made for made in list_examples() if made.kind == kind and way in made.expected]
    codes = dict.fromkeys(made.code for made in found)
    return {code: [made for made in found if made.code == code] for code in codes}


@cache
def check_example(example: Example) -> list[Finding]:
    """Return what all rules find in the source of an example."""
    return check_file(example.parse(), load_rules(), Project())
