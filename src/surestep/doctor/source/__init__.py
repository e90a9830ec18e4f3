"""Reads training scripts without running them."""
