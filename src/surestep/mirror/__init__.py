"""Copy a run to another place while it trains, and back to a machine that has nothing."""
