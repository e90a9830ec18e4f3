"""The Plan and what is read to decide its options."""
