"""`docs/the-loop.md` has the script of today, and the experiments of the command."""

import re

import pytest

from tests.eject.the_loop.experiments import COMMAND, EXPERIMENTS, edit, print_digits
from tests.eject.the_loop.page import (
    PAGE,
    read_code,
    read_results,
    replace_experiments,
)

# Whose results are the same with every release of torch.
STABLE = ("model_seed", "write", "pickle", "train_mode")
TEXT = PAGE.read_text(encoding="utf-8")


def test_page_has_all_lines_of_the_script_in_order():
    assert read_code(TEXT) == [line for line in print_digits().splitlines() if line]
    assert f"$ {COMMAND} " in TEXT


def test_experiments_of_the_page_are_those_of_the_command():
    results = read_results(TEXT)
    assert sorted(results) == sorted(one.name for one in EXPERIMENTS)
    assert replace_experiments(TEXT, lambda one: results[one.name]) == TEXT


def test_experiments_change_the_script_of_today():
    for one in EXPERIMENTS:
        compile(edit(one.edits), one.name, "exec")


def test_experiments_report_what_happens_and_which_rule_finds_it():
    form = r"- The script: .+\.\n- With the change: .+\.\n- (Found by .+|No rule finds it\.)"
    for name, result in read_results(TEXT).items():
        assert re.fullmatch(form, result), name


@pytest.mark.slow("trains the script several times")
def test_stable_results_of_the_page_are_those_of_today():
    results = read_results(TEXT)
    for one in (one for one in EXPERIMENTS if one.name in STABLE):
        before, _, after = results[one.name].partition("\n")
        assert before == f"- The script: {one.measure(print_digits())}."
        if one.name != "model_seed":  # how far apart weights are depends on the machine
            assert after.startswith(f"- With the change: {one.measure(edit(one.edits))}.")
