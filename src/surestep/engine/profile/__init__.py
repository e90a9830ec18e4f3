"""Time and memory of a step, measured and estimated."""
