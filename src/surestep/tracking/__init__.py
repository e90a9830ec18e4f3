"""Trackers: what a run records, sent to TensorBoard and others while it trains."""

from typing import TYPE_CHECKING

from surestep.base.lazy_names import import_lazily

if TYPE_CHECKING:
    from surestep.tracking.replay import replay_run as replay_run
    from surestep.tracking.tracker import Histogram as Histogram
    from surestep.tracking.tracker import Point as Point
    from surestep.tracking.tracker import StudyResult as StudyResult
    from surestep.tracking.tracker import TrackedRun as TrackedRun
    from surestep.tracking.tracker import Tracker as Tracker

# A run without trackers imports none of what sends its records.
_HOMES = {
    **dict.fromkeys(("Histogram", "Point", "StudyResult", "TrackedRun", "Tracker"), "tracker"),
    "replay_run": "replay",
}
__all__ = ["Histogram", "Point", "StudyResult", "TrackedRun", "Tracker", "replay_run"]
__getattr__ = import_lazily(__name__, _HOMES)


def __dir__() -> list[str]:
    return __all__
