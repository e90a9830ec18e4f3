"""Each rule with a side inside Trainer finds its bad examples there, and no rule a good one."""

import sys

import pytest
import torch

import surestep
from surestep.doctor.rule import load_rule, load_rules
from surestep.record.run import Run
from surestep.trainer.review import of_data, of_run
from surestep.trainer.review.findings import list_reviewed
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
    data, run = list_reviewed(of_data), list_reviewed(of_run)
    assert sorted(rule.code for rule in RULES) == sorted((*data, *run))


def test_run_is_reviewed_while_training_by_the_rules_that_are_errors():
    errors = [code for code in list_reviewed(of_run) if load_rule(code).severity == "error"]
    assert list(of_run.WHILE_TRAINING) == errors


@pytest.mark.parametrize("code", ["SS505", "SS117"])
def test_module_that_cannot_be_imported_is_named_and_the_run_trains(tmp_path, monkeypatch, code):
    package = of_data if code in list_reviewed(of_data) else of_run
    monkeypatch.setitem(sys.modules, f"{package.__name__}.{code.lower()}", None)
    x = torch.randn(16, 4)
    task = surestep.Task(torch.nn.Linear(4, 1), "mse", train=(x, x.sum(1, keepdim=True)))
    run = surestep.Trainer(task, surestep.Config(epochs=1), run=tmp_path / "run").fit()
    (found,) = [finding for finding in run.status["findings"] if finding["rule"] == code]
    assert found["message"].startswith("This could not be checked: ModuleNotFoundError")


def test_rules_that_are_not_asked_are_not_imported(tmp_path, monkeypatch):
    for code in list_reviewed(of_data):
        monkeypatch.setitem(sys.modules, f"{of_data.__name__}.{code.lower()}", None)
    x = torch.randn(16, 4)
    task = surestep.Task(torch.nn.Linear(4, 1), "mse", train=(x, x.sum(1, keepdim=True)))
    config = surestep.Config(epochs=1, doctor={"check_data": "off"})
    run = surestep.Trainer(task, config, run=tmp_path / "run").fit()
    assert not [found for found in run.status["findings"] if "checked" in found["message"]]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
def test_side_inside_trainer_has_examples(rule):
    fewest = 3 if rule.commands == ("train",) else 1
    assert all(len(EXAMPLES[kind][rule.code]) >= fewest for kind in KINDS)
