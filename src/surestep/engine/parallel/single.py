"""One process."""

from surestep.engine.parallel.base import Strategy


class SingleProcessStrategy(Strategy):
    """Takes steps alone: what a Strategy does."""
