"""What the run-time sides of several rules share."""
