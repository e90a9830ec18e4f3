"""Fixtures of the tests of searches."""

from tests.postgres import postgres as postgres
