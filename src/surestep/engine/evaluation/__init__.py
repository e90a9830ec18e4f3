"""Beyond the mean of a loss: predictions of each sample, and metrics that are ready to use."""
