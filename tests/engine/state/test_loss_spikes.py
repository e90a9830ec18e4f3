"""Only losses far above the preceding ones are spikes."""

import random

import pytest
import torch

from surestep.engine.state.loss_spikes import LEAST, STRETCH, WINDOW, LossSpike, SpikeDetector

NAN = float("nan")


def noisy(count: int, level: float = 1.0, spread: float = 0.05) -> list[float]:
    draw = random.Random(4)
    return [draw.gauss(level, spread) for _ in range(count)]


def steps_of(losses: list[float | None], first: int = 1) -> list[int]:
    return [spike.step for spike in SpikeDetector().find(first, losses)]


def test_jump_is_a_spike_with_a_robust_z_score():
    losses = noisy(101)
    (spike,) = SpikeDetector().find(1, [*losses, 3.0])
    kept = torch.tensor(losses, dtype=torch.float64)
    median = float(kept.median())
    mad = 1.4826 * float((kept - median).abs().median())
    upper = (float(kept.sort().values[90]) - median) / 1.2816
    assert spike.step == 102
    assert spike.median == pytest.approx(median)
    assert spike.z == pytest.approx((3.0 - median) / max(mad, upper, 0.05 * median))
    assert spike.z > 10


def test_losses_below_zero_have_spikes():
    assert steps_of([-1.0] * 100 + [-0.9, 0.0]) == [102]


@pytest.mark.parametrize(("before", "counted"), [(33, 33), (80, 80), (400, WINDOW)])
def test_spike_has_the_number_of_losses_of_its_median(before, counted):
    (spike,) = SpikeDetector().find(1, [*noisy(before), 9.0])
    assert spike.n_losses == counted


@pytest.mark.parametrize(
    "losses",
    [
        noisy(400),
        [*noisy(100), *noisy(100, 0.01, 0.001)],
        [3 * 0.97**step for step in range(400)],
        [0.01 * step for step in range(400)],
        [1.0] * 200 + [1.4],
        [0.0] * 200 + [0.5],
        [*noisy(100), -5.0, -100.0],
        [5.0 if step % 9 == 0 else 0.01 for step in range(400)],
    ],
    ids=["noise", "drop", "decay", "slow rise", "constant", "zero", "fall", "long tail"],
)
def test_noise_drops_slow_rises_and_long_tails_are_not_spikes(losses):
    assert steps_of(losses) == []


def test_spikes_need_a_minimum_number_of_losses():
    assert steps_of([*noisy(LEAST - 1), 100.0]) == []
    assert steps_of([*noisy(LEAST), 100.0]) == [LEAST + 1]


def test_persistent_higher_level_is_a_spike_only_at_first():
    found = steps_of([*noisy(300), *noisy(300, 9.0)])
    assert found[0] == 301
    assert len(found) < WINDOW / 2


def test_missing_and_nonfinite_losses_are_ignored():
    losses = noisy(100)
    holes = [*losses[:50], None, NAN, float("inf"), *losses[50:]]
    plain, with_holes = SpikeDetector(), SpikeDetector()
    plain.find(1, losses)
    assert with_holes.find(1, holes) == []
    assert plain.losses == with_holes.losses


@pytest.mark.parametrize("cut", [1, 7, 50])
def test_spikes_do_not_depend_on_the_log_points(cut):
    losses = [*noisy(150), 5.0, *noisy(40), 4.0, *noisy(200, 2.0)]
    whole, parts, found = SpikeDetector(), SpikeDetector(), []
    for start in range(0, len(losses), cut):
        found += parts.find(start + 1, losses[start : start + cut])
    assert found == whole.find(1, losses)
    assert found
    assert parts == whole
    assert len(parts.losses) == WINDOW


def test_skipped_stretch_starts_before_the_spike_and_doubles():
    spikes = SpikeDetector()
    spike = LossSpike(40, 9.0, 99.0, 1.0, 39)
    assert [spikes.skip_after(spike) for _ in range(3)] == [
        (39, 39 + STRETCH - 1),
        (39, 39 + 2 * STRETCH - 1),
        (39, 39 + 4 * STRETCH - 1),
    ]
    assert spikes.rollbacks == 3
