"""`surestep check` finds in each example of a rule what its first line says."""

import ast
import re

import pytest

from surestep.doctor.finding import SEVERITIES
from surestep.doctor.fix_files import apply_edits, choose_edits
from surestep.doctor.rule import load_rules
from tests.doctor.examples import FOLDER, GPU, check_example, list_examples

RULES = load_rules()
EXAMPLES = {
    rule.code: [made for made in list_examples() if made.code == rule.code] for rule in RULES
}
FIXABLE = {rule.code for rule in RULES if rule.is_fixable}


def name_of(value):
    return value.code


@pytest.mark.parametrize("code", EXAMPLES)
def test_examples_are_checked_as_they_expect(code):
    found = {made.name: made.describe(check_example(made)) for made in EXAMPLES[code]}
    assert found == {made.name: made.expected["check"] for made in EXAMPLES[code]}


def test_bad_example_expects_its_rule_and_a_good_one_does_not():
    for made in list_examples():
        found = {line.split()[0] for lines in made.expected.values() for line in lines}
        if made.kind == "bad":
            assert made.code in found or GPU in made.skipped.values(), made.path
        else:
            assert made.code not in found, made.path


def test_only_a_rule_that_says_so_has_edits():
    for made in list_examples():
        for finding in check_example(made):
            assert not finding.edits or finding.rule in FIXABLE
            edits, count = choose_edits([finding])
            assert (len(edits), count) == (len(finding.edits), bool(finding.edits))
            if edits:
                ast.parse(apply_edits(made.text, edits))


@pytest.mark.parametrize("rule", RULES, ids=name_of)
def test_rule_is_complete(rule):
    assert rule.severity in SEVERITIES
    assert rule.commands
    assert re.fullmatch(r"SS\d{3}", rule.code)
    assert rule.summary.endswith(".")
    assert len(rule.summary) <= 88
    assert "Source:" in rule.page
    assert rule.fix.endswith(".")
    kinds = [made.kind for made in EXAMPLES[rule.code]]
    assert kinds.count("bad") >= 3, "three spellings of the mistake"
    assert kinds.count("good") >= 3, "three correct scripts that look similar"


def test_codes_and_names_are_unique():
    assert len({rule.code for rule in RULES}) == len({rule.name for rule in RULES}) == len(RULES)


def test_scripts_are_examples_of_a_rule():
    assert {path.name.upper() for path in FOLDER.iterdir()} == {rule.code for rule in RULES}
    names = [path.name for path in FOLDER.rglob("*.py")]
    assert [name for name in names if not re.fullmatch(r"(bad|good)_\w+\.py", name)] == []
