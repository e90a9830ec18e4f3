"""Time surestep against plain PyTorch and the peers: `python -m benchmarks.run`."""
