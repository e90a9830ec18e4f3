"""Compare the formula of `surestep plan --ranks` with the bytes that ranks hold."""

from pathlib import Path

import pytest

from surestep.engine.batch import tensor_bytes
from surestep.engine.profile.rank_memory import (
    RankMemory,
    estimate_rank_memory,
)
from surestep.engine.profile.step_memory import StepMemory
from tests.multi_rank.cases import task
from tests.multi_rank.strategies import MEASURED, WAYS
from tests.multi_rank.torchrun import results_of

# Names of the strategies in the formula that shard their state by rows.
CALLED = {
    "ddp": "ddp",
    "accelerate": "ddp",
    "fsdp-full": "fsdp full",
    "fsdp-grad_op": "fsdp grad_op",
    "fsdp-hybrid": "fsdp hybrid",
}


STAGES = ("zero-1", "zero-2", "zero-3")
FLATS, COPIES = 2, 3  # decayed or not; weights and two moments of each


def compared(folder: Path, way: str, called: str, count: int) -> tuple[dict[str, int], RankMemory]:
    """Return the bytes that rank 0 holds, and those of the formula."""
    first = results_of(folder, count)[0]
    model = task().build_model()
    size = tensor_bytes(model.parameters())
    takes = StepMemory(1, size, 0, 0, 2 * size, 0)
    how = {"blocks": [], "ranks": count, "local": 2, "precision": "fp32"}
    told = {each.strategy: each for each in estimate_rank_memory(model, takes, **how)}[called]
    return first[way, *MEASURED]["shown"]["bytes"], told


@pytest.mark.parametrize(("way", "count"), [(w, n) for w in CALLED for n in WAYS[w].ranks])
def test_rank_0_holds_the_bytes_of_the_formula(launch, way, count):
    held, told = compared(launch(count), way, CALLED[way], count)
    steps = 4 * len(
        list(task().build_model().parameters())
    )  # torch's step count for each parameter
    assert (held["weights"], held["gradients"]) == (told.weights, told.gradients)
    assert held["optimizer"] == told.optimizer + steps


@pytest.mark.parametrize(("way", "count"), [(w, n) for w in STAGES for n in WAYS[w].ranks])
def test_rank_0_of_zero_holds_the_bytes_of_the_formula_and_padding(launch, way, count):
    """Stages 1 and 2 pad each flat shard to twice the ranks; stage 3 pads each parameter."""
    held, told = compared(launch(count), way, f"deepspeed {way.replace('-', ' ')}", count)
    parts = len(list(task().build_model().parameters())) if way == "zero-3" else 2 * FLATS
    assert 0 <= held["weights"] - told.weights <= (4 * parts if way == "zero-3" else 0)
    steps = 4 * FLATS
    assert 0 <= held["optimizer"] - steps - told.optimizer <= 4 * parts * COPIES
