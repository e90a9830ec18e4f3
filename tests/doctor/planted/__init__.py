"""Planted mistakes: correct training scripts, and what the doctor finds after one edit of each."""
