"""One file per contestant, each with `train(task, steps)`; `contestants.py` lists them."""
