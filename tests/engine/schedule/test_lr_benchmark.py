"""How `python -m benchmarks.lr_find` counts, and that its rules are those of the libraries."""

import math

import numpy as np
import pytest
from benchmarks.lr_find import Grid, Suggestion, describe_rule
from benchmarks.lr_rules import RULES, average, end_at, valley

from tests.engine.schedule.test_suggest_lr import quadratic
from tests.needs import needs

GRID = Grid(
    [0.001, 0.01, 0.1, 1.0],
    [[2.0, 2.0, 2.0], [1.01, 1.03, 0.99], [1.0, 1.02, 0.98], [math.inf, 0.1, 0.1]],
)


def test_best_rate_has_the_lowest_mean_and_diverged_runs_are_worst():
    assert GRID.best == 0.1
    assert GRID.good() == [0.01, 0.1]  # their means differ by 1%


def test_factors_are_those_to_the_best_rate_and_to_the_nearest_good_one():
    one = Suggestion("task", 0.004, GRID)
    assert one.factor([GRID.best]) == pytest.approx(25)
    assert one.factor(GRID.good()) == pytest.approx(2.5)
    assert Suggestion("task", None, GRID).factor(GRID.good()) == math.inf
    cells = describe_rule("rule", [one, Suggestion("task", 0.25, GRID)]).split("|")
    assert [cell.strip() for cell in cells[1:-1]] == ["rule", "2/2", "1/2", "1/2", "14", "25"]


def test_no_rule_reads_a_curve_after_its_end():
    curve = quadratic(0)
    suggested = {name: rule(curve.rates, curve.losses) for name, rule in RULES.items()}
    ends = [(0.05, False, 5), (0.02, True, 4)]
    end = max(len(end_at(average(curve.losses, a, is_corrected=b), c)) for a, b, c in ends)
    assert end < len(curve.losses)
    changed = [*curve.losses[:end], *[1e9] * (len(curve.losses) - end)]
    assert {name: rule(curve.rates, changed) for name, rule in RULES.items()} == suggested


def test_valley_is_the_middle_of_the_longest_descent():
    losses = np.array([3.0, 9.0, 8.0, 7.0, 3.5, 6.0, 5.0, 4.0, 9.0, 9.0])
    rates = np.arange(1.0, 11.0)
    assert valley(rates, losses) == 5  # of 9, 8, 7, 6, 5 and 4, which end at the eighth rate


@pytest.mark.slow("needs every library of dev-all")
@pytest.mark.filterwarnings("ignore:.torch.jit..* is deprecated")  # at their imports
@pytest.mark.parametrize("seed", range(5))
def test_rules_of_lightning_and_ignite_are_those_of_the_packages(seed):
    needs("lightning")
    needs("ignite")
    from ignite.handlers import FastaiLRFinder
    from lightning.pytorch.tuner.lr_finder import _LRFinder

    curve = quadratic(seed, noise=0.3)
    rates, losses = np.array(curve.rates), curve.losses
    theirs = _LRFinder("exponential", rates[0], rates[-1], len(rates))
    smooth = end_at(average(losses, 0.02, is_corrected=True), 4)
    theirs.results = {"lr": list(rates[: len(smooth)]), "loss": list(smooth)}
    assert RULES["Lightning"](curve.rates, losses) == theirs.suggestion()
    finder = FastaiLRFinder()
    smooth = end_at(average(losses, 0.05, is_corrected=False), 5)
    finder._history = {"lr": list(rates[: len(smooth)]), "loss": list(smooth)}
    assert RULES["Ignite"](curve.rates, losses) == finder.lr_suggestion()
