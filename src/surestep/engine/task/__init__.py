"""What the user brings: model, loss, data, metrics."""
