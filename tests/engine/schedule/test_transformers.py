"""Each schedule that transformers has equals theirs at every step of a run."""

import logging

import pytest
import torch

from surestep.engine.schedule.curves import lr_factor
from tests.engine.schedule.test_curves import LR, STEPS, equal, ours, shape
from tests.needs import needs

W = 7
WARM = {"warmup": f"{W} steps", "warmup_start": 0.0}
CASES = {
    "constant": ("get_constant_schedule_with_warmup", (), WARM),
    "linear": ("get_linear_schedule_with_warmup", (STEPS,), WARM),
    "cosine": ("get_cosine_schedule_with_warmup", (STEPS,), WARM),
    "cosine to a floor": (
        *("get_cosine_with_min_lr_schedule_with_warmup", (STEPS, 0.5, -1, 0.1)),
        {"min_lr": 0.1},
    ),
    "cosine_restarts": (
        *("get_cosine_with_hard_restarts_schedule_with_warmup", (STEPS, 3)),
        {"cycles": 3},
    ),
    "polynomial": (
        *("get_polynomial_decay_schedule_with_warmup", (STEPS, 0.01, 1.5)),
        {"min_lr": 0.01, "power": 1.5},
    ),
    "inverse_sqrt": ("get_inverse_sqrt_schedule", (), {}),
    "inverse_sqrt, slower": ("get_inverse_sqrt_schedule", (20,), {"timescale": "20 steps"}),
    **{
        f"warmup_stable_decay, {curve}": (
            *("get_wsd_schedule", (12, STEPS, None, "linear", curve)),
            {"decay": "20%", "decay_shape": curve},
        )
        for curve in ("linear", "cosine", "1-sqrt")
    },
    "warmup_stable_decay, their default": (
        *("get_wsd_schedule", (12, STEPS)),
        {"decay": "20%", "decay_shape": "cosine"},
    ),
    "warmup_stable_decay, our default": (
        *("get_wsd_schedule", (12, STEPS, None, "linear", "1-sqrt")),
        {"decay": "20%"},
    ),
    "warmup_stable_decay to a floor": (
        *("get_wsd_schedule", (12, STEPS, None, "linear", "linear", 0.1)),
        {"decay": "20%", "decay_shape": "linear", "min_lr_ratio": 0.1, "warmup_start": 0.1},
    ),
}


@pytest.fixture(scope="module")
def theirs():
    level = logging.root.manager.disable
    logging.disable()  # of optional libraries that are missing on this machine
    yield needs("transformers.optimization")
    logging.disable(level)


@pytest.mark.parametrize("case", CASES)
def test_schedule_equals_transformers_at_every_step(case, theirs):
    name, arguments, options = CASES[case]
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=LR)
    scheduler = getattr(theirs, name)(optimizer, W, *arguments)
    expected = []
    for _ in range(STEPS):
        expected.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    plain = case.split(",")[0].split(" ")[0]
    equal(ours(shape(name=plain, **{**WARM, **options})), expected)


def test_inverse_sqrt_without_warmup_has_the_timescale_of_transformers(theirs):
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=LR)
    scheduler = theirs.get_inverse_sqrt_schedule(optimizer, 0)
    at = lr_factor(shape(name="inverse_sqrt"))
    for step in range(5):
        assert LR * at(step) == pytest.approx(scheduler.get_last_lr()[0], rel=1e-12)
        optimizer.step()
        scheduler.step()
