"""Each rule with a side inside Trainer finds its bad examples there, and no rule a good one."""

import pytest
import torch

from surestep.doctor.check import parse_example
from surestep.doctor.rule import load_rules
from surestep.record.run import Run
from tests.doctor.scripts import let_only_sleep_take_time, uses_trainer

RULES = [rule for rule in load_rules() if "train" in rule.commands]


@pytest.fixture(autouse=True)
def examples_have_a_clock(monkeypatch):
    let_only_sleep_take_time(monkeypatch)


def list_examples(kind):
    return [
        (rule, name)
        for rule in RULES
        for name, example in rule.examples(kind).items()
        if uses_trainer(example)
    ]


EXAMPLES = {kind: list_examples(kind) for kind in ("bad", "good")}


def name_of(value):
    return value if isinstance(value, str) else value.code


def train_example(rule, kind, name):
    """Run an example, which trains in the folder `run`, and return its findings."""
    torch.manual_seed(0)
    example = parse_example(rule.examples(kind)[name])
    exec(compile(example.text, str(example.path), "exec"), {"__name__": "__main__"})
    return Run("run").status["findings"]


@pytest.mark.parametrize(("rule", "name"), EXAMPLES["bad"], ids=name_of)
def test_bad_example_is_found_by_the_trainer(rule, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    findings = train_example(rule, "bad", name)
    allowed = {rule.code, *getattr(rule.module, "ALSO", ())}
    assert rule.code in {finding["rule"] for finding in findings}
    assert {finding["rule"] for finding in findings} <= allowed


@pytest.mark.parametrize(("rule", "name"), EXAMPLES["good"], ids=name_of)
def test_good_example_trains_without_a_finding(rule, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert train_example(rule, "good", name) == []


@pytest.mark.parametrize("rule", RULES, ids=name_of)
def test_side_inside_trainer_has_examples(rule):
    fewest = 3 if rule.commands == ("train",) else 1
    for kind in ("bad", "good"):
        found = [name for made, name in EXAMPLES[kind] if made is rule]
        assert len(found) >= fewest
