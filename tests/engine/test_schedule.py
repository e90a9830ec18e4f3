import math
from dataclasses import replace

import pytest
import torch
from torch.optim import lr_scheduler

from surestep.engine.schedule import Shape, factor, rates

CONSTANT = Shape("constant", total=40, warmup=0, min_lr_ratio=0.0, floor="scale", every=1)
COSINE = replace(CONSTANT, name="cosine")


def torch_factors(total, warmup, make_body):
    """The factors that torch's own schedulers give: warm-up, then a body."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    parts, milestones = [make_body(optimizer)], []
    if warmup:
        linear = lr_scheduler.LinearLR(optimizer, start_factor=1 / warmup, total_iters=warmup)
        parts, milestones = [linear, *parts], [warmup]
    scheduler = lr_scheduler.SequentialLR(optimizer, parts, milestones)
    found = []
    for _ in range(total):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return found


@pytest.mark.filterwarnings("ignore:The epoch parameter")
@pytest.mark.parametrize("warmup", [0, 1, 8])
@pytest.mark.parametrize("ratio", [0.0, 0.1])
def test_cosine_with_warmup_is_torchs(warmup, ratio):
    shape = replace(COSINE, warmup=warmup, min_lr_ratio=ratio)
    expected = torch_factors(
        40,
        warmup,
        lambda optimizer: lr_scheduler.CosineAnnealingLR(
            optimizer, T_max=40 - warmup, eta_min=ratio
        ),
    )
    assert list(map(factor(shape), range(40))) == pytest.approx(expected, abs=1e-12)


def test_constant_is_one():
    assert set(map(factor(CONSTANT), range(60))) == {1.0}


def test_warmup_reaches_the_peak_when_it_ends():
    at = factor(replace(CONSTANT, warmup=5))
    assert [at(step) for step in range(6)] == pytest.approx([0.2, 0.36, 0.52, 0.68, 0.84, 1.0])


def test_a_scaled_floor_is_where_the_curve_ends_and_a_cut_floor_is_where_it_stops():
    scaled = factor(replace(COSINE, min_lr_ratio=0.1))
    cut = factor(replace(COSINE, min_lr_ratio=0.1, floor="cut"))
    assert scaled(40) == cut(40) == pytest.approx(0.1)
    assert cut(35) == 0.1 < scaled(35)
    assert cut(20) == pytest.approx(0.5)


def test_after_its_end_the_rate_stays():
    at = factor(replace(COSINE, min_lr_ratio=0.2))
    assert at(41) == at(400) == at(40)


def test_a_staircase_moves_once_an_epoch():
    at = factor(replace(COSINE, every=10))
    assert [len({at(step) for step in range(start, start + 10)}) for start in (0, 10, 20)] == [
        1
    ] * 3
    assert [at(start) for start in (0, 10, 20)] == pytest.approx(
        [(1 + math.cos(math.pi * share)) / 2 for share in (0, 0.25, 0.5)]
    )


def test_a_run_that_is_all_warmup_never_passes_the_peak():
    at = factor(replace(COSINE, warmup=40))
    assert max(at(step) for step in range(41)) <= 1.0


def test_rates_are_for_people():
    found = rates(replace(COSINE, warmup=4), lr=0.4)
    assert found["first"] == pytest.approx(0.1)
    assert found["peak"] == pytest.approx(0.4)
    assert 0 < found["last"] < 0.01
