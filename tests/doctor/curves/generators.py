"""Curves of each state, drawn at random: lengths, sizes, noise and shapes differ."""

import math
from dataclasses import replace

import numpy as np

from surestep.doctor.curves.curve import Curve, Evaluations


def noise(rng, count, share):
    """Return factors of the losses of batches: normal, skewed, or similar from step to step."""
    kind = rng.integers(4)
    if kind == 0:
        return 1 + share * rng.normal(size=count)
    if kind == 1:
        return rng.gamma(1 / share**2, share**2, size=count)
    if kind == 2:
        return np.exp(share * rng.normal(size=count) - share**2 / 2)
    similar = np.zeros(count)
    drawn, memory = rng.normal(size=count), rng.uniform(0.2, 0.8)
    for i in range(1, count):
        similar[i] = memory * similar[i - 1] + math.sqrt(1 - memory**2) * drawn[i]
    return 1 + share * similar


def exponential(rng, t):
    return np.exp(-rng.uniform(2, 60) * t)


def power_law(rng, t):
    return (1 + rng.uniform(20, 5000) * t) ** -rng.uniform(0.1, 0.8)


def sigmoid(rng, t):
    """A loss that falls late: after the warm-up, or once the model has found the pattern."""
    middle, width = rng.uniform(0.05, 0.5), rng.uniform(0.01, 0.1)
    return 1 / (1 + np.exp((t - middle) / width))


def step_decay(rng, t):
    stages = rng.integers(2, 5)
    falls = [np.exp(-rng.uniform(20, 80) * np.maximum(t - i / stages, 0)) for i in range(stages)]
    return np.mean(falls, axis=0)


def restarts(rng, t):
    """Warm restarts: at each, the loss rises by a part of its fall."""
    cycles = rng.integers(2, 6)
    phase = (t * cycles) % 1
    base = np.exp(-rng.uniform(3, 20) * t)
    return base + rng.uniform(0.02, 0.3) * np.exp(-15 * phase) * (t > 1 / cycles) * (1 - base)


def two_phases(rng, t):
    return 0.7 * np.exp(-rng.uniform(50, 300) * t) + 0.3 * np.exp(-rng.uniform(1, 6) * t)


SHAPES = (exponential, power_law, sigmoid, step_decay, restarts, two_phases)


def healthy(seed, shape=None):
    """Return a curve of a correct run, with evaluations that have a gap or none."""
    rng = np.random.default_rng(seed)
    count = int(np.exp(rng.uniform(np.log(100), np.log(5000))))
    t = np.arange(count) / count
    shape = shape or SHAPES[rng.integers(len(SHAPES))]
    floor = rng.choice([0.0, 10 ** rng.uniform(-3, 0)])
    size = 10 ** rng.uniform(-2, 3)
    clean = size * (shape(rng, t) + floor)
    losses = clean * noise(rng, count, rng.uniform(0.01, 0.5))
    spikes = rng.random(count) < rng.choice([0, 0.003])
    losses = np.where(spikes, losses * rng.uniform(2, 30, size=count), losses)
    if rng.random() < 0.2:
        losses[rng.random(count) < 0.01] = np.nan
        losses[-3:] = clean[-3:]
    steps = np.arange(1, count + 1.0)
    rates = rng.choice([0, 1, 2, 3])
    lr = {
        0: None,
        1: np.full(count, 1e-3),
        2: 1e-3 * (1 + np.cos(np.pi * t)) / 2,
        3: 1e-3 * np.minimum(t / 0.1, 1) * (1 - t),
    }[int(rates)]
    if shape is restarts and lr is not None:
        lr = 1e-3 * (1 + np.cos(np.pi * (t * 3 % 1))) / 2
    return Curve(
        steps,
        losses,
        lr,
        evaluations_of(rng, clean, steps),
        classes=rng.choice([None, 2, 10, 1000]),
        total_steps=count,
        is_regularized=rng.choice([None, True, False]),
    )


def evaluations_of(rng, clean, steps):
    """Evaluate with a gap, a little noise, and a rise of at most a tenth at the end."""
    every = max(1, int(len(steps) / rng.integers(3, 60)))
    at = np.arange(every - 1, len(steps), every)
    gap = 1 + rng.uniform(-0.3, 0.5) * at / len(steps)
    losses = np.minimum.accumulate(clean[at] * gap)
    losses = losses * (1 + rng.uniform(0, 0.1) * at / len(steps))
    losses = losses * (1 + rng.uniform(0, 0.05) * rng.normal(size=len(at)))
    return Evaluations(steps[at], losses, {"accuracy": 1 / (1 + losses / clean[0])})


