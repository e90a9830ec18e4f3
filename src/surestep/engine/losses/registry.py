"""The table of losses: what each is for, what it takes, and what it is a mean over."""

import inspect
from typing import Any

from surestep.base.errors import TaskError, suggest_names
from surestep.base.plugins import LOSSES, load_plugin, plugin_names
from surestep.engine.losses.base import LossModule
from surestep.engine.losses.classification import Binary, MultiClass, MultiLabel
from surestep.engine.losses.ctc import CTC
from surestep.engine.losses.distillation import Distillation
from surestep.engine.losses.embeddings import Contrastive, ContrastivePairs, Margin, Triplet
from surestep.engine.losses.language_modeling import MaskedTokens, NextToken
from surestep.engine.losses.regression import Huber, Mae, Mse, Quantile
from surestep.engine.losses.segmentation import Dice, DiceBce, DiceCe, Focal

BUILT_IN: dict[str, type[LossModule]] = {
    loss.name: loss
    for loss in (
        *(Binary, MultiClass, MultiLabel, Mse, Mae, Huber, Quantile),
        *(Margin, Triplet, Contrastive, ContrastivePairs, Distillation),
        *(Dice, DiceBce, DiceCe, Focal, NextToken, MaskedTokens, CTC),
    )
}

_OF_MODEL = ("model", "model in training")


def loss_names() -> tuple[str, ...]:
    """List the losses, plug-ins last."""
    return (*BUILT_IN, *plugin_names(LOSSES, BUILT_IN))


def loss_class(name: str) -> type[LossModule]:
    """Return the class of a loss by its name: a built-in one, or one that a package registers.

    Raises:
        TaskError: there is none.
        ConfigError: the plug-in cannot be loaded, or is not a LossModule.
    """
    if name not in loss_names():
        raise TaskError(
            f"loss={name!r} is not a loss. {suggest_names(name, (*loss_names(), *_OF_MODEL))} "
            "`surestep losses` explains them; 'model' takes the .loss that the model returns, and "
            "'model in training' its dict of losses."
        )
    if name in BUILT_IN:
        return BUILT_IN[name]
    found: type[LossModule] = load_plugin(LOSSES, name, LossModule)
    return found


def get_loss(name: str) -> LossModule:
    """Return the loss of this name with its own defaults."""
    return loss_class(name)()


def loss_doc(name: str) -> dict[str, Any]:
    """Return a row of the table of losses: name, call with the default options, and texts."""
    loss = loss_class(name)
    kinds = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    options = [
        f"{parameter.name}={parameter.default!r}"
        for parameter in inspect.signature(loss).parameters.values()
        if parameter.kind not in kinds
    ]
    return {"name": name, "call": f"{name}({', '.join(options)})", **loss.doc._asdict()}
