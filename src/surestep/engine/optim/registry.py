"""The optimizers by name: torch's class, what it is for, its own options and what it can take."""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch

# What a class takes besides its own options, and where that is said here.
NOT_OWN = {
    "params": "the groups of parameters",
    "lr": "optim.lr, which every optimizer has",
    "weight_decay": "optim.weight_decay",
    "foreach": "optim.implementation",
    "fused": "optim.implementation",
    "maximize": "a loss is made small; negate what should be large",
    "capturable": "for capturing a step in a CUDA graph, which surestep does not",
    "differentiable": "for a gradient through the optimizer, which a step does not need",
}
NOT_OWN_8BIT = {
    "amsgrad": "bitsandbytes takes the word and does nothing",
    "optim_bits": "8 is the optimizer's name",
    "args": "inner settings of bitsandbytes",
    "is_paged": "pages cannot be saved and loaded as they were",
}
ADAMW_FOR_THE_REST = {"adamw_lr": None, "betas": (0.9, 0.999)}


@dataclass(frozen=True)
class OptimizerInfo:
    """An optimizer of the catalog.

    Attributes:
        kind: torch's class; None where it is another package's.
        purpose: what it is for, in a sentence.
        source: where it is described.
        takes_sparse: it takes sparse gradients.
        takes_complex: it takes complex parameters.
        more: options that its class does not have, with their defaults.
    """

    kind: type[torch.optim.Optimizer] | None
    purpose: str
    source: str
    takes_sparse: bool = False
    takes_complex: bool = True
    extra_help: Mapping[str, Any] = field(default_factory=dict)

    @property
    def signature(self) -> dict[str, Any]:
        """The class's parameters and their defaults."""
        return {} if self.kind is None else _signature(self.kind.__name__)

    @property
    def options(self) -> dict[str, Any]:
        """Its own options and their defaults."""
        own = {name: value for name, value in self.signature.items() if name not in NOT_OWN}
        return {**own, **self.extra_help}

    @property
    def decays(self) -> bool:
        """Whether it has a weight decay, or what moves the rest beside it has."""
        return (
            self.kind is None or "weight_decay" in self.signature or "adamw_lr" in self.extra_help
        )


@cache
def _signature(kind: str) -> dict[str, Any]:
    parameters = inspect.signature(vars(torch.optim)[kind]).parameters
    return {name: each.default for name, each in parameters.items()}


OPTIMIZERS: Mapping[str, OptimizerInfo] = {
    "adadelta": OptimizerInfo(
        torch.optim.Adadelta,
        "Updates scaled by past updates; hardly needs a learning rate.",
        "https://arxiv.org/abs/1212.5701",
    ),
    "adafactor": OptimizerInfo(
        torch.optim.Adafactor,
        "Large models in little memory: stores one row and one column per matrix.",
        "https://arxiv.org/abs/1804.04235",
        takes_complex=False,
    ),
    "adagrad": OptimizerInfo(
        torch.optim.Adagrad,
        "Rare features; the learning rate of each weight only falls.",
        "https://jmlr.org/papers/v12/duchi11a.html",
        takes_sparse=True,
    ),
    "adam": OptimizerInfo(
        torch.optim.Adam,
        "Adaptive learning rates; its weight decay is an L2 penalty: for decay use AdamW.",
        "https://arxiv.org/abs/1412.6980",
    ),
    "adamax": OptimizerInfo(
        torch.optim.Adamax,
        "Adam with the largest gradient instead of the squared gradients.",
        "https://arxiv.org/abs/1412.6980",
    ),
    "adamw": OptimizerInfo(
        torch.optim.AdamW,
        "Most models, without tuning; decoupled weight decay.",
        "https://arxiv.org/abs/1711.05101",
    ),
    "adamw8bit": OptimizerInfo(
        None,
        "AdamW with 8-bit moments, in a quarter of the memory.",
        "https://arxiv.org/abs/2110.02861",
        takes_complex=False,
        extra_help={"betas": (0.9, 0.999), "eps": 1e-8, "min_8bit_size": 4096},
    ),
    "asgd": OptimizerInfo(
        torch.optim.ASGD,
        "SGD that keeps an average of the weights.",
        "https://dl.acm.org/doi/10.1137/0330046",
    ),
    "lbfgs": OptimizerInfo(
        torch.optim.LBFGS,
        "Small models on one full batch (curve fits, physics); several evaluations per step.",
        "https://doi.org/10.1007/BF01589116",
        takes_sparse=True,
    ),
    "muon": OptimizerInfo(
        torch.optim.Muon,
        "Hidden matrices of transformers, by orthogonal updates; AdamW updates the rest.",
        "https://kellerjordan.github.io/posts/muon/",
        takes_complex=False,
        extra_help=ADAMW_FOR_THE_REST,
    ),
    "nadam": OptimizerInfo(
        torch.optim.NAdam,
        "Adam with Nesterov momentum.",
        "https://openreview.net/forum?id=OM0jvwB8jIp57ZJjtNEZ",
    ),
    "radam": OptimizerInfo(
        torch.optim.RAdam,
        "Adam with a built-in warm-up.",
        "https://arxiv.org/abs/1908.03265",
    ),
    "rmsprop": OptimizerInfo(
        torch.optim.RMSprop,
        "Recurrent networks and reinforcement learning; scales by recent squared gradients.",
        "https://www.cs.toronto.edu/~tijmen/csc321/slides/lecture_slides_lec6.pdf",
    ),
    "rprop": OptimizerInfo(
        torch.optim.Rprop,
        "Full-batch training only; uses the sign of the gradient.",
        "https://doi.org/10.1109/ICNN.1993.298623",
    ),
    "sgd": OptimizerInfo(
        torch.optim.SGD,
        "Vision models, with momentum and a tuned learning rate.",
        "https://proceedings.mlr.press/v28/sutskever13.html",
        takes_sparse=True,
    ),
    "sparse_adam": OptimizerInfo(
        torch.optim.SparseAdam,
        "Large embedding tables with sparse gradients: updates only the rows that were looked up; "
        "AdamW updates the rest.",
        "https://arxiv.org/abs/1412.6980",
        takes_sparse=True,
        takes_complex=False,
        extra_help={"adamw_lr": None},
    ),
}


def options_of(name: str) -> dict[str, Any]:
    """Return the own options of an optimizer and their defaults; none of one that is not here."""
    return OPTIMIZERS[name].options if name in OPTIMIZERS else {}


def optimizers_with(option: str) -> list[str]:
    """List the optimizers that have an own option."""
    return [name for name, known in OPTIMIZERS.items() if option in known.options]


def default_of(name: str, option: str) -> Any:
    """Return the default of "lr" or "weight_decay"; AdamW's where the class has none of its own."""
    return OPTIMIZERS[name].signature.get(option, OPTIMIZERS["adamw"].signature[option])
