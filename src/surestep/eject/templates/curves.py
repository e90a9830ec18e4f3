"""Learning-rate schedules: the factor on the peak rate, by the number of updates before a step."""

import math
from bisect import bisect_left, bisect_right

from torch.optim import Optimizer

WARMUP_STEPS = 10  # steps in which the learning rate rises to its peak
WARMUP_START = 0.1  # the share of the peak at which it starts
WARMUP_PERIODS = 1.0  # the same in periods of PERIOD steps
PERIOD = 10  # steps for which the rate stays the same
DECAY_LENGTH = 90  # steps after the warm-up
MIN_LR_RATIO = 0.1  # the share of the peak at which the rate ends
STARTS = (0.0, 45.0, 90.0)  # where cycles of the rate begin, and where the last one ends
STEP_SIZE = 30  # steps between two reductions
MILESTONES = (30.0, 60.0)  # steps after which the rate is reduced
GAMMA = 0.1  # what the rate is multiplied by
POWER = 1.0  # 1 is a line
TIMESCALE = 10  # steps after which the rate is 1/sqrt(2) of the peak
STABLE_LENGTH = 70  # steps at the peak
FALL_LENGTH = 20  # steps in which the rate falls at the end
POINTS = (0.0, 30.0, 90.0)  # where the phases begin, and where the last one ends
VALUES = (0.04, 1.0, 0.0)  # the factors there
MOMENTA = (0.95, 0.85, 0.95)  # the momenta there, or the highest and the lowest one
UP_LENGTH = 20  # steps in which the rate rises
CYCLE_LENGTH = 40  # steps of a cycle


def lr_factor(step: int) -> float:
    """Return what the peak of the learning rate is multiplied by, after so many updates."""
    period = math.floor(step / PERIOD + 1e-9)  # ? staircase
    # Small steps first: the optimizer does not know yet how large gradients are.  # ? warmup
    if step < WARMUP_STEPS:  # ? warmup !whole_warmup
        return WARMUP_START + (1 - WARMUP_START) * (step / WARMUP_STEPS)
    if period < WARMUP_PERIODS:  # ? warmup whole_warmup
        return WARMUP_START + (1 - WARMUP_START) * (period / WARMUP_PERIODS)
    return 1.0  # ? constant
    position = float(step)  # ? !constant !warmup !staircase
    position = step - WARMUP_STEPS  # ? !constant warmup !staircase
    position = float(period)  # ? !constant !warmup staircase
    position = period - WARMUP_PERIODS  # ? !constant warmup staircase
    factor = 1 - position / DECAY_LENGTH  # ? linear
    factor = (1 + math.cos(math.pi * (position / DECAY_LENGTH))) / 2  # ? cosine
    factor = GAMMA ** int(position / STEP_SIZE + 1e-9)  # ? step
    factor = GAMMA ** bisect_right(MILESTONES, position + 1e-9)  # ? multi_step
    factor = GAMMA**position  # ? exponential
    factor = (1 - position / DECAY_LENGTH) ** POWER  # ? polynomial
    factor = 1 / math.sqrt((position + TIMESCALE) / TIMESCALE)  # ? inverse_sqrt
    factor = restart(position)  # ? cosine_restarts
    factor = stay_and_fall(position)  # ? warmup_stable_decay
    factor = connect(position, VALUES)  # ? one_cycle
    factor = rise_and_fall(position)  # ? cyclic
    return factor  # ? !constant !floor
    return MIN_LR_RATIO + (1 - MIN_LR_RATIO) * factor  # ? !constant floor !limited
    return max(MIN_LR_RATIO, factor)  # ? !constant floor limited


def restart(position: float) -> float:
    """Fall on half a cosine wave, again and again."""
    cycle = min(bisect_right(STARTS, position + 1e-9), len(STARTS) - 1)
    begin, end = STARTS[cycle - 1], STARTS[cycle]
    return (1 + math.cos(math.pi * min((position - begin) / (end - begin), 1.0))) / 2


def stay_and_fall(position: float) -> float:
    """Stay at the peak, then fall over the last FALL_LENGTH."""
    if position <= STABLE_LENGTH:
        return 1.0
    share = (position - STABLE_LENGTH) / FALL_LENGTH
    return 1 - share  # ? fall_linear
    return (1 + math.cos(math.pi * share)) / 2  # ? fall_cosine
    return 1 - math.sqrt(share)  # ? fall_sqrt


def momentum_at(step: int) -> float:
    """Return the momentum after so many updates: low where the learning rate is high."""
    position = float(step)  # ? !warmup !staircase
    position = max(step - WARMUP_STEPS, 0.0)  # ? warmup !staircase
    position = float(math.floor(step / PERIOD + 1e-9))  # ? !warmup staircase
    position = max(math.floor(step / PERIOD + 1e-9) - WARMUP_PERIODS, 0.0)  # ? warmup staircase
    return connect(position, MOMENTA)  # ? one_cycle
    return MOMENTA[0] - (MOMENTA[0] - MOMENTA[1]) * rise_and_fall(position)  # ? cyclic


def set_momentum(optimizer: Optimizer, step: int) -> None:
    """Set the momentum of a step."""
    for group in optimizer.param_groups:
        group["betas"] = (momentum_at(step), *group["betas"][1:])  # ? betas
        group["momentum"] = momentum_at(step)  # ? !betas


def connect(position: float, values: tuple[float, ...]) -> float:
    """Connect values at POINTS."""
    phase = bisect_left(POINTS[1:-1], position)
    begin, end = POINTS[phase], POINTS[phase + 1]
    share = min((position - begin) / (end - begin), 1.0) if end != begin else 1.0
    first, last = values[phase], values[phase + 1]
    return last + (first - last) / 2 * (math.cos(math.pi * share) + 1)  # ? waves
    return (last - first) * share + first  # ? !waves


def rise_and_fall(position: float) -> float:
    """Rise from 0 to 1 and fall again, again and again."""
    ratio = UP_LENGTH / CYCLE_LENGTH
    cycle = math.floor(1 + position / CYCLE_LENGTH)
    share = 1.0 + position / CYCLE_LENGTH - cycle
    height = share / ratio if share <= ratio else (share - 1) / (ratio - 1)
    return height  # ? !halves !shrinks
    return height * 0.5 ** (cycle - 1)  # each cycle has half the height  # ? halves
    return float(height * GAMMA**position)  # ? shrinks
