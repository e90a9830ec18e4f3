"""The table of losses: what each is for, what it takes, and what it is a mean over."""

import inspect
from typing import Any

from surestep.base.errors import TaskError, near
from surestep.engine.losses.base import TableLoss
from surestep.engine.losses.classification import Binary, MultiClass, MultiLabel
from surestep.engine.losses.distill import Distillation
from surestep.engine.losses.focus import Focal
from surestep.engine.losses.frames import Ctc
from surestep.engine.losses.language import MaskedTokens, NextToken
from surestep.engine.losses.ranking import Margin, Triplet
from surestep.engine.losses.regression import Huber, Mae, Mse, Quantile
from surestep.engine.losses.segmentation import Dice, DiceBce, DiceCe
from surestep.engine.losses.similarity import Contrastive, ContrastivePairs

CATALOG: dict[str, type[TableLoss]] = {
    "binary": Binary,
    "multiclass": MultiClass,
    "multilabel": MultiLabel,
    "mse": Mse,
    "mae": Mae,
    "huber": Huber,
    "quantile": Quantile,
    "margin": Margin,
    "triplet": Triplet,
    "contrastive": Contrastive,
    "contrastive_pairs": ContrastivePairs,
    "distillation": Distillation,
    "dice": Dice,
    "dice_bce": DiceBce,
    "dice_ce": DiceCe,
    "focal": Focal,
    "next_token": NextToken,
    "masked_tokens": MaskedTokens,
    "ctc": Ctc,
}


_OF_MODEL = ("model", "model in training")


def named(name: str) -> TableLoss:
    """Return the loss of this name with its own defaults.

    Raises:
        TaskError: there is none.
    """
    if name not in CATALOG:
        raise TaskError(
            f"loss={name!r} is not in the table. {near(name, (*CATALOG, *_OF_MODEL))} "
            "`surestep losses` explains them; 'model' takes the .loss that the model returns, and "
            "'model in training' its dict of losses."
        )
    return CATALOG[name]()


def call_of(name: str) -> str:
    """Return how the loss is made, with its options and their defaults."""
    parameters = inspect.signature(CATALOG[name]).parameters.values()
    kinds = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    said = [f"{each.name}={each.default!r}" for each in parameters if each.kind not in kinds]
    return f"{name}({', '.join(said)})"


def guide() -> list[dict[str, Any]]:
    """Return the whole table, a row for each loss."""
    return [
        {"name": name, "call": call_of(name), **each.guide._asdict()}
        for name, each in CATALOG.items()
    ]
