"""What a tuning has found: its rungs, in the order in which they were tried."""

from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from surestep.tuning.speed.interval import Interval
from surestep.tuning.speed.whole_run import WholeRun

RESULT_FORMAT = 1
Outcome = Literal["kept", "proposed", "not taken", "failed", "not tried"]


@dataclass(frozen=True)
class Curves:
    """The losses of short trainings with and without some options, of several seeds.

    Attributes:
        steps: of each training.
        seeds: of the trainings.
        without: the losses of each seed without the options.
        with_: the losses of each seed with them.
        ends: mean loss of the last quarter of the steps, without and with.
        spread: standard deviation over the seeds of that loss, the larger of both.
    """

    steps: int
    seeds: tuple[int, ...]
    without: tuple[tuple[float, ...], ...]
    with_: tuple[tuple[float, ...], ...]
    ends: tuple[float, float]
    spread: float

    @property
    def are_equal(self) -> bool:
        """Whether the losses differ by no more than their spread over the seeds."""
        return abs(self.ends[1] - self.ends[0]) <= self.spread

    @property
    def is_not_worse(self) -> bool:
        """Whether the loss with the options is lower, or higher by no more than the spread."""
        return self.ends[1] - self.ends[0] <= self.spread


@dataclass
class Rung:
    """Options that were tried, or a knob without any.

    Attributes:
        knob: its name.
        title: what the knob is.
        options: that were tried, by full name.
        outcome: "kept" is in the TOML file; "proposed" would be with --allow numbers.
        reason: why.
        keeps_numbers: it was proved that the weights are bitwise the same; before the proof, what
            the knob claims.
        interval: of the ratio of the times a step.
        step_s: median times a step before and with the options.
        start_s: how much longer the start takes with the options.
        first_epoch_s: how much longer the first epoch takes, if its steps save nothing.
        break_even: the step after which the options have saved that; None if they save nothing.
        proof: of how many steps, and where they differ; None if nothing was proved.
        curves: of options that change the numbers.
    """

    knob: str
    title: str
    keeps_numbers: bool
    options: dict[str, Any] = field(default_factory=dict)
    outcome: Outcome = "not tried"
    reason: str = ""
    interval: Interval | None = None
    step_s: tuple[float, float] | None = None
    start_s: float | None = None
    first_epoch_s: float = 0.0
    break_even: int | None = None
    proof: dict[str, Any] | None = None
    curves: Curves | None = None


@dataclass(frozen=True)
class Total:
    """The first options against those of several rungs together, measured again at the end.

    Attributes:
        interval: of the ratio of the times a step.
        first_epoch_s: how much longer the first epoch takes, in which images are decoded that are
            kept.
    """

    interval: Interval
    first_epoch_s: float = 0.0


@dataclass
class TuneResult:
    """What a tuning has found so far.

    Attributes:
        recipe: its name.
        fixed: options that were typed, the same for all rungs.
        run: what the run is without the rungs, with the machine; empty before it was planned.
        noise: of the machine: the run against itself; None before it was measured.
        load: other work per core when the tuning began; None if the system does not know it.
        window_steps: steps of a window.
        comparisons: how many the level of the intervals counts.
        shares: of the parts of the time of a step, before the rungs.
        profile: where that time goes in detail, with lines for the terminal; empty if that could
            not be measured.
        whole: the parts of the whole run before the rungs; None if they were not measured.
        rungs: in the order in which they were tried.
        total: the first options against those that are kept.
        total_proposed: the same with those that are proposed; None if there are none.
        stopped: why it ended early: "Ctrl-C", "SIGTERM", "out of time"; "" if it did not.
        notes: sentences about what limits the result.
    """

    recipe: str
    fixed: dict[str, Any]
    run: dict[str, Any] = field(default_factory=dict)
    noise: Interval | None = None
    load: float | None = None
    step_s: float | None = None
    window_steps: int = 1
    comparisons: int = 0
    shares: dict[str, float] = field(default_factory=dict)
    profile: dict[str, Any] = field(default_factory=dict)
    whole: WholeRun | None = None
    rungs: list[Rung] = field(default_factory=list)
    total: Total | None = None
    total_proposed: Total | None = None
    stopped: str = ""
    notes: list[str] = field(default_factory=list)

    def list_options(self, *outcomes: Outcome) -> dict[str, Any]:
        """Return the options of the rungs with these outcomes."""
        options: dict[str, Any] = {}
        for rung in self.rungs:
            if rung.outcome in outcomes:
                options |= rung.options
        return options

    def estimate_whole(self, total: Total | None, *outcomes: Outcome) -> WholeRun | None:
        """Return the whole run with the options of rungs; None if one of the two is not known.

        Args:
            total: these options against the first; the ratio is that of a step without logging.
            outcomes: of these rungs, whose longer starts are added.
        """
        if self.whole is None or total is None:
            return None
        starts = (rung.start_s or 0.0 for rung in self.rungs if rung.outcome in outcomes)
        added_s = sum(starts) + total.first_epoch_s
        ratio = total.interval.ratio
        quicker = self.whole.with_step(ratio * (self.whole.step_s - self.whole.logging_s))
        return replace(quicker, start_s=quicker.start_s + added_s)

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON can hold it."""
        whole = {
            name: None if run is None else run.as_dict()
            for name, run in (("whole", self.whole), *self.list_estimates().items())
        }
        return {"format": RESULT_FORMAT, **asdict(self), **whole}

    def list_estimates(self) -> dict[str, WholeRun | None]:
        """Return the whole run with what is kept, and with what is proposed too."""
        return {
            "whole_kept": self.estimate_whole(self.total, "kept"),
            "whole_proposed": self.estimate_whole(self.total_proposed, "kept", "proposed"),
        }
