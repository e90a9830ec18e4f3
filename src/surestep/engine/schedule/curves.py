"""The curves: pure functions of the position after the warm-up, from 1 at the peak down to 0.

Positions and lengths are counted in intervals of `schedule.interval`, by default one step. Each
function takes the length from the warm-up to the end of the run and its own options, and returns
the curve. Beyond its end a curve keeps its last value.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence

from surestep.base.plugins import SCHEDULES, load_plugin
from surestep.engine.schedule.registry import Factor, ScheduleSpec

Curve = Callable[[float], float]
# Two lengths in epochs may add up to a hair less than a whole step.
HAIR = 1e-9


def warm_up(length: float, start: float | None = None) -> Curve:
    """Rise from `start` to 1; where it is None, from one step's share: 1 / length."""
    if length <= 1 and start is None:
        return _one
    first = 1 / length if start is None else start
    return lambda position: first + (1 - first) * min(position / length, 1.0)


def constant(_: float) -> Curve:
    """Stay at the peak."""
    return _one


def _one(_: float) -> float:
    return 1.0


def linear(length: float) -> Curve:
    """Fall on a line."""
    return lambda position: 1 - min(position / length, 1.0)


def cosine(length: float) -> Curve:
    """Fall on half a cosine wave."""
    return lambda position: (1 + math.cos(math.pi * min(position / length, 1.0))) / 2


def cosine_restarts(
    length: float, *, T_0: float | None, T_mult: int | None, cycles: int | None
) -> Curve:
    """Fall on half a cosine wave, again and again."""
    starts = restarts(length, T_0=T_0, T_mult=T_mult, cycles=cycles)

    def at(position: float) -> float:
        cycle = min(bisect_right(starts, position + HAIR), len(starts) - 1)
        begin, end = starts[cycle - 1], starts[cycle]
        return (1 + math.cos(math.pi * min((position - begin) / (end - begin), 1.0))) / 2

    return at


def restarts(
    length: float, *, T_0: float | None, T_mult: int | None, cycles: int | None
) -> list[float]:
    """List where the cycles begin, from 0, and last where the one at the end of the run would."""
    if cycles is not None or T_0 is None:
        count = cycles or 1
        return [length * cycle / count for cycle in range(count + 1)]
    many, growth = T_0, T_mult or 1
    starts = [0.0]
    while starts[-1] < length - HAIR:
        starts.append(starts[-1] + many)
        many *= growth
    return starts if len(starts) > 1 else [0.0, T_0]


def step(_: float, *, step_size: float, gamma: float) -> Curve:
    """Multiply by gamma every step_size."""
    return lambda position: float(gamma ** int(position / step_size + HAIR))


def multi_step(_: float, *, milestones: Sequence[float], gamma: float) -> Curve:
    """Multiply by gamma at each milestone."""
    return lambda position: float(gamma ** bisect_right(milestones, position + HAIR))


def exponential(_: float, *, gamma: float) -> Curve:
    """Multiply by gamma at each interval."""
    return lambda position: float(gamma**position)


def polynomial(length: float, *, power: float) -> Curve:
    """Fall as a power of what is left."""
    return lambda position: float((1 - min(position / length, 1.0)) ** power)


def inverse_sqrt(_: float, *, timescale: float) -> Curve:
    """Fall with the square root of the position."""
    return lambda position: 1 / math.sqrt((position + timescale) / timescale)


def warmup_stable_decay(length: float, *, decay: float, decay_shape: str) -> Curve:
    """Stay at the peak, then fall over the last `decay`."""
    stable = length - decay
    fall: Curve = {
        "linear": lambda share: 1 - share,
        "cosine": lambda share: (1 + math.cos(math.pi * share)) / 2,
        "1-sqrt": lambda share: 1 - math.sqrt(share),
    }[decay_shape]
    return lambda position: (
        fall(min((position - stable) / decay, 1.0)) if position > stable else 1.0
    )


def anneal(points: Sequence[tuple[float, float]], strategy: str) -> Curve:
    """Connect points (position, value) by half cosine waves or lines."""
    ends = [position for position, _ in points]
    values = [value for _, value in points]
    inner = ends[1:-1]
    waves = strategy == "cos"

    def at(position: float) -> float:
        phase = bisect_left(inner, position)
        begin, end = ends[phase], ends[phase + 1]
        share = min((position - begin) / (end - begin), 1.0) if end != begin else 1.0
        first, last = values[phase], values[phase + 1]
        if waves:
            return last + (first - last) / 2 * (math.cos(math.pi * share) + 1)
        return (last - first) * share + first

    return at


