"""The mistakes that are planted, one module for each group of rules."""

from tests.doctor.planted.planters import (
    checkpoints,
    data,
    losses,
    memory,
    modes,
    optimizers,
    order,
    processes,
    schedules,
)
from tests.doctor.planted.planters.base import PLANTERS

__all__ = [
    "PLANTERS",
    "checkpoints",
    "data",
    "losses",
    "memory",
    "modes",
    "optimizers",
    "order",
    "processes",
    "schedules",
]
