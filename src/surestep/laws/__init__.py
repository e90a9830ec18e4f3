"""Compare two runs bit for bit, and find the first step and tensor that differ."""
