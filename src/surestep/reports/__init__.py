"""Pages that show runs: one file each, which works offline."""
