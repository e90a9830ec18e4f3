"""Tests with several releases of torch: `python -m tests.versions 2.6.0 2.14.1`."""
