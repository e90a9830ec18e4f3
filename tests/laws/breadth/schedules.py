"""An entry for each schedule."""

from tests.laws.breadth import Entry, Wrong

ENTRIES = {
    "constant": Entry(
        Wrong("min_lr_ratio=0.1 needs a rate that falls", {"schedule": {"min_lr_ratio": 0.1}}),
        {"schedule": {"name": "constant", "warmup": "4 steps"}},
    ),
    "cosine": Entry(
        Wrong("floor='up' is not allowed", {"schedule": {"name": "cosine", "floor": "up"}}),
        {"schedule": {"name": "cosine", "warmup": "4 steps", "min_lr_ratio": 0.1}},
    ),
}