def flat(seed):
    rng = np.random.default_rng(seed)
    count = int(rng.integers(400, 4000))
    losses = 10 ** rng.uniform(-2, 3) * noise(rng, count, rng.uniform(0.005, 0.15))
    return Curve(np.arange(1, count + 1.0), losses, np.full(count, 1e-9))


def stuck(seed):
    """A start above log(classes), a fall to it, and nothing after it."""
    rng = np.random.default_rng(seed)
    count, classes = int(rng.integers(300, 4000)), int(rng.choice([2, 5, 10, 100, 1000]))
    t = np.arange(count) / count
    clean = math.log(classes) * (1 + rng.uniform(0, 0.5) * np.exp(-rng.uniform(20, 200) * t))
    losses = clean * noise(rng, count, rng.uniform(0.005, 0.08))
    return Curve(np.arange(1, count + 1.0), losses, np.full(count, 1e-3), classes=classes)


def diverging(seed):
    """A fall and then a rise without end, or one to NaN."""
    rng = np.random.default_rng(seed)
    curve = healthy(seed, exponential)
    losses, count = curve.losses.copy(), len(curve.losses)
    begin = int(rng.uniform(0.1, 0.6) * count)
    if rng.random() < 0.3:
        losses[begin:] = [np.nan, np.inf][rng.integers(2)]
    else:
        ramp = np.arange(count - begin) / (count - begin)
        height = rng.uniform(3, 100) * np.nanmax(losses[: max(5, begin // 10)])
        rise = np.minimum(ramp * rng.uniform(2, 20), 1) * height
        losses[begin:] = losses[begin:] + rise * noise(rng, count - begin, 0.2)
    return replace(curve, losses=losses, rates=np.full(count, 1.0), evaluations=Evaluations())


def overfitting(seed):
    """Training falls to the end; the validation loss rises from its best."""
    rng = np.random.default_rng(seed)
    count = int(rng.integers(300, 4000))
    t = np.arange(count) / count
    size = 10 ** rng.uniform(-1, 1)
    train = size * np.exp(-rng.uniform(4, 10) * t)
    evaluations = int(rng.integers(12, 60))
    at = np.linspace(count // evaluations, count - 1, evaluations).astype(int)
    best = rng.uniform(0.1, 0.5)
    slope = rng.uniform(0.5, 2)
    val = size * np.where(
        t[at] < best,
        0.4 + 0.6 * (1 - t[at] / best) ** 2,
        0.4 + slope * (t[at] - best),
    )
    val = val * (1 + rng.uniform(0, 0.03) * rng.normal(size=evaluations))
    return Curve(
        np.arange(1, count + 1.0),
        train * noise(rng, count, rng.uniform(0.02, 0.3)),
        np.full(count, 1e-3),
        Evaluations(at + 1.0, val, {"accuracy": np.minimum(0.8, 0.5 + 0.4 * t[at] / best)}),
    )


def oscillating(seed):
    """A loss that swings slowly between two levels after a short fall."""
    rng = np.random.default_rng(seed)
    count, size = int(rng.integers(400, 4000)), 10 ** rng.uniform(-2, 2)
    t = np.arange(count) / count
    fall = 0.5 * np.exp(-30 * t)
    wave = 0.5 * (1 + np.sin(2 * np.pi * rng.uniform(12, 18) * t + rng.uniform(0, 6)))
    clean = size * (fall + 0.15 + rng.uniform(0.8, 1.5) * wave)
    return Curve(
        np.arange(1, count + 1.0),
        clean * noise(rng, count, rng.uniform(0.01, 0.1)),
        np.full(count, 1.0),
    )


def plateau(seed):
    """A fall in the first part of the run, and the same loss in the rest."""
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1000, 5000))
    t = np.arange(count) / count
    clean = 10 ** rng.uniform(-2, 2) * (rng.uniform(0.1, 0.8) + np.exp(-rng.uniform(30, 100) * t))
    losses = clean * noise(rng, count, rng.uniform(0.01, 0.1))
    return Curve(np.arange(1, count + 1.0), losses, np.full(count, 1e-3))


def leaking(seed):
    """The first of many evaluations has no errors."""
    rng = np.random.default_rng(seed)
    curve = healthy(seed, exponential)
    count = len(curve.losses)
    at = np.linspace(max(2, count * 0.04), count, int(rng.integers(10, 40))).astype(int)
    losses = curve.start.value * 1e-3 * rng.uniform(0.5, 1, size=len(at))
    scores = {"accuracy": np.ones(len(at))}
    return replace(curve, evaluations=Evaluations(at.astype(float), losses, scores))


SICK = {
    "flat": flat,
    "stuck": stuck,
    "diverging": diverging,
    "overfitting": overfitting,
    "oscillating": oscillating,
    "leaking": leaking,
}
