"""The rules that watch a script and whose mistakes cost time on a GPU only."""

import pytest
import torch
from torch import nn

from surestep.doctor.check import parse_example
from surestep.doctor.rule import load_rules
from surestep.doctor.watch.watch import Watch

NEED_GPU = ("SS702", "SS708", "SS709")
RULES = {rule.code: rule for rule in load_rules()}

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def watch(code, function):
    watch = Watch([RULES[code]])
    watch.run(function)
    report = watch.report()
    assert report.failures == {}
    return [finding.rule for finding in report.findings]


def watch_example(code, kind, name):
    example = parse_example(RULES[code].examples(kind)[name])
    compiled = compile(example.text, str(example.path), "exec")
    return watch(code, lambda: exec(compiled, {"__name__": "__main__"}))


def list_examples(kind, *codes):
    return [(code, name) for code in codes for name in RULES[code].examples(kind)]


@pytest.mark.parametrize(("code", "name"), list_examples("bad", "SS702", "SS709"))
def test_bad_example_is_found_on_a_gpu(code, name):
    assert watch_example(code, "bad", name) == [code]


@pytest.mark.parametrize(("code", "name"), list_examples("good", *NEED_GPU))
def test_good_example_has_no_finding_on_a_gpu(code, name):
    if name == "good_evaluates_after_every_step":
        pytest.skip("the rule cannot tell at run time that each step is evaluated on purpose")
    assert watch_example(code, "good", name) == []


@pytest.mark.parametrize(("options", "expected"), [({"foreach": False}, ["SS708"]), ({}, [])])
def test_optimizer_that_updates_one_parameter_after_another_is_found(options, expected):
    def train():
        model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(8))).cuda()
        optimizer = torch.optim.AdamW(model.parameters(), **options)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(2, 4, device="cuda")).sum().backward()
            optimizer.step()

    assert watch("SS708", train) == expected
