"""Datasets, loaders, streams, sampling orders and seeds of loading."""
