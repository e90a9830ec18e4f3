"""Trackers: what a run records, sent to TensorBoard and others while it trains."""
