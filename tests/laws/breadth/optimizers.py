"""An entry for each optimizer."""

from tests.laws.breadth import Entry, Wrong

ENTRIES = {
    "adamw": Entry(
        Wrong("momentum=0.9 is an option of sgd", {"optim": {"name": "adamw", "momentum": 0.9}}),
        {"optim": {"name": "adamw", "lr": 1e-2}},
    ),
    "sgd": Entry(
        Wrong(r"betas=.* is an option of adamw", {"optim": {"name": "sgd", "betas": (0.9, 0.9)}}),
        {"optim": {"name": "sgd", "lr": 1e-1, "momentum": 0.9}},
    ),
}
