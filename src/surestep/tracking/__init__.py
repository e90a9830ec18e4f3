"""Trackers: what a run records, sent to TensorBoard and others while it trains."""

from surestep.tracking.replay import replay_run as replay_run
from surestep.tracking.tracker import Histogram as Histogram
from surestep.tracking.tracker import Point as Point
from surestep.tracking.tracker import StudyResult as StudyResult
from surestep.tracking.tracker import TrackedRun as TrackedRun
from surestep.tracking.tracker import Tracker as Tracker

__all__ = ["Histogram", "Point", "StudyResult", "TrackedRun", "Tracker", "replay_run"]
