"""The ladder: tries one knob after another, and keeps what makes a step faster beyond the noise.

First the knobs that keep the numbers, each proved bitwise when it has won; then those that change
them. Of each kind, the knob comes first that can shorten the largest share of the time.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from statistics import fmean, median, stdev
from typing import Any

from surestep.base.text import format_count, format_duration
from surestep.tuning.speed.interval import (
    LOOKS,
    Interval,
    compare_rounds,
    compute_interval,
    share_error,
)
from surestep.tuning.speed.knob import PARTS, Knob, Options
from surestep.tuning.speed.measurer import Measurer
from surestep.tuning.speed.measuring_process import HUNG, MeasuringFailed
from surestep.tuning.speed.pair import Pair
from surestep.tuning.speed.result import Curves, Rung, Total, TuneResult

_WINDOWS = 600  # of one arm that the whole time is enough for: so long is one
_WINDOW_S = (0.05, 2.0)  # shortest and longest
_NOISE_SHARE = 0.5  # of the whole time, that is left when the noise is known
_BUSY = 0.5  # other processes per core
_NOISY = 0.15  # width of the interval of A against A, above which a window is made longer
_LATER = 2  # comparisons that a knob without candidates may have once others are kept
_AGAIN = 4  # comparisons of knobs that are tried again, since they did not keep the numbers
_TOTALS = 2
_SEEDS = 3  # of the loss curves
_FEWEST_STEPS = 20  # of a loss curve
_PROOF_SHARE, _CURVES_SHARE = 0.05, 0.1  # of the whole time, for one proof or the curves of a knob
_PROOF_STEPS = (3, 200)
_WHOLE_SHARE, _MOST_WHOLE_S = 0.02, 5.0  # of the whole time, for the steps of the whole run
_TOTALS_SHARE = 0.1  # of the whole time, for the first options against the last
_FEW_STEPS = 20  # of a run, in which hardly anything pays back
# How many times as long a step takes whose tensors are hashed: 1.8 with the recipe digits, and 10
# with spiral, whose model is small.
_RECORDING = 4.0
_SLOW_START = 0.5  # of its share that a knob weighs, if its start is slow
_KNOB_SHARE = 0.2  # of the whole time, for one knob; more if few are left
_LEAST_ANSWER_S = 10.0  # that an answer may take at the end of a knob's time


class Ladder:
    """Climbs the ladder, and fills a TuneResult with what it finds.

    Args:
        measurer: measures.
        knobs: to try, by name.
        result: is filled.
        seconds: that all of it may take.
        allows_numbers: knobs that change the numbers may be kept.
        save: is called after each change of the result.
        now: the clock; a test has its own.
    """

    def __init__(
        self,
        measurer: Measurer,
        knobs: Mapping[str, Knob],
        result: TuneResult,
        *,
        seconds: float,
        allows_numbers: bool,
        save: Callable[[], None],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._measurer, self._knobs, self._result = measurer, dict(knobs), result
        self._allows_numbers, self._save, self._now = allows_numbers, save, now
        self._seconds, self._end = seconds, now() + seconds
        self._last_rung = self._end - _TOTALS_SHARE * seconds
        self._step_s = self._start_s = self._first_epoch_s = 0.0  # of the options so far
        self._error = 1.0
        self._shares: dict[str, float] = {}  # of the parts of a step, with the options so far
        self._limit_s = measurer.limit_s
        self._found: tuple[dict[str, Any], dict[str, Any]] = ({}, {})  # for some options

    def climb(self) -> None:
        """Measure the noise, then try all knobs.

        Raises:
            MeasuringFailed: not even the run as it is can be measured.
        """
        result = self._result
        result.run = self._measurer.describe(result.fixed, list(self._knobs))
        found = result.run.pop("candidates")
        self._found = (
            dict(result.fixed),
            {"candidates": found, "present": result.run.pop("present")},
        )
        rungs = sum(_LATER if isinstance(one, str) else len(one) for one in found.values())
        result.comparisons = rungs + _AGAIN
        self._error = share_error(result.comparisons + _TOTALS)
        self._measure_noise()
        self._measure_whole()
        result.notes += self._describe_limits()
        self._save()
        count = len(self._knobs)
        for keeps_numbers in (True, False):
            left = [one for one in self._knobs.values() if one.keeps_numbers is keeps_numbers]
            while left:
                # What a knob has to try may depend on the others, such as the number of workers.
                usable = [one for one in left if not isinstance(self._find_candidates(one), str)]
                knob = max(usable or left, key=self._weigh)
                left.remove(knob)
                left_s = self._last_rung - self._now()
                self._try_knob(knob, max(_KNOB_SHARE * self._seconds, left_s / max(1, count)))
                count -= 1
        self._measure_totals()

    def _options(self) -> dict[str, Any]:
        """Return the options of the ladder so far."""
        result = self._result
        return {**result.fixed, **result.list_options("kept", "proposed")}

    def _left_s(self) -> float:
        return self._end - self._now()

    def _weigh(self, knob: Knob) -> float:
        """Return the share of the time that a knob can shorten, less if its start is slow."""
        share = sum(self._shares.get(part, 0.0) for part in knob.shares)
        return share * (_SLOW_START if knob.starts_slowly else 1.0)

    def _measure_noise(self) -> None:
        """Compare the run with itself, in windows that are long enough."""
        shortest, longest = _WINDOW_S
        wanted_s = min(longest, max(shortest, self._seconds / _WINDOWS))
        with self._measurer.open_pair(
            self._result.fixed, self._result.fixed, is_process_wide=False
        ) as pair:
            for _ in range(3):
                pair.measure_round()
            self._set_window(pair, wanted_s)
            noise = self._compare_alike(pair)
            if noise is not None and noise.width > _NOISY and self._left_s() > self._seconds / 2:
                self._set_window(pair, 2 * wanted_s)
                noise = self._compare_alike(pair) or noise
        result = self._result
        result.noise = noise
        self._start_s = pair.start_s[1]  # the first start also imports
        self._first_epoch_s = max(pair.first_epoch_s)
        result.step_s = self._step_s = median([*pair.step_s[0], *pair.step_s[1]])
        others = [part for part in PARTS if part != "data"]
        self._shares = dict.fromkeys(others, 1.0)  # until they are measured
        self._note_wait(pair, 0)
        try:
            result.profile = self._measurer.measure_shares(result.fixed)
            self._shares = result.profile["shares"]
        except MeasuringFailed as failed:
            result.notes.append(f"Where the time of a step goes was not measured: {failed}.")
        result.shares = dict(self._shares)

    def _measure_whole(self) -> None:
        """Measure what the whole run takes beside its steps."""
        result = self._result
        seconds = min(_MOST_WHOLE_S, _WHOLE_SHARE * self._seconds)
        try:
            result.whole = self._measurer.measure_whole(result.fixed, seconds)
            reason = "it is measured with one process only"
        except MeasuringFailed as failed:
            reason = str(failed)
        if result.whole is None:
            result.notes.append(f"What the run takes beside its steps is not known: {reason}.")

    def _describe_limits(self) -> list[str]:
        """Return sentences about what can hardly be found here."""
        noise, load, notes = self._result.noise, self._result.load, []
        if load is not None and load > _BUSY:
            notes.append(
                f"The machine is busy: {load:.2g} other processes per core want to run. Only what "
                "is faster beyond their noise is kept; tune on a machine that is idle."
            )
        if noise is None:
            notes.append(
                "There was no time to measure the noise of the machine. Give it more --minutes."
            )
        elif noise.width > _NOISY:
            notes.append(
                f"The machine is noisy: the same options, measured twice, differ by up to "
                f"{noise.width:.0%}. A rung that saves less is not found; give it more --minutes."
            )
        if (steps := self._result.run["total_steps"]) < _FEW_STEPS:
            notes.append(
                f"The run has {format_count(steps, 'step')}, in which hardly anything pays back."
            )
        return notes

    def _set_window(self, pair: Pair, seconds: float) -> None:
        steps = max(1, round(seconds / median(pair.step_s[0])))
        self._measurer.steps = self._result.window_steps = steps

    def _compare_alike(self, pair: Pair) -> Interval | None:
        """Measure rounds of the same options, up to the second look."""
        ratios: list[float] = []
        while len(ratios) < LOOKS[1] and self._left_s() > self._seconds * _NOISE_SHARE:
            ratios.append(pair.measure_round())
        return compute_interval(ratios, self._error) if len(ratios) > 1 else None

    def _note_wait(self, pair: Pair, number: int) -> None:
        """Note the share of the time that steps wait for data; the other parts have the rest."""
        wait = median(pair.wait_s[number]) / median(pair.step_s[number])
        others = {part: share for part, share in self._shares.items() if part != "data"}
        total = sum(others.values())
        self._shares = {part: share / total * (1 - wait) for part, share in others.items()}
        self._shares["data"] = wait

    def _try_knob(self, knob: Knob, seconds: float) -> None:
        """Try the candidates of a knob, one after another, each against what is kept by then.

        Args:
            knob: to try.
            seconds: that it may take.
        """
        found = self._find_candidates(knob)
        if isinstance(found, str):
            self._add(Rung(knob.name, knob.title, knob.keeps_numbers, reason=found))
            return
        end, tried, has_hung = self._now() + seconds, list[Rung](), False
        for options in found:
            rung = Rung(knob.name, knob.title, knob.keeps_numbers, dict(options))
            tried.append(rung)
            if has_hung:
                rung.reason = "there was no answer with the options above"
            elif worse := self._find_worse(knob, rung, tried):
                rung.reason = f"it is beyond {worse}"
            elif end <= self._now() < self._last_rung:
                rung.reason = f"the options above took the {format_duration(seconds)} of one knob"
            else:
                try:
                    self._try_rung(rung, knob, end)
                except MeasuringFailed as failed:
                    rung.outcome, rung.reason = "failed", str(failed)
                    has_hung = failed.kind == HUNG
            self._add(rung)
            if knob.keeps_numbers and not rung.keeps_numbers:  # neither do the others
                self._knobs[knob.name] = replace(knob, keeps_numbers=False)
                break

    def _find_worse(self, knob: Knob, rung: Rung, tried: Sequence[Rung]) -> str:
        """Return which count between the present one and that of a rung is worse; "" if none."""
        if not knob.is_count:
            return ""
        ((name, count),) = rung.options.items()
        present = self._options().get(name, self._found[1]["present"].get(name))
        if not isinstance(present, int):
            return ""
        for one in tried:
            is_slower = one.interval is not None and one.interval.ratio >= 1
            other = one.options[name]
            is_between = present < other < count or count < other < present
            if is_between and (is_slower or one.outcome == "failed"):
                return f"{name}={other}, which {'is slower' if is_slower else 'failed'}"
        return ""

    def _find_candidates(self, knob: Knob) -> Sequence[Options] | str:
        """Return what a knob has to try beside the options so far, or why nothing."""
        options = self._options()
        if self._found[0] != options:
            try:
                found = self._measurer.describe(options, list(self._knobs))
            except MeasuringFailed as failed:
                reason = f"what is kept so far could not be planned: {failed}"
                found = {"candidates": dict.fromkeys(self._knobs, reason)}
            self._found = options, found
        candidates: Sequence[Options] | str = self._found[1]["candidates"][knob.name]
        return candidates

    def _add(self, rung: Rung) -> None:
        self._result.rungs.append(rung)
        self._save()

    @contextmanager
    def _limit_answers(self, seconds: float) -> Iterator[None]:
        """Let an answer take so long meanwhile, also if none comes."""
        self._measurer.limit_s = seconds
        try:
            yield
        finally:
            self._measurer.limit_s = self._limit_s

    def _try_rung(self, rung: Rung, knob: Knob, knob_end: float) -> None:
        present = self._options()
        candidate = {**present, **rung.options}
        left_s = self._last_rung - self._now()
        if left_s <= 0:
            rung.reason = "out of time"
            return
        made = sum(one.interval is not None for one in self._result.rungs)
        if made >= self._result.comparisons:
            rung.reason = f"the intervals hold for {self._result.comparisons} comparisons"
            return
        answer_s = max(_LEAST_ANSWER_S, knob_end - self._now())
        with (
            self._limit_answers(min(self._limit_s, answer_s)),
            self._measurer.open_pair(
                present, candidate, is_process_wide=knob.is_process_wide
            ) as pair,
        ):
            end = min(knob_end, self._now() + left_s / 2)
            may_continue = lambda: self._now() < end  # noqa: E731
            rung.interval = compare_rounds(pair.measure_round, self._error, may_continue)
        if rung.interval is None:
            is_over = knob_end <= self._now() < self._last_rung
            rung.reason = "its start took the time of one knob" if is_over else "out of time"
            return
        rung.step_s = (median(pair.step_s[0]), median(pair.step_s[1]))
        before_s = pair.start_s[0] if knob.is_process_wide else self._start_s
        rung.start_s = max(0.0, pair.start_s[1] - before_s)
        if not rung.interval.wins:
            rung.outcome, rung.reason = "not taken", "no faster beyond the noise"
            return
        if knob.begins_in_epoch_2:
            rung.first_epoch_s = pair.first_epoch_s[1]
        if not self._pays_back(rung, rung.interval):
            return
        self._check_numbers(rung, knob, present, candidate)
        if rung.outcome in ("kept", "proposed"):
            self._start_s += rung.start_s
            self._first_epoch_s += rung.first_epoch_s
            self._step_s *= rung.interval.ratio
            self._note_wait(pair, 1)

    def _pays_back(self, rung: Rung, interval: Interval) -> bool:
        """Find the step after which a rung has saved what its start takes longer."""
        longer_s = (rung.start_s or 0.0) + rung.first_epoch_s
        rung.break_even = int(longer_s / (self._step_s * (1 - interval.ratio))) + 1
        steps: int = self._result.run["total_steps"]
        if rung.break_even <= steps:
            return True
        start = "start and first epoch take" if rung.first_epoch_s else "start takes"
        rung.outcome = "not taken"
        rung.reason = (
            f"its {start} {longer_s:.3g} s more, which it saves after step {rung.break_even}; "
            f"the run has {steps}"
        )
        return False

    def _check_numbers(
        self, rung: Rung, knob: Knob, present: Mapping[str, Any], candidate: Mapping[str, Any]
    ) -> None:
        """Prove that a rung keeps the numbers, or draw its loss curves; decide about it."""
        if rung.keeps_numbers:
            self._prove(rung, knob, present, candidate)
            rung.outcome = "kept" if rung.proof and rung.keeps_numbers else "not taken"
            return
        self._draw_curves(rung, present, candidate)
        if rung.curves is None:
            rung.outcome = "not taken"
            rung.reason = _join(rung.reason, "no time for loss curves")
        elif not rung.curves.is_not_worse:
            rung.outcome = "not taken"
            rung.reason = _join(rung.reason, "its loss is higher beyond the spread of the seeds")
        elif self._allows_numbers:
            rung.outcome = "kept"
        else:
            rung.outcome = "proposed"
            rung.reason = _join(rung.reason, "it changes the numbers: --allow numbers takes it")

    def _prove(
        self, rung: Rung, knob: Knob, present: Mapping[str, Any], candidate: Mapping[str, Any]
    ) -> None:
        """Train with and without the options from the same start, and compare the bits."""
        fewest, most = _PROOF_STEPS
        step_s = 2 * _RECORDING * self._find_early_step_s()  # of both
        affordable = int(self._seconds * _PROOF_SHARE / step_s)
        run = self._result.run
        whole = (run["steps_per_epoch"] or most) + 1  # over the end of an epoch
        steps = min(run["total_steps"], most, whole, max(fewest, affordable))
        limit_s = self._limit_s
        if knob.begins_in_epoch_2:
            steps = min(run["total_steps"], whole + fewest)
            if steps * step_s > self._left_s():
                rung.reason = (
                    f"no time to prove it in the second epoch, up to step {steps}; give it more "
                    "--minutes"
                )
                return
            limit_s = max(limit_s, self._left_s())
        with self._limit_answers(limit_s):
            found = self._measurer.find_difference(present, candidate, steps)
        rung.proof = {"steps": steps, "difference": None if found is None else str(found)}
        if found is not None:
            rung.keeps_numbers = False
            rung.reason = f"it does not keep the numbers, so it is tried again below. {found}"

    def _draw_curves(
        self, rung: Rung, present: Mapping[str, Any], candidate: Mapping[str, Any]
    ) -> None:
        """Train short runs of several seeds with and without the options."""
        run = self._result.run
        affordable_s = min(self._seconds * _CURVES_SHARE, self._left_s() / 2)
        step_s = 2 * _SEEDS * self._find_early_step_s()
        steps = min(run["total_steps"], int(affordable_s / step_s))
        if steps < min(_FEWEST_STEPS, run["total_steps"]):
            return
        seeds = tuple(run["seed"] + number for number in range(_SEEDS))
        losses = [
            tuple(tuple(self._measurer.train({**options, "seed": seed}, steps)) for seed in seeds)
            for options in (present, candidate)
        ]
        last = max(1, steps // 4)
        ends = [[fmean(one[-last:]) for one in of_seeds] for of_seeds in losses]
        rung.curves = Curves(
            steps,
            seeds,
            losses[0],
            losses[1],
            (fmean(ends[0]), fmean(ends[1])),
            max(stdev(ends[0]), stdev(ends[1])),
        )

    def _find_early_step_s(self) -> float:
        """Return the seconds of a step in the first epoch."""
        epoch = self._result.run["steps_per_epoch"]
        return self._step_s + (self._first_epoch_s / epoch if epoch else 0.0)

    def _measure_totals(self) -> None:
        """Measure the first options against the last ones."""
        result = self._result
        kept = result.list_options("kept")
        proposed = result.list_options("kept", "proposed")
        if kept:
            result.total = self._compare_with_first(kept)
        if proposed != kept:
            result.total_proposed = self._compare_with_first(proposed)
        self._save()

    def _compare_with_first(self, options: Mapping[str, Any]) -> Total | None:
        fixed = self._result.fixed
        end = self._now() + max(0.0, self._left_s()) / 2
        is_process_wide = any(
            self._knobs[rung.knob].is_process_wide
            for rung in self._result.rungs
            if rung.outcome in ("kept", "proposed")
        )
        try:
            with self._measurer.open_pair(
                fixed, {**fixed, **options}, is_process_wide=is_process_wide
            ) as pair:
                found = compare_rounds(pair.measure_round, self._error, lambda: self._now() < end)
                longer_s = max(0.0, pair.first_epoch_s[1] - pair.first_epoch_s[0])
                return None if found is None else Total(found, longer_s)
        except MeasuringFailed as failed:
            self._result.notes.append(f"The total was not measured: {failed}.")
            return None


def _join(first: str, second: str) -> str:
    return f"{first} {second}" if first else second
