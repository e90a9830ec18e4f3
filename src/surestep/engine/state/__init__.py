"""Everything that a checkpoint holds."""
