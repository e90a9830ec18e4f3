"""Tests for plug-ins: derive a class, and let pytest run it. And the laws on your program."""

from surestep.testing.laws import assert_laws as assert_laws
from surestep.testing.trackers import TrackerSuite as TrackerSuite

__all__ = ["TrackerSuite", "assert_laws"]
