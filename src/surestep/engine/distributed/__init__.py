"""Ranks: process groups, launchers, shards, the hang monitor. Knows no model."""
