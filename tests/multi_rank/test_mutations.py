"""Each law of ranks is broken on purpose, and the check of its tests must fail.

The cases and what breaks them are in `mutations.py`; one process forks them all.
"""

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch

from tests.multi_rank.checks import (
    check_copies,
    check_differences_are_reported,
    check_drift_is_reported,
    check_losses,
    check_measured,
    check_resumed,
    check_stopped,
    check_weights,
)
from tests.multi_rank.deepspeed_mutations import check_zero
from tests.multi_rank.forked import Ended, ended
from tests.multi_rank.mutations import CASES, MANY, MUTATIONS
from tests.multi_rank.starter import start
from tests.multi_rank.torchrun import check_ended_well

ALONE = (
    "cut",
    "shuffled",
    "measured",
    "clipped by parts",
    "by zero",
)  # cases that one process runs too
RATES = "optim.lr: 0.01 on rank 0; 0.001 on rank 1"


class Came(NamedTuple):
    """The outcomes of two ranks, and the results of those that exited normally."""

    ended: Ended
    found: list[dict[str, Any]]


@pytest.fixture(scope="module")
def came(tmp_path_factory) -> dict[str, Came]:
    folder = tmp_path_factory.mktemp("mutations")
    check_ended_well(start("mutations", folder))
    return {
        name: Came(how, [torch.load(each) for each in sorted(folder.glob(f"{name}-[01].pt"))])
        for name, how in ended(folder, [*CASES, *MUTATIONS]).items()
    }


@pytest.fixture(scope="module")
def one(tmp_path_factory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("alone")
    return {name: CASES[name](folder / name) for name in ALONE}


def check_trained(one: dict[str, Any], name: str, ranks: list[dict[str, Any]]) -> None:
    check_weights(one[name], ranks)
    check_copies(ranks)
    check_losses(one[name], ranks)
    check_measured(one[name], ranks)


def check_synced(ranks: list[dict[str, Any]]) -> None:
    """Check that each file was synced by its rank before publication (law 7)."""
    synced: dict[str, float] = {}
    for each in ranks:
        synced |= {name: at for name, at in each["synced"].items() if name in each["files"]}
    assert synced.keys() == set(ranks[0]["files"])
    assert any("rank-00001" in name for name in synced)
    assert max(synced.values()) < ranks[0]["published"]


def check(one: dict[str, Any], came: dict[str, Came], case: str, name: str) -> None:
    """Check the results of the ranks against the law of a case."""
    how, ranks = came[name]
    assert how.codes == [0, 0], "\n".join(how.wrote)
    checks: dict[str, Callable[[], None]] = {
        **{each: lambda: check_trained(one, case, ranks) for each in ("cut", "shuffled")},
        "clipped by parts": lambda: check_trained(one, case, ranks),
        "measured": lambda: check_measured(one[case], ranks, MANY),
        "by zero": lambda: check_zero(one[case], ranks),
        "stopped": lambda: check_stopped(ranks, asked_in=3),
        "by parts": lambda: check_copies(ranks),
        "gone on by parts": lambda: check_resumed(ranks, came["by parts"].found),
        "saved by parts": lambda: check_synced(ranks),
        "pushed": lambda: [check_drift_is_reported(each["told"], "2.bias") for each in ranks],
        "other options": lambda: [
            check_differences_are_reported(each["told"], RATES) for each in ranks
        ],
    }
    checks[case]()


@pytest.mark.parametrize("case", CASES)
def test_ranks_keep_the_law(one, came, case):
    check(one, came, case, case)


@pytest.mark.parametrize(
    "name", MUTATIONS, ids=[f"law {each.law}: {name}" for name, each in MUTATIONS.items()]
)
def test_check_of_a_law_fails_if_the_law_is_broken_on_ranks(one, came, name):
    mutation = MUTATIONS[name]
    with pytest.raises(AssertionError):
        check(one, came, mutation.case, name)
    if mutation.ends:
        assert re.search(mutation.ends, "".join(came[name].ended.wrote))
    else:
        assert came[name].ended.codes == [0, 0]
