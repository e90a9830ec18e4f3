"""A measurer without processes: it knows the time a step of some options, and draws noise."""

import math
import random
from contextlib import contextmanager
from types import SimpleNamespace

from surestep.tuning.speed.knob import Knob
from surestep.tuning.speed.ladder import Ladder
from surestep.tuning.speed.measurer import Measurer
from surestep.tuning.speed.measuring_process import MeasuringFailed
from surestep.tuning.speed.pair import PairOfArms
from surestep.tuning.speed.result import TuneResult
from surestep.tuning.speed.whole_run import WholeRun

WHOLE = WholeRun(
    steps=1000,
    step_s=0.11,
    logging_s=0.01,
    evaluations=20,
    evaluation_s=1.0,
    saves=3,
    save_s=2.0,
    start_s=5.0,
    end_s=6.0,
    best_saves=2,
)
WINDOW_S = 0.5  # of the clock of the fake, for each window


class FakeMeasurer(Measurer):
    """Measures a step of 100 ms, times the factors of its options.

    Args:
        factors: by an option and its value, as "a=1": of the time a step.
        found: candidates of each knob, or a function of the options that returns them.
        noise: standard deviation of the logarithm of a window.
        start_s: by an option, what the start takes with it.
        first_epoch_s: by an option, what the first epoch takes longer with it.
        opening_s: by an option, what it takes to open an arm with it.
        present: the counts that the run has.
        failing: by an option, how it fails.
        kind: of that failure.
        unlike: options that change the numbers.
        whole: the parts of the run; None with several ranks, or how measuring them fails.
        losses: by an option, what it adds to the loss.
    """

    def __init__(self, factors, found, **more):
        self.factors, self.found = factors, found
        self.noise, self.start_s, self.first_epoch_s, self.failing = 0.02, {}, {}, {}
        self.opening_s, self.present = {}, {}
        self.no_shares = self.kind = ""
        self.unlike, self.losses, self.wait, self.run = (), {}, 0.5, {}
        self.whole = WHOLE
        self.__dict__.update(more)
        self.now, self.rng, self.opened, self.limits = 0.0, random.Random(0), [], []

    def close(self):
        self.is_closed = True

    def clock(self):
        return self.now

    def describe(self, options, knobs):
        found = {name: self.found[name] for name in knobs}
        found = {name: one(options) if callable(one) else one for name, one in found.items()}
        run = {"total_steps": 1000, "steps_per_epoch": 50, "seed": 0, "machine": {}}
        run["intervals"] = {"validation.every": "1 epoch", "checkpoint.every": "5 minutes"}
        return {**run, **self.run, "candidates": found, "present": self.present}

    @contextmanager
    def open_pair(self, present, candidate, *, is_process_wide):
        self.opened.append((dict(present), dict(candidate)))
        self.limits.append(self.limit_s)
        for word in words(candidate):
            self.now += self.opening_s.get(word, 0)
            if word in self.failing:
                raise MeasuringFailed(self.failing[word], self.kind)

        def take(number):
            self.now += WINDOW_S
            options = (present, candidate)[number]
            seconds = self.step_s(options)
            return {
                "seconds": seconds,
                "wait_s": seconds * self.wait,
                "start_s": 1.0 + sum(self.start_s.get(word, 0) for word in words(options)),
                "first_epoch_s": sum(self.first_epoch_s.get(word, 0) for word in words(options)),
            }

        yield PairOfArms(take, self.rng)

    def step_s(self, options):
        factor = math.prod(self.factors.get(word, 1.0) for word in words(options))
        return 0.1 * factor * math.exp(self.rng.gauss(0, self.noise))

    def measure_shares(self, options):
        if self.no_shares:
            raise MeasuringFailed(self.no_shares)
        parts = {"data": self.wait, "forward": 1 - self.wait}
        return {"shares": parts, "lines": [f"A step waits for {self.wait:.0%} of its time."]}

    def measure_whole(self, options, seconds):
        if isinstance(self.whole, str):
            raise MeasuringFailed(self.whole)
        return self.whole

    def find_difference(self, one, other, steps):
        self.now += 1
        changed = {word for word in words(other) if word not in words(one)}
        return f"At step 2, {changed} differ." if changed & set(self.unlike) else None

    def train(self, options, steps):
        self.now += 0.1 * steps
        added = sum(self.losses.get(word, 0) for word in words(options))
        return [1.0 + added + 0.01 * options["seed"]] * steps


def words(options):
    return [f"{name}={value}" for name, value in options.items()]


def make_knob(name, *, keeps_numbers=True, shares=("forward",), is_process_wide=False):
    return Knob(name, f"Title of {name}.", shares, keeps_numbers, None, is_process_wide)


def climb(measurer, *knobs, seconds=600.0, allows_numbers=False):
    """Return the result of a ladder, its rungs by options, and how often it was saved."""
    result, saved = TuneResult("fake", {}), []
    Ladder(
        measurer,
        {knob.name: knob for knob in knobs},
        result,
        seconds=seconds,
        allows_numbers=allows_numbers,
        save=lambda: saved.append(len(result.rungs)),
        now=measurer.clock,
    ).climb()
    by_words = {" ".join(words(rung.options)) or rung.knob: rung for rung in result.rungs}
    return SimpleNamespace(result=result, rungs=by_words, saved=saved)
