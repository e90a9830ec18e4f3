"""The rules that watch a script, on a GPU."""

import os
import subprocess
import sys
import warnings
from dataclasses import replace

import pytest
import torch
from torch import nn

from surestep.doctor.rule import load_rules
from surestep.doctor.watch.watch import WatchSession
from tests.doctor.examples import list_examples

NEED_GPU = ("SS702", "SS708", "SS709")  # whose mistakes cost time on a GPU only
RULES = {rule.code: rule for rule in load_rules()}

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def watch(code, function):
    watch = WatchSession([RULES[code]])
    with warnings.catch_warnings(action="ignore"):  # torch may warn of the script
        watch.run(function)
    report = watch.report()
    assert (report.failures, report.stopped_at) == ({}, None)
    return [finding.rule for finding in report.findings]


def watch_example(example, folder):
    path = folder / example.path.name  # a rule reads the line that it reports
    path.write_text(example.text)
    example = replace(example, path=path)
    return watch(example.code, lambda: exec(example.compile(), {"__name__": "__main__"}))


def examples(kind, *codes):
    """Parametrize a test by the examples of rules."""
    found = [made for made in list_examples() if made.kind == kind and made.code in codes]
    return pytest.mark.parametrize("example", found, ids=lambda made: f"{made.code}-{made.name}")


@examples("bad", "SS111", "SS702", "SS709")
def test_bad_example_is_found_on_a_gpu(example, tmp_path):
    assert watch_example(example, tmp_path) == [example.code]


@examples("good", *NEED_GPU)
def test_good_example_has_no_finding_on_a_gpu(example, tmp_path):
    assert watch_example(example, tmp_path) == []


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


def test_correct_scripts_have_no_finding_on_a_gpu():
    words = ["-m", "tests.doctor.planted", "--correct", "--processes", "4"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}  # the processes share the cores
    done = subprocess.run([sys.executable, *words], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
