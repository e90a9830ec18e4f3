"""Name the curve of a run: falling, flat, diverging, overfitting and so on, with the numbers."""
