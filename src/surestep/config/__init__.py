"""The Config and its groups of options."""
