"""The parameter groups of an optimizer."""

from typing import Any

from torch import nn
from torch.optim import Optimizer

from surestep.eject.templates.program import WEIGHT_DECAY

GROUPS: tuple[tuple[tuple[str, ...], float, float], ...] = ()  # names, learning rate, weight decay


def build(groups: Any) -> Optimizer:
    """Return the optimizer; a script calls that of its Plan."""
    raise NotImplementedError


def make_optimizer(model: nn.Module) -> Optimizer:
    """Return the optimizer, with weight decay for matrices alone."""  # ? split
    """Return the optimizer, with the learning rate and weight decay of each group."""  # ? named
    """Return the optimizer."""  # ? !split !named
    # Decay pulls a weight to zero, which means nothing for a bias or a scale.  # ? split !tables
    # Decay pulls to zero, which means nothing for a bias, a scale or a row of a table.  # ? tables
    tables = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}  # ? tables
    decaying = [p for p in model.parameters() if p.dim() >= 2]  # ? split !tables
    decaying = [p for p in model.parameters() if p.dim() >= 2 and id(p) not in tables]  # ? tables
    others = [p for p in model.parameters() if p.dim() < 2]  # ? split !tables
    others = [p for p in model.parameters() if p.dim() < 2 or id(p) in tables]  # ? tables
    groups = [  # ? split
        {"params": decaying, "weight_decay": WEIGHT_DECAY},
        {"params": others, "weight_decay": 0.0},
    ]
    weights = dict(model.named_parameters())  # ? named
    groups = [  # ? named
        {"params": [weights[name] for name in names], "lr": lr, "peak": lr, "weight_decay": decay}
        for names, lr, decay in GROUPS
    ]
    return build(groups)
