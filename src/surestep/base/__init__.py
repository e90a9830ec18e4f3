"""Config, durations, errors: what needs no torch."""
