"""Each rule with a run-time side finds its bad examples while they run, and no good one."""

import gc
import warnings
from pathlib import Path

import pytest
import torch

from surestep.doctor.rule import load_rules
from surestep.doctor.watch.watch import WatchSession
from tests.doctor.examples import GPU, list_examples, list_run
from tests.doctor.scripts import let_only_sleep_take_time

# torch.compile imports a part of torch that warns about itself.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script_method:DeprecationWarning")
RULES = [rule for rule in load_rules() if rule.watcher is not None]
BAD, GOOD = (list_run("watch", kind) for kind in ("bad", "good"))


@pytest.fixture(autouse=True)
def examples_have_a_clock_and_a_folder(monkeypatch, tmp_path):
    let_only_sleep_take_time(monkeypatch)
    monkeypatch.chdir(tmp_path)


def watch_example(example):
    """Return what is found while an example runs."""
    torch.manual_seed(0)
    code = example.compile()
    watch = WatchSession(RULES)
    # torch may warn of the script, and the script may switch gradients off.
    with warnings.catch_warnings(action="ignore"), torch.enable_grad():
        watch.run(lambda: exec(code, {"__name__": "__main__"}))
    report = watch.report()
    assert (report.failures, report.stopped_at) == ({}, None)
    assert {Path(finding.file).name for finding in report.findings} <= {example.path.name}
    assert all(finding.evidence["since_step"] >= 1 for finding in report.findings)
    return example.describe(report.findings)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
def test_some_examples_are_run(rule):
    made = [example for example in list_examples() if example.code == rule.code]
    run = {example.kind for example in made if {"watch", "ranks"} & example.expected.keys()}
    needs_gpu = any(GPU in example.skipped.values() for example in made)
    assert run == {"bad", "good"} or (run == {"good"} and needs_gpu)


@pytest.mark.parametrize("code", BAD)
def test_bad_examples_are_found_while_they_run(code):
    found = {made.name: watch_example(made) for made in BAD[code]}
    assert found == {made.name: made.expected["watch"] for made in BAD[code]}


@pytest.mark.parametrize("code", GOOD)
def test_good_examples_run_without_a_finding(code):
    assert {made.name: watch_example(made) for made in GOOD[code]} == {
        made.name: [] for made in GOOD[code]
    }


def test_layer_that_was_replaced_is_reported_by_one_rule():
    def train():
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model[1] = torch.nn.Linear(8, 3)
        for _ in range(20):
            optimizer.zero_grad()
            model(torch.randn(8, 4)).pow(2).mean().backward()
            optimizer.step()

    watch = WatchSession(RULES)
    watch.run(train)
    assert [finding.rule for finding in watch.report().findings] == ["SS202"]


def test_objects_are_searched_once_for_each_optimizer(monkeypatch):
    searches = []
    get_objects = gc.get_objects
    monkeypatch.setattr(gc, "get_objects", lambda: searches.append(1) or get_objects())

    def train():
        for _ in range(2):
            torch.optim.SGD(torch.nn.Linear(4, 1).parameters(), lr=0.1)

    watch = WatchSession(RULES)
    watch.run(train)
    assert watch.report().findings == []
    assert len(searches) == 2


def test_optimizer_with_the_id_of_one_that_is_gone_is_another_one():
    seen = set()

    def train_until_an_id_comes_again():
        while True:
            model = torch.nn.Linear(4, 1)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            is_again = id(optimizer) in seen
            seen.add(id(optimizer))
            for _ in range(5):
                optimizer.zero_grad()
                model(torch.ones(8, 4)).pow(2).mean().backward()
                optimizer.step()
            if is_again:
                return
            del model, optimizer
            gc.collect()  # it is part of a circle of references

    watch = WatchSession([rule for rule in RULES if rule.code == "SS101"])
    watch.run(train_until_an_id_comes_again)
    assert watch.report().findings == []


def test_gradients_that_are_zeroed_in_every_second_step_are_found():
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def train():
        for step in range(40):
            if step % 2 == 0:
                optimizer.zero_grad()
            model(torch.ones(8, 4)).pow(2).mean().backward()
            optimizer.step()

    watch = WatchSession([rule for rule in RULES if rule.code == "SS101"])
    watch.run(train)
    (found,) = watch.report().findings
    assert found.evidence["batches"] == 2


def test_closure_that_never_zeroes_is_found():
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)

    def closure():
        loss = model(torch.ones(8, 4)).pow(2).mean()
        loss.backward()
        return loss

    watch = WatchSession([rule for rule in RULES if rule.code == "SS101"])
    watch.run(lambda: [optimizer.step(closure) for _ in range(5)])
    assert [finding.rule for finding in watch.report().findings] == ["SS101"]
