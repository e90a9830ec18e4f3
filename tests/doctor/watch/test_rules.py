"""Each rule with a run-time side finds its bad examples while they run, and no good one."""

import gc
import warnings

import pytest
import torch

from surestep.doctor.check import parse_example
from surestep.doctor.rule import load_rules
from surestep.doctor.watch.watch import Watch
from tests.doctor.scripts import let_only_sleep_take_time, list_watched
from tests.gpu.test_watch import NEED_GPU

# torch.compile imports a part of torch that warns about itself.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script_method:DeprecationWarning")
RULES = [rule for rule in load_rules() if rule.watcher is not None]
BAD = [(rule, name) for rule in RULES for name in list_watched(rule, "bad")]
GOOD = [(rule, name) for rule in RULES for name in list_watched(rule, "good")]


@pytest.fixture(autouse=True)
def examples_have_a_clock(monkeypatch):
    let_only_sleep_take_time(monkeypatch)


def name_of(value):
    return value if isinstance(value, str) else value.code


def watch_example(rule, kind, name):
    torch.manual_seed(0)
    example = parse_example(rule.examples(kind)[name])
    code = compile(example.text, str(example.path), "exec")
    watch = Watch(RULES)
    # torch may warn of the script, and the script may switch gradients off.
    with warnings.catch_warnings(action="ignore"), torch.enable_grad():
        watch.run(lambda: exec(code, {"__name__": "__main__"}))
    report = watch.report()
    assert (report.failures, report.stopped_at) == ({}, None)
    return report


@pytest.mark.parametrize("rule", RULES, ids=name_of)
def test_some_examples_are_watched(rule):
    examples = {*rule.examples("bad"), *rule.examples("good")}
    assert set(getattr(rule.module, "WATCH_SKIPS", ())) <= examples
    for kind, watched in (("bad", BAD), ("good", GOOD)):
        on_one = [name for made, name in watched if made is rule]
        on_two = list_watched(rule, kind, on_ranks=True)
        assert on_one or on_two or (kind == "bad" and rule.code in NEED_GPU)


@pytest.mark.parametrize(("rule", "name"), BAD, ids=name_of)
def test_bad_example_is_found_while_it_runs(rule, name):
    report = watch_example(rule, "bad", name)
    allowed = {rule.code, *getattr(rule.module, "ALSO", ())}
    assert rule.code in {finding.rule for finding in report.findings}
    assert {finding.rule for finding in report.findings} <= allowed
    for finding in report.findings:
        assert finding.file == f"{name}.py"
        assert finding.line > 0
        assert finding.evidence["since_step"] >= 1


@pytest.mark.parametrize(("rule", "name"), GOOD, ids=name_of)
def test_good_example_runs_without_a_finding(rule, name):
    assert watch_example(rule, "good", name).findings == []


def test_layer_that_was_replaced_is_reported_by_one_rule():
    def train():
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model[1] = torch.nn.Linear(8, 3)
        for _ in range(20):
            optimizer.zero_grad()
            model(torch.randn(8, 4)).pow(2).mean().backward()
            optimizer.step()

    watch = Watch(RULES)
    watch.run(train)
    assert [finding.rule for finding in watch.report().findings] == ["SS202"]


def test_objects_are_searched_once_for_each_optimizer(monkeypatch):
    searches = []
    get_objects = gc.get_objects
    monkeypatch.setattr(gc, "get_objects", lambda: searches.append(1) or get_objects())

    def train():
        for _ in range(2):
            torch.optim.SGD(torch.nn.Linear(4, 1).parameters(), lr=0.1)

    watch = Watch(RULES)
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

    watch = Watch([rule for rule in RULES if rule.code == "SS101"])
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

    watch = Watch([rule for rule in RULES if rule.code == "SS101"])
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

    watch = Watch([rule for rule in RULES if rule.code == "SS101"])
    watch.run(lambda: [optimizer.step(closure) for _ in range(5)])
    assert [finding.rule for finding in watch.report().findings] == ["SS101"]
