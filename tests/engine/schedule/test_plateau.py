import math

import pytest
import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau

from surestep.engine.schedule.lr import PlateauState

OWN = {"factor": 0.3, "patience": 2, "threshold": 1e-2, "threshold_mode": "rel", "cooldown": 0}


def measured(length: int = 50) -> list[float]:
    """A metric that falls, stays flat with noise and some NaNs, and then rises in the same way."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.rand(length, generator=generator).tolist()
    values = [1 / (1 + 0.2 * step) + 0.05 * each for step, each in enumerate(noise)]
    values[0] = values[7] = math.nan
    return values + [1.5 - value for value in values]


@pytest.mark.parametrize("mode", ["min", "max"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"threshold_mode": "abs"},
        {"cooldown": 3},
        {"patience": 0, "factor": 0.9},
        {"patience": 0, "factor": 0.01},
        {"threshold": 0.0, "cooldown": 1},
    ],
)
@pytest.mark.parametrize("floor", [0.0, 0.02])
def test_plateau_schedule_equals_torch_at_every_evaluation(mode, options, floor):
    own, lr = {**OWN, **options}, 0.1
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=lr)
    theirs = ReduceLROnPlateau(optimizer, mode=mode, min_lr=floor, **own)
    plateau, found, expected = PlateauState(), [], []
    for value in measured():
        before = plateau.scale
        fell = plateau.update(value, own, mode=mode, min_lr_ratio=floor / lr, lr=lr)
        assert fell == (plateau.scale < before)
        theirs.step(value)
        found.append(lr * plateau.scale)
        expected.append(optimizer.param_groups[0]["lr"])
    assert found == pytest.approx(expected, rel=1e-12)
    assert found[-1] < lr


def test_plateau_continues_from_its_state():
    plateau, again = PlateauState(), PlateauState()
    options = {"mode": "min", "min_lr_ratio": 0.0, "lr": 0.1}
    values = [1.0, 2.0, 2.0, 2.0, 2.0, 2.0]
    for value in values[:3]:
        plateau.update(value, OWN, **options)
    again.load_state_dict(plateau.state_dict())
    found = [
        [one.update(value, OWN, **options) for value in values[3:]] for one in (plateau, again)
    ]
    assert found == [[True, False, False]] * 2
    assert vars(again) == vars(plateau)


def test_values_of_another_metric_are_forgotten_and_the_rate_stays():
    plateau = PlateauState(scale=0.3, best=1.0, bad=2, cooling=1)
    plateau.forget()
    assert plateau == PlateauState(scale=0.3, cooling=1)
