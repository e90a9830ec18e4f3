"""The model as it is built and run: first weights, adapters, compiling, recomputing."""
