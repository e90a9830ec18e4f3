"""Test suites for plug-ins: derive a class, and let pytest run it."""

from surestep.testing.trackers import TrackerSuite as TrackerSuite

__all__ = ["TrackerSuite"]
