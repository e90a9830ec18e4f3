"""Data by place: what a user may give, its order, and the batches that a step sees."""
