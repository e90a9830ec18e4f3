"""The schedule that was decided: every option, lengths in optimizer steps."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

Factor = Callable[[int], float]
UserFunction = Callable[[int, int], float]


class ScheduleStage(NamedTuple):
    """A part of a chain: from which step of the chain on, times what, and its own shape."""

    start: float
    scale: float
    shape: "ScheduleSpec"


@dataclass(frozen=True)
class ScheduleSpec:
    """A schedule with every option decided; lengths are in optimizer steps.

    Attributes:
        name: as in the catalog.
        total: the length of the run, or of the stage.
        warmup: the length of the linear rise before it.
        warmup_start: where that rise begins, as a share of the peak; None is one step's share.
        min_lr_ratio: the floor, as a share of the peak.
        min_lr_mode: whether the curve is scaled to end at the floor, or cut where it meets it.
        interval: how many steps the rate stays constant.
        curve_options: the options of its curve alone.
        momentum: the lowest and the highest, where it is cycled with the rate.
        save_cycles: a checkpoint at the end of each cycle.
        stages: of a chain.
    """

    name: str
    total: float
    warmup: float = 0.0
    warmup_start: float | None = None
    min_lr_ratio: float = 0.0
    min_lr_mode: Literal["scale", "cut"] = "scale"
    interval: float = 1.0
    curve_options: Mapping[str, Any] = field(default_factory=dict)
    momentum: tuple[float, float] | None = None
    save_cycles: bool = False
    stages: tuple[ScheduleStage, ...] = ()
