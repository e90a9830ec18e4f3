"""An entry for each schedule."""

from collections.abc import Callable
from typing import Any

from tests.laws.support.registry_entries import Entry, Wrong, classes
from tests.laws.support.tasks import rows


def of(sentence: str, wrong: dict[str, Any], parts: Callable = classes, **options: Any) -> Entry:
    """Make an entry whose wrong options belong to its schedule."""
    optim = {"lr": 1e-2, **options.pop("optim", {})}
    right = {"optim": optim, "schedule": options}
    return Entry(Wrong(sentence, {"schedule": {**options, **wrong}}), right, parts)


def judged() -> dict[str, Any]:
    return {**classes(), "val": rows(16)}


def falling(steps_taken: int, total: int) -> float:
    return 1 - steps_taken / total


ENTRIES = {
    "constant": of(
        "min_lr_ratio=0.1 requires schedule.name=.*, but schedule.name is 'constant'",
        {"min_lr_ratio": 0.1},
        name="constant",
        warmup="4 steps",
    ),
    "linear": of("min_lr=1.0 is above the peak", {"min_lr": 1.0}, name="linear", warmup="25%"),
    "cosine": of(
        "min_lr_mode='up' is not allowed",
        {"min_lr_mode": "up"},
        **{"name": "cosine", "warmup": "4 steps", "min_lr_ratio": 0.1},
    ),
    "cosine_restarts": of(
        r"schedule\.cycles=2 and schedule\.T_0='3 steps' exclude each other",
        {"cycles": 2},
        **{"name": "cosine_restarts", "T_0": "3 steps", "T_mult": 2},
    ),
    "step": of("gamma=0 is not allowed", {"gamma": 0}, name="step", step_size="4 steps"),
    "multi_step": of(
        "milestones=.* must increase",
        {"milestones": ("8 steps", "4 steps")},
        **{"name": "multi_step", "milestones": ("25%", "8 steps"), "min_lr": 2e-4},
    ),
    "exponential": of(
        "power=2.0 requires schedule.name='polynomial'",
        {"power": 2},
        **{"name": "exponential", "gamma": 0.5, "interval": "3 steps"},
    ),
    "polynomial": of("power=0 is not allowed", {"power": 0}, name="polynomial", power=2.0),
    "inverse_sqrt": of(
        "timescale='soon' is not allowed",
        {"timescale": "soon"},
        **{"name": "inverse_sqrt", "warmup": "3 steps"},
    ),
    "warmup_stable_decay": of(
        "longer than the run",
        {"decay": "80%"},
        **{"name": "warmup_stable_decay", "warmup": "25%", "decay": "50%"},
    ),
    "one_cycle": of(
        "base_momentum=0.9 is above schedule.max_momentum=0.8",
        {"base_momentum": 0.9, "max_momentum": 0.8},
        name="one_cycle",
    ),
    "cyclic": of(
        "set schedule.mode='exp_range'",
        {"gamma": 0.9},
        name="cyclic",
        step_size_up="2 steps",
        cycle_momentum=True,
        optim={"name": "sgd", "momentum": 0.9},
    ),
    "reduce_on_plateau": of(
        "interval='1 epoch' requires schedule.name=",
        {"interval": "1 epoch"},
        judged,
        **{"name": "reduce_on_plateau", "patience": 0, "factor": 0.5, "threshold": 9.0},
    ),
    "own": Entry(
        Wrong("schedule.name is set, but the Task brings", {"schedule": {"name": "cosine"}}),
        {"optim": {"lr": 1e-2}},
        lambda: {**classes(), "schedule": falling},
    ),
}
