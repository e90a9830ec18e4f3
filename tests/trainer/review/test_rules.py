"""Each rule with a side inside Trainer finds its bad examples there, and no rule a good one."""

import pytest
import torch

from surestep.doctor.rule import load_rule, load_rules
from surestep.record.run import Run
from surestep.trainer.review.findings import load_modules
from tests.doctor.examples import KINDS, list_run
from tests.doctor.scripts import let_only_sleep_take_time

RULES = [rule for rule in load_rules() if "train" in rule.commands]
EXAMPLES = {kind: list_run("train", kind) for kind in KINDS}


@pytest.fixture(autouse=True)
def examples_have_a_clock(monkeypatch):
    let_only_sleep_take_time(monkeypatch)


def train_example(example, folder, monkeypatch):
    """Run an example, which trains in the folder `run`, and return the rules with findings."""
    (folder / example.name).mkdir()
    monkeypatch.chdir(folder / example.name)
    torch.manual_seed(0)
    exec(example.compile(), {"__name__": "__main__"})
    return sorted({finding["rule"] for finding in Run("run").status["findings"]})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("code", EXAMPLES["bad"])
def test_examples_are_found_by_the_trainer_as_they_expect(code, kind, tmp_path, monkeypatch):
    made = EXAMPLES[kind][code]
    found = {example.name: train_example(example, tmp_path, monkeypatch) for example in made}
    assert found == {example.name: example.expected["train"] for example in made}


def test_rule_declares_that_runs_are_reviewed_by_it():
    inspecting, reviewing = map(load_modules, ("inspect", "review"))
    assert not inspecting.keys() & reviewing.keys()
    assert {rule.code for rule in RULES} == inspecting.keys() | reviewing.keys()


def test_run_is_reviewed_while_training_by_the_rules_that_are_errors():
    for code, module in load_modules("review").items():
        assert hasattr(module, "WHILE_TRAINING") == (load_rule(code).severity == "error")


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
def test_side_inside_trainer_has_examples(rule):
    fewest = 3 if rule.commands == ("train",) else 1
    assert all(len(EXAMPLES[kind][rule.code]) >= fewest for kind in KINDS)
