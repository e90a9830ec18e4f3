"""Finds the mistakes that make training silently wrong."""
