"""Checks of ranks against one process, for the tests and their mutations."""

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
    """Check that each rank ends with the weights and the progress of one process (law 1)."""
    for each in ranks:
        assert distance(one["weights"], each["weights"]) <= tolerance
        assert each["place"] == one["place"]


def check_copies(ranks: Sequence[Found]) -> None:
    """Check that all ranks have bitwise equal weights and equal progress."""
    assert all(same(ranks[0]["weights"], each["weights"]) for each in ranks)
    assert all(ranks[0]["talks"] == each["talks"] > 0 for each in ranks)


def check_losses(one: Found, ranks: Sequence[Found]) -> None:
    """Check that the loss of a step is that of the full batch."""
    for each in ranks:
        assert each["losses"] == pytest.approx(one["losses"], rel=1e-5, nan_ok=True)


def check_measured(one: Found, ranks: Sequence[Found], samples: int = SAMPLES) -> None:
    """Check that an evaluation counts each sample once, without padding."""
    for each in ranks:
        measured = each["metrics"]
        assert measured == pytest.approx(one["metrics"], rel=1e-5)
        right = measured["val/accuracy"] * samples
        assert right == pytest.approx(round(right), abs=1e-4)


def check_resumed(ranks: Sequence[Found], at_once: Sequence[Found]) -> None:
    """Check that the same number of ranks resumes bit for bit (law 2)."""
    for each, whole in zip(ranks, at_once, strict=True):
        assert same(each["weights"], whole["weights"])


def check_stopped(ranks: Sequence[Found], *, asked_in: int) -> None:
    """Check that all ranks fulfil a request of one rank one step later (law 10)."""
    assert [each["steps"] for each in ranks] == [list(range(1, asked_in + 2))] * len(ranks)


def check_drift_is_reported(said: str, name: str) -> None:
    """Check that diverging replicas are reported with the parameter."""
    assert "are no longer the same after step 3: " in said
    assert f"{name} has different values on rank 1" in said


def check_differences_are_reported(said: str, *lines: str) -> None:
    """Check that different options of ranks are reported with both values."""
    assert "ParallelError: The ranks have different setups:\n" in said
    assert all(f"  {line}\n" in said for line in lines)
