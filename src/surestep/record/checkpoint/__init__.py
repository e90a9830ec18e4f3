"""Checkpoints: a folder of safetensors and JSON, published by one rename. No pickle."""
