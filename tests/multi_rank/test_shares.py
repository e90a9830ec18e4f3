"""The formula of `surestep plan --ranks`, beside the bytes that ranks really hold."""

import pytest
import torch

from surestep.engine.measure.footprint import Footprint, size_of
from surestep.engine.measure.shares import shares
from tests.multi_rank.cases import task
from tests.multi_rank.ways import WAYS

# What the formula calls the ways that cut their state by rows.
CALLED = {
    "ddp": "ddp",
    "accelerate": "ddp",
    "fsdp-full": "fsdp full",
    "fsdp-grad_op": "fsdp grad_op",
    "fsdp-hybrid": "fsdp hybrid",
}


@pytest.mark.parametrize(("way", "count"), [(w, n) for w in CALLED for n in WAYS[w].ranks])
def test_the_first_rank_holds_what_the_formula_says(launch, way, count):
    first = torch.load(launch(count) / "rank-0.pt")
    model = task().build_model()
    size = size_of(model.parameters())
    takes = Footprint([], 0, 0, size, 0, size, 2 * size, 0)
    how = {"blocks": [], "ranks": count, "local": 2, "precision": "fp32"}
    told = {each.way: each for each in shares(model, takes, **how)}[CALLED[way]]
    held = first[way, "one micro-batch", "adamw"]["shown"]["bytes"]
    steps = 4 * len(list(model.parameters()))  # torch's count for each parameter
    assert (held["weights"], held["gradients"]) == (told.weights, told.gradients)
    assert held["optimizer"] == told.optimizer + steps
