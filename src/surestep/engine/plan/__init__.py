"""The Plan and what its rules may read."""
