"""Runs a script as it is, and reports what is silently wrong in its training."""
