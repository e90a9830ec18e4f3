"""The optimizers by name: class, what it is for, its own options and what it can take.

It does not import torch until the class of an optimizer is read.
"""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import Any

from surestep.base import plugins
from surestep.base.errors import ConfigError
from surestep.base.plugins import load_plugin
from surestep.config.optim import OF_ALL, Optim

# Options for the parameters that AdamW updates beside another optimizer.
ADAMW_FOR_THE_REST = {"adamw_lr": None, "betas": (0.9, 0.999)}


@dataclass(frozen=True)
class OptimizerInfo:
    """An optimizer.

    Attributes:
        path: where its class is.
        purpose: what it is for, in a sentence.
        source: where it is described.
        own: arguments of its class that are options; their defaults are the class's.
        takes_sparse: it takes sparse gradients.
        takes_complex: it takes complex parameters.
        extra: options that its class does not have or that are not read from it, with their
            defaults.
        since: the first release of torch that has it, if older ones are supported too.
        plugin: the entry point's name, if it is a plug-in.
    """

    path: str
    purpose: str
    source: str
    own: tuple[str, ...] = ()
    takes_sparse: bool = False
    takes_complex: bool = True
    extra: Mapping[str, Any] = field(default_factory=dict)
    since: str = ""
    plugin: str | None = None

    @property
    def kind(self) -> Any:
        """Its class."""
        if self.plugin is not None:
            return _plugin_class(self.plugin)
        module, _, name = self.path.rpartition(".")
        return getattr(import_module(module), name)

    @property
    def signature(self) -> dict[str, Any]:
        """The arguments of its class and their defaults; {} of bitsandbytes, an extra."""
        if self.path.startswith("bitsandbytes"):
            return {}
        # torch's implementations are not expected of a plug-in's class.
        hidden = () if self.plugin is None else ("foreach", "fused")
        defaults = _argument_defaults(self.kind).items()
        return {name: default for name, default in defaults if name not in hidden}

    @property
    def options(self) -> dict[str, Any]:
        """Its own options and their defaults."""
        signature = self.signature
        return {**{name: signature[name] for name in self.own}, **self.extra}

    @property
    def decays(self) -> bool:
        """Whether it, or AdamW beside it, has a weight decay."""
        return not self.signature or "weight_decay" in self.signature or "adamw_lr" in self.extra


@cache
def _argument_defaults(kind: type) -> dict[str, Any]:
    """Return the arguments of a class and their defaults; a plan asks some forty times."""
    return {name: argument.default for name, argument in inspect.signature(kind).parameters.items()}


