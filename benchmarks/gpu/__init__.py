"""`python -m benchmarks.gpu`: what surestep does on a GPU, in at most eight minutes."""
