"""Runs that are killed, broken and filled up, to see whether anything is lost."""
