"""Learning-rate schedules: what there is, what was decided, and the rate at each step."""
