"""What must hold of ranks beside one process, for the tests and for what they must not let pass."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.multi_rank.cases import SAMPLES

Found = dict[str, Any]


def distance(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    """Return |a - b| / |a| over all weights."""
    first = torch.cat([each.double().flatten() for each in a.values()])
    second = torch.cat([each.double().flatten() for each in b.values()])
    return float((first - second).norm() / first.norm())


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def check_weights(one: Found, ranks: Sequence[Found], tolerance: float = 1e-6) -> None:
    """Each rank comes to the weights and the place of one process (law 1)."""
    for each in ranks:
        assert distance(one["weights"], each["weights"]) <= tolerance
        assert each["place"] == one["place"]


def check_copies(ranks: Sequence[Found]) -> None:
    """All ranks hold the same weights, bit for bit, and went through the same places."""
    assert all(same(ranks[0]["weights"], each["weights"]) for each in ranks)
    assert all(ranks[0]["talks"] == each["talks"] > 0 for each in ranks)


def check_losses(one: Found, ranks: Sequence[Found]) -> None:
    """The loss of a step is that of the whole batch."""
    for each in ranks:
        assert each["losses"] == pytest.approx(one["losses"], rel=1e-5, nan_ok=True)


def check_measured(one: Found, ranks: Sequence[Found], samples: int = SAMPLES) -> None:
    """An evaluation counts each sample once: nothing is padded."""
    for each in ranks:
        measured = each["metrics"]
        assert measured == pytest.approx(one["metrics"], rel=1e-5)
        right = measured["val/accuracy"] * samples
        assert right == pytest.approx(round(right), abs=1e-4)


def check_gone_on(ranks: Sequence[Found], at_once: Sequence[Found]) -> None:
    """As many ranks go on bit for bit (law 2)."""
    for each, whole in zip(ranks, at_once, strict=True):
        assert same(each["weights"], whole["weights"])


def check_stopped(ranks: Sequence[Found], *, asked_in: int) -> None:
    """What one rank asks for in a step all do one step later (law 10)."""
    assert [each["steps"] for each in ranks] == [list(range(1, asked_in + 2))] * len(ranks)


def check_drift_told(said: str, name: str) -> None:
    """Copies that drift apart are told, with the parameter."""
    assert "are no longer the same after step 3: " in said
    assert f"{name} has other values on rank 1" in said


def check_differences_told(said: str, *lines: str) -> None:
    """Ranks that were asked for other things are told both."""
    assert "ParallelError: The ranks do not train the same:\n" in said
    assert all(f"  {line}\n" in said for line in lines)