BUILT_IN: Mapping[str, OptimizerInfo] = {
    "adadelta": OptimizerInfo(
        "torch.optim.Adadelta",
        "Updates scaled by past updates; the learning rate needs little tuning.",
        "https://arxiv.org/abs/1212.5701",
        ("rho", "eps"),
    ),
    "adafactor": OptimizerInfo(
        "torch.optim.Adafactor",
        "Large models in little memory: stores one row and one column per matrix.",
        "https://arxiv.org/abs/1804.04235",
        ("beta2_decay", "eps", "d"),
        takes_complex=False,
    ),
    "adagrad": OptimizerInfo(
        "torch.optim.Adagrad",
        "Sparse features; the learning rate of each weight only decreases.",
        "https://jmlr.org/papers/v12/duchi11a.html",
        ("lr_decay", "initial_accumulator_value", "eps"),
        takes_sparse=True,
    ),
    "adam": OptimizerInfo(
        "torch.optim.Adam",
        "Adaptive learning rates; its weight decay is an L2 penalty (AdamW decouples it).",
        "https://arxiv.org/abs/1412.6980",
        ("betas", "eps", "amsgrad", "decoupled_weight_decay"),
    ),
    "adamax": OptimizerInfo(
        "torch.optim.Adamax",
        "Adam with the largest gradient instead of the squared gradients.",
        "https://arxiv.org/abs/1412.6980",
        ("betas", "eps"),
    ),
    "adamw": OptimizerInfo(
        "torch.optim.AdamW",
        "Most models, without tuning; decoupled weight decay.",
        "https://arxiv.org/abs/1711.05101",
        ("betas", "eps", "amsgrad"),
    ),
    "adamw8bit": OptimizerInfo(
        "bitsandbytes.optim.AdamW8bit",
        "AdamW with 8-bit moments, in a quarter of the memory.",
        "https://arxiv.org/abs/2110.02861",
        (),
        takes_complex=False,
        extra={"betas": (0.9, 0.999), "eps": 1e-8, "min_8bit_size": 4096},
    ),
    "asgd": OptimizerInfo(
        "torch.optim.ASGD",
        "SGD that keeps an average of the weights.",
        "https://dl.acm.org/doi/10.1137/0330046",
        ("lambd", "alpha", "t0"),
    ),
    "lbfgs": OptimizerInfo(
        "torch.optim.LBFGS",
        "Small models on one full batch (curve fits, physics); several evaluations per step.",
        "https://doi.org/10.1007/BF01589116",
        (
            "max_iter",
            "max_eval",
            "tolerance_grad",
            "tolerance_change",
            "history_size",
            "line_search_fn",
        ),
        takes_sparse=True,
    ),
    "muon": OptimizerInfo(
        "torch.optim.Muon",
        "Hidden matrices of transformers, by orthogonal updates; AdamW updates the rest.",
        "https://kellerjordan.github.io/posts/muon/",
        ("momentum", "nesterov", "ns_coefficients", "eps", "ns_steps", "adjust_lr_fn"),
        takes_complex=False,
        extra=ADAMW_FOR_THE_REST,
        since="2.9",
    ),
    "nadam": OptimizerInfo(
        "torch.optim.NAdam",
        "Adam with Nesterov momentum.",
        "https://openreview.net/forum?id=OM0jvwB8jIp57ZJjtNEZ",
        ("betas", "eps", "momentum_decay", "decoupled_weight_decay"),
    ),
    "radam": OptimizerInfo(
        "torch.optim.RAdam",
        "Adam with a built-in warm-up.",
        "https://arxiv.org/abs/1908.03265",
        ("betas", "eps", "decoupled_weight_decay"),
    ),
    "rmsprop": OptimizerInfo(
        "torch.optim.RMSprop",
        "Recurrent networks and reinforcement learning; scales by recent squared gradients.",
        "https://www.cs.toronto.edu/~tijmen/csc321/slides/lecture_slides_lec6.pdf",
        ("alpha", "eps", "momentum", "centered"),
    ),
    "rprop": OptimizerInfo(
        "torch.optim.Rprop",
        "Full-batch training only; uses the sign of the gradient.",
        "https://doi.org/10.1109/ICNN.1993.298623",
        ("etas", "step_sizes"),
    ),
    "sgd": OptimizerInfo(
        "torch.optim.SGD",
        "Vision models, with momentum and a tuned learning rate.",
        "https://proceedings.mlr.press/v28/sutskever13.html",
        ("momentum", "dampening", "nesterov"),
        takes_sparse=True,
    ),
    "sparse_adam": OptimizerInfo(
        "torch.optim.SparseAdam",
        "Large embedding tables with sparse gradients: updates only the rows that were looked up; "
        "AdamW updates the rest.",
        "https://arxiv.org/abs/1412.6980",
        ("betas", "eps"),
        takes_sparse=True,
        takes_complex=False,
        extra={"adamw_lr": None},
    ),
}


@cache
def optimizer_info(name: str) -> OptimizerInfo:
    """Return an optimizer by its name: a built-in one, or the class that a package registers.

    Raises:
        KeyError: there is none.
        ConfigError: the plug-in cannot be loaded, or an argument of its class has no default.
    """
    if name in BUILT_IN:
        return BUILT_IN[name]
    kind = _plugin_class(name)
    _, *arguments = inspect.signature(kind).parameters.values()
    path = f"{kind.__module__}.{kind.__qualname__}"
    for argument in arguments:
        if argument.default is argument.empty:
            raise ConfigError(
                f"The entry point {name!r} of {plugins.OPTIMIZERS} ({path}) has no default for "
                f"{argument.name!r}. Give it one."
            )
    own = tuple(
        argument.name
        for argument in arguments
        if argument.name in Optim.model_fields and argument.name not in OF_ALL
    )
    purpose = (inspect.getdoc(kind) or "A plug-in.").splitlines()[0]
    return OptimizerInfo(path, purpose, path, own, plugin=name)


def _plugin_class(name: str) -> Any:
    from torch.optim import Optimizer

    return load_plugin(plugins.OPTIMIZERS, name, Optimizer)


def options_of(name: str) -> dict[str, Any]:
    """Return the own options of an optimizer and their defaults; {} of a custom one."""
    return {} if name == "own" else optimizer_info(name).options


def own_option_names(name: str) -> tuple[str, ...]:
    """Return the names of the own options of an optimizer, without importing torch for it."""
    info = optimizer_info(name)
    return (*info.own, *info.extra)


def default_of(name: str, option: str) -> Any:
    """Return the default of "lr" or "weight_decay"; AdamW's if the class has none."""
    return optimizer_info(name).signature.get(option, BUILT_IN["adamw"].signature[option])
