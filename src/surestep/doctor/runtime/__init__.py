"""What the run-time sides of several rules share; without torch at import."""
