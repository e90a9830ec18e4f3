"""Optimizers and their parameter groups."""
