"""The groups of options that a Config has."""
