"""Each rule finds its bad examples, and no rule finds anything in a good one."""

import ast
import re
from functools import cache

import pytest

from surestep.doctor.check import check_file, parse_example
from surestep.doctor.finding import SEVERITIES
from surestep.doctor.fix_files import apply_edits, choose_edits
from surestep.doctor.rule import load_rules
from surestep.doctor.source.files import Project
from tests.doctor.scripts import uses_trainer

RULES = load_rules()
STATIC = [rule for rule in RULES if "check" in rule.commands]
BAD = [
    (rule, name)
    for rule in STATIC
    for name, example in rule.examples("bad").items()
    if not uses_trainer(example) and name not in getattr(rule.module, "CHECK_SKIPS", ())
]
EXAMPLES = [(rule, name) for rule in RULES for name in rule.examples("bad")]
FIXABLE = {rule.code for rule in RULES if rule.is_fixable}
GOOD = [(rule, name) for rule in RULES for name in rule.examples("good")]


@cache
def findings_in(example):
    return check_file(parse_example(example), RULES, Project())


def codes_in(rule, kind, name):
    return {finding.rule for finding in findings_in(rule.examples(kind)[name])}


def name_of(value):
    return value if isinstance(value, str) else value.code


@pytest.mark.parametrize(("rule", "name"), BAD, ids=name_of)
def test_bad_example_has_the_mistake(rule, name):
    allowed = set(getattr(rule.module, "ALSO", ()))
    found = codes_in(rule, "bad", name)
    assert rule.code in found
    assert found <= {rule.code, *allowed}


@pytest.mark.parametrize(("rule", "name"), EXAMPLES, ids=name_of)
def test_only_a_rule_that_says_so_has_edits(rule, name):
    example = rule.examples("bad")[name]
    text = parse_example(example).text
    for finding in findings_in(example):
        assert not finding.edits or finding.rule in FIXABLE
        edits, count = choose_edits([finding])
        assert (len(edits), count) == (len(finding.edits), bool(finding.edits))
        ast.parse(apply_edits(text, edits))


@pytest.mark.parametrize(("rule", "name"), GOOD, ids=name_of)
def test_good_example_has_no_mistake(rule, name):
    assert codes_in(rule, "good", name) == set()


@pytest.mark.parametrize("rule", RULES, ids=name_of)
def test_rule_is_complete(rule):
    assert rule.severity in SEVERITIES
    assert rule.commands
    assert re.fullmatch(r"SS\d{3}", rule.code)
    assert rule.summary.endswith(".")
    assert len(rule.summary) <= 88
    assert "Source:" in rule.page
    assert rule.fix.endswith(".")
    assert len(rule.examples("bad")) >= 3, "three spellings of the mistake"
    assert len(rule.examples("good")) >= 3, "three correct scripts that look similar"


def test_codes_and_names_are_unique():
    assert len({rule.code for rule in RULES}) == len({rule.name for rule in RULES}) == len(RULES)