def one_cycle(
    length: float,
    *,
    min_lr_ratio: float,
    div_factor: float,
    pct_start: float,
    anneal_strategy: str,
    three_phase: bool,
) -> Curve:
    """Rise from 1 / div_factor to the peak, then fall to min_lr_ratio; its floor is its own."""
    ends = phases(length, pct_start=pct_start, three_phase=three_phase)
    first = 1 / div_factor
    values = [first, 1.0, first, min_lr_ratio] if three_phase else [first, 1.0, min_lr_ratio]
    return anneal(list(zip(ends, values, strict=True)), anneal_strategy)


def phases(length: float, *, pct_start: float, three_phase: bool) -> list[float]:
    """List where the phases of one cycle begin, and where the last one ends."""
    top = pct_start * length
    return [0.0, top - 1, *([2 * top - 2] if three_phase else []), length - 1]


def cyclic(
    _: float, *, step_size_up: float, step_size_down: float, mode: str, gamma: float
) -> Curve:
    """Rise from 0 to 1 and fall again, again and again; the height may shrink."""
    period = step_size_up + step_size_down
    ratio = step_size_up / period
    halves = 0.5 if mode == "triangular2" else 1.0
    shrink = gamma if mode == "exp_range" else 1.0

    def at(position: float) -> float:
        cycle = math.floor(1 + position / period)
        share = 1.0 + position / period - cycle
        height = share / ratio if share <= ratio else (share - 1) / (ratio - 1)
        return float(height * halves ** (cycle - 1) * shrink**position)

    return at


_BUILT_IN = (
    *(constant, linear, cosine, cosine_restarts, step, multi_step, exponential, polynomial),
    *(inverse_sqrt, warmup_stable_decay, one_cycle, cyclic),
)
CURVES: dict[str, Callable[..., Curve]] = {curve.__name__: curve for curve in _BUILT_IN}
CURVES["reduce_on_plateau"] = constant

# Options of curves that are lengths.
LENGTHS = ("T_0", "step_size", "timescale", "decay", "step_size_up", "step_size_down")
# These end at a value that they compute: no minimum is applied.
ENDS_BY_ITSELF = ("one_cycle", "reduce_on_plateau")


def lr_factor(shape: ScheduleSpec) -> Factor:
    """Return the factor on the peak rate, by the number of steps taken before this one.

    A warm-up of W steps is LinearLR(start_factor=1/W, total_iters=W); with warmup_start=0 it is
    that of transformers. The curve follows it, to the end of the run. With an `interval` above one
    step the factor changes once per interval; a warm-up that is not several whole intervals rises
    at each step all the same.

    Source: https://docs.pytorch.org/docs/stable/optim.html#how-to-adjust-learning-rate
    """
    every, start = shape.interval, curve_start(shape) / shape.interval
    is_whole = shape.warmup - curve_start(shape) <= HAIR * every
    by_steps = every == 1 or shape.warmup <= every or not is_whole
    warmup = shape.warmup if by_steps else start
    rise = warm_up(warmup, shape.warmup_start)
    curve, ratio, is_cut = curve_of(shape), _floor(shape), shape.min_lr_mode == "cut"

    def at(steps_taken: int) -> float:
        position = steps_taken if every == 1 else position_of(steps_taken, every)
        rising = steps_taken if by_steps else position
        if rising < warmup:
            return rise(rising)
        value = curve(position - start)
        return max(ratio, value) if is_cut else ratio + (1 - ratio) * value

    return at


def position_of(steps_taken: int, interval: float) -> float:
    """Return how many intervals have begun before a step."""
    return steps_taken if interval == 1 else math.floor(steps_taken / interval + HAIR)


def curve_start(shape: ScheduleSpec) -> float:
    """Return the steps before the curve: the warm-up, or the full intervals in it."""
    if shape.interval == 1:
        return shape.warmup
    return math.floor(shape.warmup / shape.interval + HAIR) * shape.interval


def _floor(shape: ScheduleSpec) -> float:
    return 0.0 if shape.name in ENDS_BY_ITSELF else shape.min_lr_ratio


def curve_of(shape: ScheduleSpec) -> Curve:
    """Return the curve after the warm-up, without its minimum."""
    length, own = decay_steps(shape), dict(shape.curve_options)
    if length <= 0:  # the run is all warm-up
        return CURVES["constant"](length)
    for name in LENGTHS:
        if own.get(name) is not None:
            own[name] /= shape.interval
    if shape.name == "one_cycle":
        own["min_lr_ratio"] = shape.min_lr_ratio
    if shape.name == "multi_step":  # counted from the start of the run
        start = curve_start(shape)
        own["milestones"] = [(step - start) / shape.interval for step in own["milestones"]]
    if shape.name == "reduce_on_plateau":
        own = {}
    if shape.name in CURVES:
        return CURVES[shape.name](length, **own)
    function = load_plugin(SCHEDULES, shape.name)
    return lambda position: float(function(position, length, **own))


def decay_steps(shape: ScheduleSpec) -> float:
    """Return the length of the curve, in intervals."""
    return (shape.total - curve_start(shape)) / shape.interval
